//! FWD-2, FWD-5: what a peer may make this node keep.

use super::*;
use crate::command::MAX_COMMAND;

#[tokio::test(start_paused = true)]
async fn fwd_5_so_many_sessions_are_served_and_no_more() {
    let b = Bench::new();
    let (_one, two) = (b.open(1), b.open(2));
    let mut three = b.open(3);
    assert_eq!(three.refusal().await, Reason::Limit);
    assert_eq!(b.refused("limit"), 1);
    drop(two);
    tokio::task::yield_now().await;
    let mut three = b.open(3);
    three.say(Kind::Dispatch(dispatch(&["gone"])));
    assert_eq!(three.moved().await, [0]);
    // Another bound is in force at once.
    b.served.retune(&Routing {
        max_sessions: 3,
        ..Routing::default()
    });
    let mut four = b.open(4);
    four.say(Kind::Dispatch(dispatch(&["gone"])));
    assert_eq!(four.moved().await, [0]);
}

#[tokio::test(start_paused = true)]
async fn fwd_5_a_session_without_a_command_is_closed_when_it_is_idle() {
    let b = Bench::new();
    let mut a = b.open(1);
    assert!(a.hear().await.is_none());
    assert_eq!(b.sessions(), 0);
}

#[tokio::test(start_paused = true)]
async fn fwd_2_an_entry_node_that_confirms_nothing_is_sent_no_more_than_the_window() {
    let b = Bench::new();
    let one = b.connect("one");
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["one"])));
    assert!(a.moved().await.is_empty());
    let output = "x".repeat(30 << 10);
    for _ in 0..20 {
        answer(&one, &output, 0);
    }
    let mut count = 1;
    let more = async |a: &mut Entry| {
        let next = timeout(Duration::from_millis(10), a.channel.source.next()).await;
        next.is_ok()
    };
    while more(&mut a).await {
        count += 1;
    }
    // 256 KiB hold nine of them.
    assert_eq!(count, 1 + 9);
    a.say(Kind::Received(ForwardReceived { count: 3 }));
    assert!(more(&mut a).await && more(&mut a).await);
    assert!(!more(&mut a).await);
    let kept = b.served.kept.load(std::sync::atomic::Ordering::Relaxed);
    assert!(
        (9 * output.len()..10 * output.len()).contains(&kept),
        "{kept}"
    );
    drop(a);
    tokio::task::yield_now().await;
}

#[tokio::test(start_paused = true)]
async fn fwd_5_fwd_6_a_peer_has_so_many_streams_without_a_marker_and_no_more() {
    let b = Bench::new();
    let most = |max_sessions_per_owner| {
        b.served.retune(&Routing {
            max_sessions_per_owner,
            ..Routing::default()
        });
    };
    most(3);
    let mut silent: Vec<_> = (0..3).map(|_| b.channel()).collect();
    let mut more = b.open(1);
    assert_eq!(more.refusal().await, Reason::Limit);
    assert!(more.hear().await.is_none());
    assert_eq!((b.refused("limit"), b.sessions()), (1, 0));
    // Another bound is in force at once.
    most(4);
    silent.push(b.channel());
    most(2);
    assert_eq!(b.open(1).refusal().await, Reason::Limit);
    assert_eq!(b.refused("limit"), 2);
    drop(silent);
    tokio::task::yield_now().await;
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["gone"])));
    assert_eq!(a.moved().await, [0]);
    assert!(b.served.waiting().is_empty());
}

#[tokio::test(start_paused = true)]
async fn fwd_3_what_is_larger_than_a_marker_is_refused_before_there_is_one() {
    let b = Bench::new();
    let one = b.connect("one");
    let mut a = b.channel();
    a.say(Kind::Open(ForwardOpen {
        identity: "x".repeat(64 << 10),
        ..marker()
    }));
    assert_eq!(a.refusal().await, Reason::NoMarker);
    assert_eq!((b.refused("no_marker"), b.sessions()), (1, 0));
    // Behind its marker a command is as large as any, and no larger.
    let large = |len| {
        let command = CommandRequest {
            command_id: "c-1".to_owned(),
            plugin: "x".repeat(len),
            ..Default::default()
        };
        Kind::Dispatch(ForwardDispatch {
            command: Some(command.encode_to_vec().into()),
            ..dispatch(&["one"])
        })
    };
    let mut a = b.open(1);
    a.say(large(MAX_COMMAND - 64));
    assert!(a.moved().await.is_empty());
    assert_eq!(commands(&one).len(), 1);
    let mut a = b.open(2);
    a.say(large(6 << 20));
    assert_eq!(a.refusal().await, Reason::Malformed);
}

#[tokio::test(start_paused = true)]
async fn fwd_2_dispatches_that_are_never_confirmed_end_the_session() {
    let b = Bench::new();
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["gone"])));
    assert_eq!(a.moved().await, [0]);
    let more = ForwardDispatch {
        command: None,
        ..dispatch(&["gone"])
    };
    for _ in 1..256 {
        a.say(Kind::Dispatch(more.clone()));
        assert_eq!(a.moved().await, [0]);
    }
    a.say(Kind::Dispatch(more));
    assert_eq!(a.refusal().await, Reason::Malformed);
}

#[tokio::test(start_paused = true)]
async fn fwd_5_a_session_that_confirms_nothing_ends_with_its_time_and_grace() {
    let b = Bench::new();
    let one = b.connect("one");
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["one"])));
    assert!(a.moved().await.is_empty());
    let output = "x".repeat(30 << 10);
    for _ in 0..20 {
        answer(&one, &output, 0);
        tokio::task::yield_now().await;
    }
    // The caller's time, a second for clocks, and the grace.
    tokio::time::sleep(Duration::from_millis(60_000 + 1_000 + 4_990)).await;
    assert_eq!(b.sessions(), 1);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(b.sessions(), 0);
    assert!(a.hear().await.is_none(), "nobody wants what waited");
}

#[tokio::test(start_paused = true)]
async fn fwd_5_commands_of_all_sessions_together_have_so_much_room() {
    let b = Bench::new();
    b.served.retune(&Routing {
        max_inflight_bytes: 6 << 20,
        ..Routing::default()
    });
    let large = || {
        let command = CommandRequest {
            command_id: "c-1".to_owned(),
            plugin: "x".repeat(3 << 20),
            ..Default::default()
        };
        Kind::Dispatch(ForwardDispatch {
            command: Some(command.encode_to_vec().into()),
            ..dispatch(&["gone"])
        })
    };
    let mut a = b.open(1);
    a.say(large());
    assert_eq!(a.moved().await, [0]);
    let mut more = b.open(2);
    more.say(large());
    assert_eq!(more.refusal().await, Reason::Limit);
    assert_eq!(b.refused("limit"), 1);
    let mut small = b.open(3);
    small.say(Kind::Dispatch(dispatch(&["gone"])));
    assert_eq!(small.moved().await, [0]);
    drop((a, small));
    tokio::task::yield_now().await;
    assert_eq!(b.served.commands.held(), 0);
    let mut a = b.open(4);
    a.say(large());
    assert_eq!(a.moved().await, [0]);
}

/// A command of 3 MiB.
fn large() -> Bytes {
    let command = CommandRequest {
        command_id: "c-1".to_owned(),
        plugin: "x".repeat(3 << 20),
        ..Default::default()
    };
    encode(Kind::Dispatch(ForwardDispatch {
        command: Some(command.encode_to_vec().into()),
        ..dispatch(&["gone"])
    }))
}

/// Another bound for the commands of all sessions.
fn room(b: &Bench, max_inflight_bytes: usize) {
    b.served.retune(&Routing {
        max_inflight_bytes,
        ..Routing::default()
    });
}

#[tokio::test(start_paused = true)]
async fn fwd_5_fwd_6_a_command_in_pieces_that_finds_no_room_reaches_a_bound() {
    let b = Bench::new();
    room(&b, 4 << 20);
    let mut a = b.open(1);
    a.channel.sink.push(large());
    assert_eq!(a.moved().await, [0]);
    let mut more = b.open(2);
    more.channel.sink.push(large().slice(..2 << 20));
    assert_eq!(more.refusal().await, Reason::Limit);
    assert_eq!((b.refused("limit"), b.refused("malformed")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn fwd_6_a_session_whose_command_runs_goes_on_when_others_have_all_the_room() {
    let b = Bench::new();
    let one = b.connect("one");
    let mut a = b.open(1);
    a.say(Kind::Dispatch(dispatch(&["one"])));
    assert!(a.moved().await.is_empty());
    let mut other = b.open(2);
    other.channel.sink.push(large());
    assert_eq!(other.moved().await, [0]);
    room(&b, 1 << 20);
    let more = encode(Kind::Dispatch(ForwardDispatch {
        command: None,
        agent_ids: vec!["01234567-89ab-cdef-0123-456789abcdef".to_owned(); 2_048],
    }));
    a.channel.sink.push(more.slice(..more.len() - 1));
    tokio::task::yield_now().await;
    a.channel.sink.push(more.slice(more.len() - 1..));
    assert_eq!(a.moved().await.len(), 2_048);
    answer(&one, "done", 1);
    assert_eq!(a.answers().await, [entry("one", "done")]);
}
