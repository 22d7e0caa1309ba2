//! No secret and no payload is printed for debugging (LOG-3, LOG-5).

use std::collections::BTreeSet;

use bytes::Bytes;
use yuzu_proto::wire;

use crate::contracts::{MessageType, TYPES, fields_of};

/// Fields that hold what LOG-3 forbids to print, in whichever message they stand.
const UNPRINTABLE: [&str; 20] = [
    "session_id",
    "unknown_session_ids",
    "enrollment_token",
    "machine_certificate",
    "attestation_signature",
    "attestation_provider",
    "csr_pem",
    "agent_credential",
    "issued_certificate",
    "issued_ca_chain",
    "parameters",
    "payload",
    "output",
    "message",
    "metadata",
    "status_tags",
    "fleet_snapshot_json",
    "plugin_data",
    "content_hashes",
    "dispatch_tag",
];

#[test]
fn log_5_messages_with_secrets_print_their_size_only() {
    let mut met = BTreeSet::new();
    for of in TYPES {
        for field in fields_of(of.name) {
            if UNPRINTABLE.contains(&field.name()) {
                met.insert(field.name());
                assert_prints_size_only(of, u32::try_from(field.number()).expect("positive"));
            }
        }
    }
    assert_eq!(met, UNPRINTABLE.into(), "a name that no message has");
}

fn assert_prints_size_only(of: &MessageType, number: u32) {
    // A text, and as well a map entry with the key "hush" and an empty value.
    let content = b"\x0a\x04hush";
    let mut message = Vec::new();
    wire::put_bytes_field(&mut message, number, content);
    let encoded = Bytes::from((of.recode)(&message).expect("decodes"));
    assert!(
        encoded.windows(4).any(|part| part == b"hush"),
        "{of:?} field {number} is lost"
    );
    let short_name = of.name.rsplit('.').next().expect("a name");
    assert_eq!(
        (of.print)(&message).as_deref(),
        Ok(&*format!("{short_name}({} bytes)", encoded.len()))
    );
}

#[test]
fn log_5_messages_around_one_with_secrets_do_not_print_it() {
    // SendCommandRequest { command: { command_id: "hush" } }
    let of = TYPES
        .iter()
        .find(|of| of.name == ".yuzu.server.v1.SendCommandRequest");
    let printed = (of.expect("listed").print)(b"\x12\x06\x0a\x04hush").expect("decodes");
    assert!(
        printed.contains("CommandRequest(6 bytes)") && !printed.contains("hush"),
        "{printed}"
    );
}
