use proptest::prelude::*;

use super::*;
use crate::config::Secret;

const NOW: u64 = 1_800_000_000_000;
/// Who opens.
const OWN: SenderId = [9; 16];

fn keys(secret: &str) -> Keys {
    Keys::derive(&Secret::new(secret))
}

fn pair() -> (Sealer, Opener) {
    let keys = keys("the secret of this cluster, 32 characters");
    (Sealer::new(&keys, [7; 16]), Opener::new(keys, 4))
}

fn one(sealer: &mut Sealer, payload: &[u8]) -> Vec<u8> {
    let datagrams = sealer.seal(&OWN, payload, NOW).expect("it fits");
    <[_; 1]>::try_from(datagrams).expect("one datagram")[0].clone()
}

fn open(opener: &mut Opener, datagram: &[u8]) -> Result<Option<Vec<u8>>, Rejected> {
    said(opener.open(&mut datagram.to_vec(), &OWN, NOW))
}

/// The payload of what was opened.
fn said(opened: Result<Option<(SenderId, Said)>, Rejected>) -> Result<Option<Vec<u8>>, Rejected> {
    opened.map(|said| {
        said.map(|(_, said)| match said {
            Said::Payload(payload) => payload,
            other => panic!("{other:?}"),
        })
    })
}

#[test]
fn mesh_2_a_payload_comes_out_as_it_went_in_and_can_not_be_read_between() {
    let (mut sealer, mut opener) = pair();
    let datagram = one(&mut sealer, b"node-a is alive");
    assert_eq!(datagram.len(), HEADER + 15 + TAG);
    assert!(!datagram.windows(6).any(|bytes| bytes == b"node-a"));
    assert_eq!(
        open(&mut opener, &datagram),
        Ok(Some(b"node-a is alive".to_vec()))
    );
    let datagram = one(&mut sealer, b"");
    assert_eq!(open(&mut opener, &datagram), Ok(Some(vec![])));
}

#[test]
fn mesh_2_a_datagram_of_another_secret_is_forged_and_leaves_nothing() {
    let (_, mut opener) = pair();
    let mut stranger = Sealer::new(&keys("another secret, which is as long as it"), [8; 16]);
    for _ in 0..10 {
        let datagram = one(&mut stranger, b"node-a is mine");
        assert_eq!(open(&mut opener, &datagram), Err(Rejected::Forged));
    }
    assert_eq!(opener.senders.len(), 0);
}

#[test]
fn mesh_2_a_changed_bit_anywhere_is_refused() {
    let (mut sealer, mut opener) = pair();
    let datagram = one(&mut sealer, b"payload");
    for at in 0..datagram.len() {
        let mut changed = datagram.clone();
        changed[at] ^= 1;
        let outcome = open(&mut opener, &changed);
        assert!(
            matches!(
                outcome,
                Err(Rejected::Forged | Rejected::Malformed | Rejected::Version)
            ),
            "byte {at}: {outcome:?}"
        );
    }
    assert!(open(&mut opener, &datagram).is_ok());
}

#[test]
fn mesh_2_a_datagram_is_taken_once() {
    let (mut sealer, mut opener) = pair();
    let datagrams: Vec<_> = (0..5).map(|n| one(&mut sealer, &[n])).collect();
    for at in [2, 0, 4, 1, 3] {
        assert_eq!(open(&mut opener, &datagrams[at]), Ok(Some(vec![at as u8])));
    }
    for datagram in &datagrams {
        assert_eq!(open(&mut opener, datagram), Err(Rejected::Replayed));
    }
}

#[test]
fn mesh_2_a_datagram_far_behind_the_others_is_taken_for_a_replay() {
    let (mut sealer, mut opener) = pair();
    let datagrams: Vec<_> = (0..130).map(|_| one(&mut sealer, b"x")).collect();
    assert!(open(&mut opener, &datagrams[129]).is_ok());
    // 128 counters end with 129: 2 is the first of them.
    assert!(open(&mut opener, &datagrams[2]).is_ok());
    assert_eq!(open(&mut opener, &datagrams[1]), Err(Rejected::Replayed));
}

#[test]
fn mesh_2_a_datagram_of_an_earlier_life_of_the_window_is_stale() {
    let (mut sealer, _) = pair();
    let datagram = one(&mut sealer, b"x");
    let fresh = || Opener::new(keys("the secret of this cluster, 32 characters"), 4);
    for (now, outcome) in [
        (NOW + 60_000, Ok(Some(b"x".to_vec()))),
        (NOW + 60_001, Err(Rejected::Stale)),
        (NOW - 60_000, Ok(Some(b"x".to_vec()))),
        (NOW - 60_001, Err(Rejected::Stale)),
    ] {
        assert_eq!(
            said(fresh().open(&mut datagram.clone(), &OWN, now)),
            outcome,
            "{now}"
        );
    }
}

#[test]
fn mesh_2_senders_are_bounded_and_only_those_who_are_silent_give_way() {
    let (_, mut opener) = pair();
    let keys = keys("the secret of this cluster, 32 characters");
    let from = |id: u8, at: u64| {
        let mut sealed = Sealer::new(&keys, [id; 16])
            .seal(&OWN, b"x", at)
            .expect("it fits");
        sealed.remove(0)
    };
    for id in 0..4 {
        assert!(opener.open(&mut from(id, NOW), &OWN, NOW).is_ok());
    }
    let refused = opener.open(&mut from(4, NOW), &OWN, NOW);
    assert_eq!(refused, Err(Rejected::TooManySenders));
    let later = NOW + 60_001;
    assert!(opener.open(&mut from(5, later), &OWN, later).is_ok());
    assert_eq!(opener.senders.len(), 1);
    // What was forgotten is still not taken again.
    let replayed = opener.open(&mut from(0, NOW), &OWN, later);
    assert_eq!(replayed, Err(Rejected::Stale));
}

#[test]
fn a_payload_over_one_part_travels_in_two_and_a_larger_one_not_at_all() {
    let (mut sealer, mut opener) = pair();
    let payload: Vec<u8> = (0..65_507u32).map(|n| n as u8).collect();
    let datagrams = sealer.seal(&OWN, &payload, NOW).expect("it fits");
    assert_eq!(datagrams.len(), 2);
    assert!(
        datagrams
            .iter()
            .all(|datagram| datagram.len() <= MAX_DATAGRAM)
    );
    assert_eq!(open(&mut opener, &datagrams[0]), Ok(None));
    assert_eq!(open(&mut opener, &datagrams[1]), Ok(Some(payload.clone())));
    assert!(sealer.seal(&OWN, &vec![0; 2 * PART + 1], NOW).is_none());

    // The second part of one payload does not complete the first part of another.
    let (one, other) = (
        sealer.seal(&OWN, &payload, NOW),
        sealer.seal(&OWN, &payload, NOW),
    );
    assert_eq!(open(&mut opener, &one.expect("it fits")[0]), Ok(None));
    assert_eq!(open(&mut opener, &other.expect("it fits")[1]), Ok(None));
}

#[test]
fn mesh_2_a_datagram_for_another_node_is_refused_and_leaves_nothing() {
    let (mut sealer, mut opener) = pair();
    let datagrams = sealer.seal(&[8; 16], b"x", NOW).expect("it fits");
    let captured = open(&mut opener, &datagrams[0]);
    assert_eq!(captured, Err(Rejected::Misaddressed));
    assert_eq!(opener.senders.len(), 0);
    // An answer as well: it would have another node taken for this one.
    let answer = sealer.answer(&[8; 16], 3, NOW);
    assert_eq!(open(&mut opener, &answer), Err(Rejected::Misaddressed));
    // What is for nobody in particular can't be a payload.
    let datagrams = sealer.seal(&ANYBODY, b"x", NOW).expect("it fits");
    let captured = open(&mut opener, &datagrams[0]);
    assert_eq!(captured, Err(Rejected::Misaddressed));
}

#[test]
fn mesh_2_a_greeting_is_for_anybody_and_its_answer_is_no_larger() {
    let (mut sealer, mut opener) = pair();
    let greeting = sealer.greet(3, NOW);
    let mut open = |datagram: &[u8]| opener.open(&mut datagram.to_vec(), &OWN, NOW);
    let asked = Ok(Some(([7; 16], Said::Greeting(3))));
    assert_eq!(open(&greeting), asked);
    assert_eq!(open(&greeting), Err(Rejected::Replayed));
    let answer = sealer.answer(&OWN, 3, NOW);
    assert_eq!(open(&answer), Ok(Some(([7; 16], Said::Answer(3)))));
    assert_eq!(answer.len(), greeting.len());
}

#[test]
fn mesh_2_a_datagram_of_the_previous_form_is_told_from_a_stray_one() {
    let (_, mut opener) = pair();
    // Version, sender, counter, time, part, parts, sealed bytes.
    let previous = [&[1][..], &[7; 16], &[0; 16], &[0, 1], &[5; 40]].concat();
    assert_eq!(open(&mut opener, &previous), Err(Rejected::Version));
    assert_eq!(
        open(&mut opener, b"GET / HTTP/1.1"),
        Err(Rejected::Malformed)
    );
    assert_eq!(open(&mut opener, b""), Err(Rejected::Malformed));
}

proptest! {
    #[test]
    fn mesh_2_no_bytes_panic_and_none_are_believed(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let (_, mut opener) = pair();
        prop_assert!(opener.open(&mut bytes, &OWN, NOW).is_err());
    }

    #[test]
    fn mesh_2_in_any_order_each_counter_passes_at_most_once(
        order in prop::collection::vec(0usize..200, 1..400),
    ) {
        let (mut sealer, mut opener) = pair();
        let datagrams: Vec<_> = (0..200).map(|_| one(&mut sealer, b"x")).collect();
        let mut passed = std::collections::HashSet::new();
        for at in order {
            if open(&mut opener, &datagrams[at]).is_ok() {
                prop_assert!(passed.insert(at));
            }
        }
    }
}
