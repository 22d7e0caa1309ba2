use super::super::pause::Paused;
use super::*;

fn connection() -> Arc<Connection> {
    connection_with(|_| ())
}

fn connection_that_may_lack_a_session(unregistered_timeout: Duration) -> Arc<Connection> {
    connection_with(|limits| limits.unregistered_timeout = unregistered_timeout)
}

fn connection_with(change: impl FnOnce(&mut ConnectionLimits)) -> Arc<Connection> {
    let mut limits = ConnectionLimits {
        preface_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(180),
        unregistered_timeout: Duration::ZERO,
        answer_patience: Duration::from_secs(30),
        request_timeout: Duration::from_secs(30),
        max_message_bytes: 1024,
        max_memory_bytes: 1000,
        serves_agents: true,
        node_memory: NodeMemory::new(1 << 20),
    };
    change(&mut limits);
    let metrics = Arc::new(Metrics::new("test").unwrap());
    Connection::new(
        "[::ffff:192.0.2.7]:1234".parse().unwrap(),
        Arc::new(limits),
        metrics,
    )
}

fn at(connection: &Connection, seconds: u64) -> Instant {
    connection.opened + Duration::from_secs(seconds)
}

#[test]
fn origin_4_an_ipv4_mapped_peer_is_folded() {
    assert_eq!(connection().peer_ip().to_string(), "192.0.2.7");
}

#[test]
fn a_connection_without_a_session_has_to_go_whatever_it_sends() {
    let c = connection_that_may_lack_a_session(Duration::from_secs(120));
    let gone = Verdict::Close(CloseReason::Unregistered);
    c.byte_received(at(&c, 119), true);
    assert_eq!(c.verdict(at(&c, 119)), Verdict::CheckAt(at(&c, 120)));
    assert_eq!(c.verdict(at(&c, 120)), gone);
    c.session_began();
    c.session_began();
    assert_eq!(c.verdict(at(&c, 200)), Verdict::CheckAt(at(&c, 260)));
    c.session_ended(at(&c, 150));
    assert_eq!(c.verdict(at(&c, 298)), Verdict::CheckAt(at(&c, 299)));
    c.session_ended(at(&c, 160));
    assert_eq!(c.verdict(at(&c, 279)), Verdict::CheckAt(at(&c, 280)));
    assert_eq!(c.verdict(at(&c, 280)), gone);
}

#[test]
fn half_a_preface_is_closed_after_the_preface_timeout() {
    let c = connection();
    c.byte_received(at(&c, 9), false);
    assert_eq!(c.verdict(at(&c, 9)), Verdict::CheckAt(at(&c, 10)));
    assert_eq!(
        c.verdict(at(&c, 10)),
        Verdict::Close(CloseReason::NoPreface)
    );
}

#[test]
fn the_preface_is_waited_for_after_the_handshake() {
    let c = connection();
    c.secured(at(&c, 7));
    assert_eq!(c.verdict(at(&c, 16)), Verdict::CheckAt(at(&c, 17)));
    assert_eq!(
        c.verdict(at(&c, 17)),
        Verdict::Close(CloseReason::NoPreface)
    );
}

#[test]
fn lsn_4_no_byte_for_the_idle_timeout_closes() {
    let c = connection();
    c.byte_received(at(&c, 20), true);
    assert_eq!(c.verdict(at(&c, 21)), Verdict::CheckAt(at(&c, 80)));
    assert_eq!(c.verdict(at(&c, 80)), Verdict::CheckAt(at(&c, 140)));
    assert_eq!(c.verdict(at(&c, 140)), Verdict::CheckAt(at(&c, 200)));
    assert_eq!(c.verdict(at(&c, 200)), Verdict::Close(CloseReason::Idle));
    c.byte_received(at(&c, 200), true);
    assert_eq!(c.verdict(at(&c, 200)), Verdict::CheckAt(at(&c, 260)));
}

#[test]
fn lsn_12_a_silent_peer_with_an_open_stream_is_asked_after_a_third_of_the_idle_time() {
    let c = connection();
    c.byte_received(at(&c, 20), true);
    c.stream_opened();
    assert_eq!(c.verdict(at(&c, 79)), Verdict::CheckAt(at(&c, 80)));
    assert!(!c.takes_ask());
    assert_eq!(c.verdict(at(&c, 80)), Verdict::Ask(at(&c, 100)));
    c.ask(at(&c, 80));
    assert!(c.takes_ask());
    assert!(!c.takes_ask(), "one PING");
    assert_eq!(c.verdict(at(&c, 99)), Verdict::CheckAt(at(&c, 100)));
    let dead = Verdict::Close(CloseReason::PingNotAnswered);
    assert_eq!(c.verdict(at(&c, 100)), dead);
    // Its answer is a byte as any other.
    c.byte_received(at(&c, 99), true);
    assert_eq!(c.verdict(at(&c, 100)), Verdict::CheckAt(at(&c, 159)));
    assert_eq!(c.verdict(at(&c, 159)), Verdict::Ask(at(&c, 179)));
    c.ask(at(&c, 159));
    // The stream has ended: nothing is kept open, and nobody is waited for.
    c.stream_closed();
    assert_eq!(c.verdict(at(&c, 179)), Verdict::CheckAt(at(&c, 239)));
    assert_eq!(c.verdict(at(&c, 279)), Verdict::Close(CloseReason::Idle));
}

#[test]
fn lsn_12_a_peer_with_streams_is_asked_before_it_is_taken_for_dead_however_late() {
    let c = connection();
    c.stream_opened();
    c.byte_received(at(&c, 0), true);
    // The process stood still for longer than the idle time.
    assert_eq!(c.verdict(at(&c, 400)), Verdict::Ask(at(&c, 420)));
    c.ask(at(&c, 400));
    assert_eq!(c.verdict(at(&c, 419)), Verdict::CheckAt(at(&c, 420)));
    let dead = Verdict::Close(CloseReason::PingNotAnswered);
    assert_eq!(c.verdict(at(&c, 420)), dead);
    c.byte_received(at(&c, 401), true);
    assert_eq!(c.verdict(at(&c, 420)), Verdict::CheckAt(at(&c, 461)));
}

#[test]
fn lsn_12_with_a_short_idle_time_it_is_what_ends_the_wait() {
    let c = connection_with(|limits| limits.idle_timeout = Duration::from_secs(6));
    c.stream_opened();
    c.byte_received(at(&c, 0), true);
    assert_eq!(c.verdict(at(&c, 2)), Verdict::Ask(at(&c, 6)));
    // Asked late, it has a third of that time at least.
    assert_eq!(c.verdict(at(&c, 5)), Verdict::Ask(at(&c, 7)));
}

#[test]
fn cmd_22_a_connection_that_is_not_read_is_not_taken_for_silent() {
    let c = connection();
    c.byte_received(at(&c, 0), true);
    let paused = Paused::new(&c);
    assert_eq!(c.verdict(at(&c, 180)), Verdict::CheckAt(at(&c, 240)));
    drop(paused);
    assert_eq!(c.verdict(at(&c, 180)), Verdict::Close(CloseReason::Idle));
}

#[tokio::test(start_paused = true)]
async fn an_answer_nobody_takes_closes_the_connection() {
    let c = connection();
    c.byte_received(at(&c, 0), true);
    assert_eq!(c.verdict(at(&c, 0)), Verdict::CheckAt(at(&c, 60)));
    tokio::time::advance(Duration::from_secs(5)).await;
    let mut answer = c.watch(Bytes::from_static(b"answer"));
    assert_eq!(answer, "answer");
    assert_eq!(c.verdict(at(&c, 34)), Verdict::CheckAt(at(&c, 35)));
    let written = answer.split_to(2);
    drop(written);
    assert_eq!(
        c.verdict(at(&c, 35)),
        Verdict::Close(CloseReason::AnswerNotTaken)
    );
    drop(answer);
    assert_eq!(c.verdict(at(&c, 35)), Verdict::CheckAt(at(&c, 60)));
}
