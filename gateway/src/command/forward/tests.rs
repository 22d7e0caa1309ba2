use std::time::Duration;

use tokio::time::{advance, sleep};

use super::super::callers::{CallerLimits, Callers};
use super::super::fanout::{FanoutBody, LINGER};
use super::super::metrics::MetricsOfCommands;
use super::*;
use crate::config::Config;
use crate::session::Events;
use crate::session::testing::registry;

#[test]
fn fwd_5_nothing_is_sent_without_a_millisecond_of_the_caller_s_time() {
    let now = Instant::now();
    let command = Forwarded {
        frame: Bytes::new(),
        command_id: Bytes::new(),
        caller: String::new(),
        deadline: now + Duration::from_millis(10),
    };
    let left_after = |micros| command.left_ms(now + Duration::from_micros(micros));
    assert_eq!(left_after(0), Some(10));
    assert_eq!(left_after(9_000), Some(1));
    assert_eq!(left_after(9_001), None);
    assert_eq!(left_after(20_000), None);
}

/// How many targets are counted as lost when the caller of one that waits for its owner leaves so
/// long after its time.
async fn lost_when_it_leaves(after: Duration) -> u64 {
    let timeout = Duration::from_secs(1);
    let metrics = Arc::new(Metrics::new("a").unwrap());
    let registry = Arc::new(registry());
    let sharing = Sharing::new(&registry, &Arc::new(Events::new()), &metrics, false);
    let routing = Routing {
        connect_timeout: Duration::from_secs(5),
        ..Routing::default()
    };
    let channels = Channels::new(&"a".into());
    let forwarder = Forwarder::new(&registry, sharing, channels, &metrics, &routing, false);
    let of_commands = MetricsOfCommands::new(Arc::clone(&metrics));
    let callers = Callers::new(CallerLimits {
        buffer_bytes: 1 << 20,
        slow_timeout: Duration::from_secs(5),
    });
    let fanout = Fanout::new(
        1,
        "c-1".to_owned(),
        of_commands.of("shell"),
        &callers,
        timeout,
    );
    let body = FanoutBody::new(Arc::clone(&fanout));
    let local = Arc::new(Local::new(of_commands, Config::default().command));
    let owner = Place {
        node: "b".into(),
        epoch: Epoch::from_number(1).unwrap(),
    };
    let command = Forwarded {
        frame: Bytes::new(),
        command_id: Bytes::new(),
        caller: String::new(),
        deadline: Instant::now() + timeout,
    };
    let targets = vec![(0, "agent".into(), owner)];
    forwarder.forward(&fanout, &local, targets, command);
    advance(timeout + after).await;
    drop(body);
    // The clock goes on when all others have done what they had to do.
    sleep(Duration::from_millis(1)).await;
    assert_eq!(Arc::strong_count(&forwarder), 1, "the call is over");
    let family = &metrics.forward_requests_total;
    family.with_label_values(&["not_connected"]).get()
}

#[tokio::test(start_paused = true)]
async fn fwd_6_a_caller_that_leaves_before_owners_had_to_say_how_it_ended_blames_none() {
    let early = LINGER - Duration::from_millis(1);
    assert_eq!(lost_when_it_leaves(early).await, 0);
    assert_eq!(lost_when_it_leaves(LINGER).await, 1);
}
