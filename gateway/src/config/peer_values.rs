//! Pins and serials as a file writes them.
//!
//! Responsible for their forms. A pin that can't be read is kept as one that pins nothing: the
//! others still admit (MGMT-AUTH-3).

use std::path::PathBuf;

use super::document::{Node, Raw};
use super::print;
use super::schema::{KeyPin, PeerPin, Serial};
use super::values::{self, Misfit};

/// More would be a mistake.
const MAX_PINS: usize = 64;
/// Each is compared on every management call.
const MAX_SERIALS: usize = 10_000;

pub(super) const PINS_ALLOWED: &str =
    "a list of at most 64 tables { cert_file = \"path\" } or { spki_sha256 = \"64 hex digits\" }";

pub(super) const SERIALS_ALLOWED: &str =
    "a list of at most 10000 strings of 1 to 40 hex digits, without 0x and colons";

pub(super) fn pins(node: &Node) -> Result<Vec<PeerPin>, Vec<Misfit>> {
    match &node.raw {
        Raw::List(items) if items.len() <= MAX_PINS => Ok(items.iter().map(pin).collect()),
        _ => Err(vec![Misfit::new(node, PINS_ALLOWED)]),
    }
}

fn pin(node: &Node) -> PeerPin {
    let Raw::Table(entries) = &node.raw else {
        return PeerPin::Malformed;
    };
    let [(name, value)] = &entries[..] else {
        return PeerPin::Malformed;
    };
    let pin = match (name.as_str(), value.raw.text()) {
        ("cert_file", Some(path)) if !path.is_empty() && values::is_path(path) => {
            Some(PeerPin::CertFile(PathBuf::from(path)))
        }
        ("spki_sha256", Some(digits)) => KeyPin::parse(digits).map(PeerPin::Spki),
        _ => None,
    };
    pin.unwrap_or(PeerPin::Malformed)
}

pub(super) fn show_pins(pins: &[PeerPin]) -> String {
    let shown = pins.iter().map(|pin| match pin {
        PeerPin::CertFile(path) => {
            format!(
                "{{ cert_file = {} }}",
                print::quoted(&path.to_string_lossy())
            )
        }
        PeerPin::Spki(key) => format!("{{ spki_sha256 = \"{key}\" }}"),
        PeerPin::Malformed => "{ spki_sha256 = \"\" }".to_owned(),
    });
    format!("[{}]", shown.collect::<Vec<_>>().join(", "))
}

pub(super) fn serials(node: &Node) -> Result<Vec<Serial>, Vec<Misfit>> {
    const ALLOWED: &str = "a string of 1 to 40 hex digits, without 0x and colons";
    let items = match &node.raw {
        Raw::List(items) if items.len() <= MAX_SERIALS => items,
        _ => return Err(vec![Misfit::new(node, SERIALS_ALLOWED)]),
    };
    values::each(items, |item| {
        let serial = item.raw.text().and_then(Serial::parse);
        serial.ok_or_else(|| Misfit::new(item, ALLOWED))
    })
}
