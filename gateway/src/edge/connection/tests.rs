use super::*;

fn connection() -> Arc<Connection> {
    connection_that_may_lack_a_session(Duration::ZERO)
}

fn connection_that_may_lack_a_session(unregistered_timeout: Duration) -> Arc<Connection> {
    let limits = ConnectionLimits {
        preface_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(180),
        unregistered_timeout,
        answer_patience: Duration::from_secs(30),
        request_timeout: Duration::from_secs(30),
        max_message_bytes: 1024,
        max_memory_bytes: 1000,
        serves_agents: true,
        node_memory: NodeMemory::new(1 << 20),
    };
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
fn lsn_12_a_peer_is_not_asked_past_the_idle_time() {
    let c = connection();
    c.stream_opened();
    c.byte_received(at(&c, 0), true);
    // A look that comes late.
    assert_eq!(c.verdict(at(&c, 170)), Verdict::Ask(at(&c, 180)));
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
