use proptest::prelude::*;

use super::*;
use crate::config::Secret;

/// Where the dialler is dialled.
const AT: &str = "a.internal:9100";

fn keys(secret: &str) -> Keys {
    Keys::derive(&Secret::new(secret))
}

fn good() -> Keys {
    keys("the secret of this cluster, 32 characters")
}

fn node(name: &str) -> Identity {
    Identity {
        name: name.into(),
        incarnation: 1_000,
        instance: [name.len() as u8; 16],
    }
}

/// A whole handshake; what each side believes of the other.
fn shake(
    (dialler, dialler_keys, dialler_binding): (&Identity, &Keys, Binding),
    (dialled, dialled_keys, dialled_binding): (&Identity, &Keys, Binding),
) -> Result<(Identity, Identity), Failure> {
    let (dialling, hello) = Dialling::begin(dialler, AT, [1; NONCE], dialler_binding)?;
    let (waiting, answer) =
        Dialled::hear(&hello, dialled, [2; NONCE], dialled_binding, dialled_keys)?;
    let (heard, prove) = dialling.answered(&answer, dialler_keys)?;
    let (told, address) = waiting.proven(&prove, dialled_keys)?;
    assert_eq!(address, AT);
    Ok((heard, told))
}

#[test]
fn mesh_2_both_sides_know_each_other_after_both_proofs() {
    let (a, bee) = (node("a"), node("bee"));
    for binding in [None, Some([9; 32])] {
        let known = shake((&a, &good(), binding), (&bee, &good(), binding));
        assert_eq!(known, Ok((bee.clone(), a.clone())));
    }
}

#[test]
fn mesh_2_the_side_that_was_dialled_proves_first() {
    let (a, bee) = (node("a"), node("bee"));
    let wrong = keys("another secret, which is as long as it");
    let (dialling, hello) = Dialling::begin(&a, AT, [1; NONCE], None).unwrap();
    let (_, answer) = Dialled::hear(&hello, &bee, [2; NONCE], None, &wrong).unwrap();
    // No proof leaves the dialler.
    assert_eq!(
        dialling.answered(&answer, &good()).unwrap_err(),
        Failure::Secret
    );
}

#[test]
fn mesh_2_a_dialler_without_the_secret_is_refused() {
    let (a, bee) = (node("a"), node("bee"));
    let (_, hello) = Dialling::begin(&a, AT, [1; NONCE], None).unwrap();
    let (waiting, _) = Dialled::hear(&hello, &bee, [2; NONCE], None, &good()).unwrap();
    let prove = ProveRequest {
        proof: vec![0; 32].into(),
    };
    assert_eq!(waiting.proven(&prove, &good()), Err(Failure::Secret));
}

#[test]
fn mesh_2_a_proof_is_bound_to_its_connection() {
    let (a, bee) = (node("a"), node("bee"));
    for (one, other) in [
        (Some([1; 32]), Some([2; 32])),
        (Some([1; 32]), None),
        (None, Some([1; 32])),
    ] {
        let known = shake((&a, &good(), one), (&bee, &good(), other));
        assert_eq!(known, Err(Failure::Secret));
    }
}

#[test]
fn mesh_2_a_proof_thrown_back_at_its_maker_is_refused() {
    let (a, bee) = (node("a"), node("bee"));
    let (_, hello) = Dialling::begin(&a, AT, [1; NONCE], None).unwrap();
    let (waiting, answer) = Dialled::hear(&hello, &bee, [2; NONCE], None, &good()).unwrap();
    let reflected = ProveRequest {
        proof: answer.proof,
    };
    assert_eq!(waiting.proven(&reflected, &good()), Err(Failure::Secret));
}

#[test]
fn mesh_2_a_proof_seen_before_is_refused_under_another_nonce() {
    let (a, bee) = (node("a"), node("bee"));
    let (dialling, hello) = Dialling::begin(&a, AT, [1; NONCE], None).unwrap();
    let (_, answer) = Dialled::hear(&hello, &bee, [2; NONCE], None, &good()).unwrap();
    let (_, seen) = dialling.answered(&answer, &good()).unwrap();
    let (waiting, _) = Dialled::hear(&hello, &bee, [3; NONCE], None, &good()).unwrap();
    assert_eq!(waiting.proven(&seen, &good()), Err(Failure::Secret));
}

#[test]
fn mesh_6_the_address_of_a_dialler_is_proven_with_the_rest() {
    let (a, bee) = (node("a"), node("bee"));
    for address in ["elsewhere.internal:9100", ""] {
        let (dialling, mut hello) = Dialling::begin(&a, AT, [1; NONCE], None).unwrap();
        hello.address = address.into();
        let (_, answer) = Dialled::hear(&hello, &bee, [2; NONCE], None, &good()).unwrap();
        let judged = dialling.answered(&answer, &good());
        assert_eq!(judged.unwrap_err(), Failure::Secret);
    }
}

#[test]
fn mesh_2_whatever_is_changed_on_the_way_breaks_the_proof() {
    let (a, bee) = (node("a"), node("bee"));
    let (_, hello) = Dialling::begin(&a, AT, [1; NONCE], None).unwrap();
    let changes: [fn(&mut HelloResponse); 5] = [
        |answer| answer.node.as_mut().unwrap().name = "c".into(),
        |answer| answer.node.as_mut().unwrap().incarnation += 1,
        |answer| answer.node.as_mut().unwrap().instance = vec![8; 16].into(),
        |answer| answer.nonce = vec![8; 32].into(),
        |answer| answer.capabilities.push("more".into()),
    ];
    for change in changes {
        let (dialling, _) = Dialling::begin(&a, AT, [1; NONCE], None).unwrap();
        let (_, mut answer) = Dialled::hear(&hello, &bee, [2; NONCE], None, &good()).unwrap();
        change(&mut answer);
        assert_eq!(
            dialling.answered(&answer, &good()).unwrap_err(),
            Failure::Secret
        );
    }
}

#[test]
fn mesh_2_what_is_no_hello_is_refused_before_anything_is_proven() {
    let (a, bee) = (node("a"), node("bee"));
    type Spoil = fn(&mut HelloRequest);
    let changes: [(Spoil, Failure); 10] = [
        (|hello| hello.node = None, Failure::Protocol),
        (
            |hello| hello.node.as_mut().unwrap().name.clear(),
            Failure::Protocol,
        ),
        (
            |hello| hello.node.as_mut().unwrap().name = "x".repeat(256),
            Failure::Protocol,
        ),
        (
            |hello| hello.node.as_mut().unwrap().name = "a\n".into(),
            Failure::Protocol,
        ),
        (
            |hello| hello.node.as_mut().unwrap().instance = vec![1; 15].into(),
            Failure::Protocol,
        ),
        (|hello| hello.nonce = vec![1; 31].into(), Failure::Protocol),
        (
            |hello| hello.capabilities = vec![String::new(); 65],
            Failure::Protocol,
        ),
        (|hello| hello.address = "x".repeat(261), Failure::Protocol),
        (|hello| hello.address.push('\n'), Failure::Protocol),
        (|hello| hello.protocol = 2, Failure::Version),
    ];
    for (change, failure) in changes {
        let (_, mut hello) = Dialling::begin(&a, AT, [1; NONCE], None).unwrap();
        change(&mut hello);
        let heard = Dialled::hear(&hello, &bee, [2; NONCE], None, &good());
        assert_eq!(heard.unwrap_err(), failure);
    }
}

#[test]
fn mesh_6_of_two_namesakes_the_one_that_started_later_is_younger() {
    let elder = node("a");
    let younger = Identity {
        incarnation: 1_001,
        instance: [0; 16],
        ..elder.clone()
    };
    assert!(younger.is_younger_than(&elder));
    assert!(!elder.is_younger_than(&younger));
    // Of the same millisecond exactly one gives way.
    let twin = Identity {
        instance: [200; 16],
        ..elder.clone()
    };
    assert!(twin.is_younger_than(&elder) != elder.is_younger_than(&twin));
}

proptest! {
    #[test]
    fn mesh_2_no_two_statements_have_the_same_bytes(
        one in prop::collection::vec("[a-c]{0,3}", 0..4),
        other in prop::collection::vec("[a-c]{0,3}", 0..4),
    ) {
        let bytes = |capabilities: &Vec<String>| {
            let mut said = Said::by(&node("a"), [1; NONCE]);
            said.capabilities.clone_from(capabilities);
            let mut out = Vec::new();
            said.write(&mut out);
            out
        };
        prop_assert_eq!(bytes(&one) == bytes(&other), one == other);
    }
}
