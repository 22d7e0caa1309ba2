//! FWD-8: sessions whose stream broke.

use super::*;

/// Another stream for a session of `a`.
fn resume(b: &Bench, session: u64, received: u64) -> Entry {
    let entry = b.channel();
    entry.say(Kind::Resume(ForwardResume { session, received }));
    entry
}

#[tokio::test(start_paused = true)]
async fn fwd_8_a_broken_session_is_resumed_and_nothing_comes_twice_or_not_at_all() {
    let b = Bench::new();
    let one = b.connect("one");
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["one"])));
    assert!(a.moved().await.is_empty());
    answer(&one, "1", 0);
    assert_eq!(a.answers().await, [entry("one", "1")]);
    // This one is on its way when the link breaks, that one comes while there is none.
    answer(&one, "2", 0);
    tokio::task::yield_now().await;
    a.link.cut();
    tokio::time::advance(Duration::from_secs(4)).await;
    answer(&one, "3", 0);
    let mut a = resume(&b, 1, 2);
    let Some(Kind::Resumed(resumed)) = a.hear().await else {
        panic!("not resumed");
    };
    assert_eq!(resumed.dispatches, 1);
    assert_eq!(a.answers().await, [entry("one", "2")]);
    assert_eq!(a.answers().await, [entry("one", "3")]);
    answer(&one, "4", 1);
    assert_eq!(a.answers().await, [entry("one", "4")]);
    assert_eq!(b.sessions(), 1);
}

#[tokio::test(start_paused = true)]
async fn fwd_8_a_stream_that_is_not_known_to_be_broken_gives_way() {
    let b = Bench::new();
    let one = b.connect("one");
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["one"])));
    assert!(a.moved().await.is_empty());
    answer(&one, "1", 0);
    tokio::task::yield_now().await;
    let mut again = resume(&b, 1, 1);
    assert!(matches!(again.hear().await, Some(Kind::Resumed(_))));
    assert!(a.hear().await.is_none(), "what waited goes the other way");
    answer(&one, "2", 1);
    assert_eq!(again.answers().await, [entry("one", "1")]);
    assert_eq!(again.answers().await, [entry("one", "2")]);
}

#[tokio::test(start_paused = true)]
async fn fwd_8_after_its_grace_the_correlation_is_dropped() {
    let b = Bench::new();
    let one = b.connect("one");
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["one"])));
    assert!(a.moved().await.is_empty());
    a.link.cut();
    tokio::time::sleep(Duration::from_millis(5_001)).await;
    assert_eq!(b.sessions(), 0);
    assert!(!answer(&one, "late", 1));
    let mut a = resume(&b, 1, 1);
    assert_eq!(a.refusal().await, Reason::UnknownSession);
    assert_eq!(b.refused("unknown_session"), 1);
}
