//! Callers that do not read.

use super::*;

#[tokio::test(start_paused = true)]
async fn cmd_22_a_caller_that_does_not_read_ends_with_8_at_its_timeout_and_agents_read_on() {
    let mut b = Bench::new(2);
    advance(Duration::from_secs(60)).await;
    let start = Instant::now();
    b.fill(0);
    assert!(b.try_running(0, 8 << 10), "the allowance");
    let reply = running(1);
    assert!(!b.fanout.try_reply(0, &reply));
    // The agent is paused until the caller is given up, to the millisecond.
    let paused = timeout(SLOW * 2, b.fanout.reply_when_room(0, &reply));
    paused.await.expect("the agent is released");
    assert_eq!(start.elapsed(), SLOW);
    assert!(b.fanout.is_over());
    assert!(b.try_running(1, 1 << 20), "agents read on");
    assert!(b.fanout.state().backlog.is_empty(), "what waited is gone");
    assert_eq!(b.status().await, 8);
}

#[tokio::test(start_paused = true)]
async fn cmd_22_it_ends_as_well_when_no_agent_waits() {
    let b = Bench::new(2);
    b.fill(0);
    assert!(b.try_running(1, 1));
    sleep(SLOW - Duration::from_millis(1)).await;
    assert!(!b.fanout.is_over());
    sleep(Duration::from_millis(2)).await;
    assert_eq!(b.fanout.state().end, Some(End::SlowCaller));
}

#[tokio::test(start_paused = true)]
async fn cmd_22_a_caller_is_not_given_up_while_the_bound_is_not_reached() {
    let mut b = Bench::new(1);
    b.fill(0);
    sleep(SLOW * 10).await;
    assert_eq!(b.data().await.len(), BUFFER);
    assert!(!b.fanout.is_over());
}

#[tokio::test(start_paused = true)]
async fn cmd_22_a_caller_that_reads_is_never_ended_and_gets_everything_in_order() {
    let mut b = Bench::new(1);
    let fanout = Arc::clone(&b.fanout);
    tokio::spawn(async move {
        for n in 0..50_u8 {
            let reply = Reply {
                frame: Bytes::from(vec![n; 40 << 10]),
                terminal: (n == 49).then_some(1),
            };
            if !fanout.try_reply(0, &reply) {
                fanout.reply_when_room(0, &reply).await;
            }
        }
    });
    for n in 0..50_u8 {
        assert_eq!(b.data().await, vec![n; 40 << 10]);
        sleep(SLOW - Duration::from_millis(1)).await;
    }
    assert_eq!(b.status().await, 0);
}

#[tokio::test(start_paused = true)]
async fn cmd_22_a_caller_that_16_mib_pass_by_has_a_quarter_of_a_second() {
    let b = Bench::new(200);
    let start = Instant::now();
    for target in 0..17 {
        b.fanout.try_reply(target, &running(1 << 20));
    }
    while !b.fanout.is_over() {
        sleep(Duration::from_millis(1)).await;
    }
    // The watchdog looked ten times within the whole time.
    let took = start.elapsed().as_millis();
    assert!((250..=251).contains(&took), "{took} ms");
    assert_eq!(b.metrics.command_slow_callers_total.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn fwd_8_cmd_22_a_caller_that_can_not_be_reached_has_its_time_when_it_can_be() {
    let b = Bench::new(200);
    b.fill(0);
    b.fill(0);
    sleep(SLOW / 2).await;
    b.fanout.cut_off(true);
    for target in 0..64 {
        b.fanout.try_reply(target, &running(1 << 20));
    }
    sleep(SLOW * 3).await;
    assert!(!b.fanout.is_over());

    let b = Bench::new(2);
    b.fill(0);
    b.fill(0);
    b.fanout.cut_off(true);
    sleep(SLOW * 3).await;
    b.fanout.cut_off(false);
    sleep(SLOW - Duration::from_millis(1)).await;
    assert!(!b.fanout.is_over());
    sleep(SLOW / 5).await;
    assert!(b.fanout.is_over());
}

#[tokio::test(start_paused = true)]
async fn fwd_8_cmd_22_what_passed_a_caller_by_that_could_not_be_reached_does_not_shorten_its_time()
{
    let b = Bench::new(200);
    b.fanout.cut_off(true);
    for target in 0..65 {
        b.fanout.try_reply(target, &running(1 << 20));
    }
    b.fanout.cut_off(false);
    sleep(SLOW - Duration::from_millis(1)).await;
    assert!(!b.fanout.is_over());
    sleep(SLOW / 5).await;
    assert!(b.fanout.is_over());
}

#[tokio::test(start_paused = true)]
async fn cmd_22_up_to_16_mib_it_has_its_whole_time() {
    let b = Bench::new(200);
    for target in 0..16 {
        b.fanout.try_reply(target, &running(1 << 20));
    }
    sleep(SLOW - Duration::from_millis(1)).await;
    assert!(!b.fanout.is_over());
}

#[tokio::test(start_paused = true)]
async fn cmd_22_a_caller_that_64_mib_pass_by_has_no_time_at_all() {
    let b = Bench::new(200);
    for target in 0..64 {
        b.fanout.try_reply(target, &running(1 << 20));
    }
    assert!(!b.fanout.is_over());
    let callers = Arc::clone(&b.fanout.callers);
    assert_eq!(callers.pool.held(), 8 << 20);
    assert!(b.fanout.try_reply(64, &running(1)), "taken, and dropped");
    assert_eq!(b.fanout.state().end, Some(End::SlowCaller));
    assert_eq!(callers.pool.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn cmd_22_a_flood_does_not_end_a_caller_that_reads() {
    let mut b = Bench::new(200);
    let megabyte = running(1 << 20);
    for round in 0..4 {
        for target in 0..16 {
            b.fanout.try_reply(round * 16 + target, &megabyte);
        }
        advance(SLOW - Duration::from_millis(1)).await;
        assert_eq!(b.data().await.len(), 1 << 20);
    }
    assert!(!b.fanout.is_over());
}

#[tokio::test]
async fn cmd_22_a_reply_larger_than_the_buffer_passes() {
    let mut b = Bench::new(2);
    for target in [0, 1] {
        assert!(b.try_running(target, BUFFER * 3));
        assert_eq!(b.data().await.len(), BUFFER * 3);
    }
}

#[tokio::test]
async fn sub_12_an_agent_with_answers_for_a_full_caller_goes_on_serving_others() {
    let (full, other) = (Bench::new(10), Bench::new(10));
    full.fill(0);
    for target in 1..10 {
        assert!(full.try_running(target, 8 << 10));
        assert!(other.fanout.try_reply(target, &terminal("b")));
    }
}

/// Each may have 16 MiB waiting, all together 64.
fn roomy() -> Arc<Callers> {
    Callers::new(CallerLimits {
        buffer_bytes: 16 << 20,
        slow_timeout: SLOW,
    })
}

/// Callers that have taken nothing, each with `count` answers of 1 MiB waiting.
fn unread(callers: &Arc<Callers>, count: u32) -> Bench {
    let b = Bench::among(callers, 64, TIMEOUT);
    for target in 0..count {
        assert!(b.fanout.try_reply(target, &running(1 << 20)));
    }
    b
}

fn ended(b: &Bench) -> bool {
    b.fanout.state().end == Some(End::SlowCaller)
}

#[tokio::test(start_paused = true)]
async fn cmd_22_a_node_without_room_gives_up_callers_that_read_nothing_largest_first() {
    let callers = roomy();
    let (small, large) = (unread(&callers, 10), unread(&callers, 16));
    let others = [13, 13, 12].map(|count| unread(&callers, count));
    let mut reader = Bench::among(&callers, 2, TIMEOUT);
    assert!(reader.try_running(0, 1 << 10), "one is always taken");
    let reply = running(1 << 20);
    assert!(!reader.fanout.try_reply(1, &reply), "64 MiB wait");
    let start = Instant::now();
    let agent = reader.fanout.reply_when_room(1, &reply);
    timeout(SLOW, agent).await.expect("the agent goes on");
    let took = start.elapsed().as_millis();
    assert!((250..=301).contains(&took), "{took} ms");
    // Without 16, 13 and 13 MiB of the 64 less than half is left.
    assert!(ended(&large));
    assert_eq!(others.each_ref().map(ended), [true, true, false]);
    assert!(!ended(&small) && !ended(&reader));
    assert_eq!(reader.data().await.len(), 1 << 10);
    assert_eq!(reader.data().await.len(), 1 << 20);
}

#[tokio::test(start_paused = true)]
async fn cmd_22_a_caller_that_reads_is_not_given_up_for_the_node() {
    let callers = roomy();
    let mut reader = unread(&callers, 15);
    let stuck = unread(&callers, 15);
    let others = [16, 16].map(|count| unread(&callers, count));
    for _ in 0..6 {
        assert_eq!(reader.data().await.len(), 1 << 20);
        for target in 40..44 {
            if !reader.fanout.try_reply(target, &running(1 << 20)) {
                break;
            }
        }
        sleep(Duration::from_millis(200)).await;
    }
    assert!(!ended(&reader));
    assert!(ended(&stuck) || others.iter().any(ended));
}

#[tokio::test(start_paused = true)]
async fn cmd_22_after_its_timeout_a_caller_that_does_not_read_is_given_up_as_well() {
    let callers = callers();
    let mut b = Bench::among(&callers, 2, Duration::from_secs(1));
    b.fill(0);
    assert!(b.try_running(0, 8 << 10));
    b.fanout.finish(End::TimedOut);
    sleep(SLOW + Duration::from_millis(1)).await;
    assert_eq!(callers.pool.held(), 0);
    assert_eq!(b.status().await, 8);
}

#[tokio::test]
async fn a_caller_that_left_is_forgotten() {
    let callers = callers();
    let benches: Vec<_> = (0..10).map(|_| unread(&callers, 1)).collect();
    drop(benches);
    assert_eq!(callers.pool.held(), 0);
    assert_eq!(callers.callers(), 0);
}
