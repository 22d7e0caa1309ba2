use super::*;

const A: SenderId = [1; 16];
const B: SenderId = [2; 16];

fn at(last: u8) -> SocketAddr {
    ([192, 0, 2, last], 9100).into()
}

#[test]
fn mesh_2_nobody_is_spoken_to_before_he_has_said_who_he_is() {
    let mut to = Addressees::new(4);
    assert_eq!(to.say(at(1), b"one"), Say::Greet(0));
    // The latest waits; an answer to either greeting will do.
    assert_eq!(to.say(at(1), b"two"), Say::Greet(0));
    assert_eq!(to.say(at(2), b"three"), Say::Greet(1));
    assert_eq!(to.answered(0, A, 5), Some((at(1), Some(b"two".to_vec()))));
    assert_eq!(to.answered(0, A, 5), None, "once");
    assert_eq!(to.say(at(1), b"four"), Say::To(A));
    assert_eq!(to.answered(7, B, 5), None, "nobody was greeted so");
}

#[test]
fn mesh_2_whoever_was_heard_at_an_address_is_spoken_to_there() {
    let mut to = Addressees::new(4);
    to.heard(at(1), A, 5);
    assert_eq!(to.say(at(1), b""), Say::To(A));
    // A restarted one.
    to.heard(at(1), B, 6);
    assert_eq!(to.say(at(1), b""), Say::To(B));
}

#[test]
fn mesh_2_one_that_does_not_answer_is_asked_who_he_is() {
    let mut to = Addressees::new(4);
    to.heard(at(1), A, 5);
    for _ in 0..3 {
        assert_eq!(to.say(at(1), b""), Say::To(A));
    }
    assert_eq!(to.say(at(1), b"x"), Say::Greet(0));
    assert_eq!(to.answered(0, B, 9), Some((at(1), Some(b"x".to_vec()))));
    assert_eq!(to.say(at(1), b""), Say::To(B));
}

#[test]
fn mesh_2_an_answer_from_another_address_is_one_of_the_address_that_was_greeted() {
    let mut to = Addressees::new(4);
    assert_eq!(to.say(at(1), b"x"), Say::Greet(0));
    to.heard(at(9), A, 5);
    assert_eq!(to.answered(0, A, 5), Some((at(1), Some(b"x".to_vec()))));
    assert_eq!(to.say(at(1), b""), Say::To(A));
    assert_eq!(to.say(at(9), b""), Say::To(A));
}

#[test]
fn mesh_2_who_asks_is_answered_once_he_has_been_reached_where_he_asks_from() {
    let mut to = Addressees::new(4);
    to.heard(at(1), A, 5);
    assert_eq!(to.reply(at(1), A, b"one"), Say::Greet(0));
    // That it says more proves nothing.
    to.heard(at(1), A, 6);
    assert_eq!(to.reply(at(1), A, b"two"), Say::Greet(0));
    assert_eq!(to.answered(0, A, 7), Some((at(1), Some(b"two".to_vec()))));
    to.heard(at(1), A, 8);
    assert_eq!(to.reply(at(1), A, b"three"), Say::To(A));
    // It was not reached elsewhere, nor was a later life of it here.
    to.heard(at(2), A, 9);
    assert_eq!(to.reply(at(2), A, b""), Say::Greet(1));
    to.heard(at(1), B, 9);
    assert_eq!(to.reply(at(1), B, b""), Say::Greet(2));
}

#[test]
fn mesh_2_an_answer_that_waits_is_for_nobody_but_who_asked() {
    let mut to = Addressees::new(4);
    to.heard(at(1), A, 5);
    assert_eq!(to.reply(at(1), A, b"for a"), Say::Greet(0));
    assert_eq!(to.answered(0, B, 6), Some((at(1), None)));
    assert_eq!(to.say(at(1), b""), Say::To(B));
    // What answers nobody is for whoever is there.
    assert_eq!(to.say(at(2), b"x"), Say::Greet(1));
    assert_eq!(to.answered(1, A, 6), Some((at(2), Some(b"x".to_vec()))));
    assert_eq!(to.reply(at(2), A, b""), Say::To(A));
}

#[test]
fn mesh_2_addresses_and_what_waits_for_them_are_bounded() {
    let mut to = Addressees::new(2);
    for last in 1..=3 {
        to.heard(at(last), A, u64::from(last));
    }
    assert_eq!(to.known.len(), 2);
    assert_eq!(
        to.say(at(1), b""),
        Say::Greet(0),
        "the oldest was forgotten"
    );
    for last in 4..=6 {
        to.say(at(last), b"x");
    }
    assert_eq!(to.greeted.len(), 2);
    assert_eq!(to.answered(0, A, 9), None);

    let mut to = Addressees::new(200);
    let large = vec![0; 65_507];
    for last in 0..100 {
        to.say(at(last), &large);
    }
    let waiting: usize = to.greeted.values().map(Greeted::len).sum();
    // 64 of them are less than 4 MiB.
    assert_eq!(waiting, 64 * 65_507);
    assert_eq!(to.answered(99, A, 9), Some((at(99), None)));
}
