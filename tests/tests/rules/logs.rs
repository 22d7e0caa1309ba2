//! LOG and CMD-19: what never stands in a log.

use crate::support::{command, soon, success};
use prost::Message;
use std::io::Write;
use std::sync::LazyLock;
use tokio::sync::watch;
use tonic::Code;
use yuzu_proto::agent::v1::{CommandRequest, CommandResponse, HeartbeatRequest, InventoryReport};
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_server_stub::{Action, Fault, Rpc};
use yuzu_tests::testbed::{Setup, TestBed};

#[derive(Clone, Default)]
pub(crate) struct Log(watch::Sender<Vec<u8>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.send_modify(|text| text.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.borrow()).into_owned()
    }

    /// Waits until what was written is so.
    pub(crate) async fn becomes(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        let mut written = self.0.subscribe();
        let so = written.wait_for(|text| is_so(&String::from_utf8_lossy(text)));
        let so = soon(what, so).await;
        drop(so.expect("it is written to as long as this one lives"));
    }
}

/// While there is one subscriber only, tracing asks the thread that first meets a line whether
/// anybody wants it, and a test without a log would answer for all. So there are two.
static SECOND: LazyLock<tracing::Dispatch> = LazyLock::new(|| {
    let everything = tracing_subscriber::fmt().with_env_filter("yuzu_gateway=trace");
    tracing::Dispatch::new(everything.with_writer(std::io::sink).finish())
});

/// Everything the gateway writes on this thread, which is the whole runtime of a test.
pub(crate) fn capture() -> (Log, tracing::subscriber::DefaultGuard) {
    LazyLock::force(&SECOND);
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter("yuzu_gateway=trace")
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    (log, tracing::subscriber::set_default(subscriber))
}

const SECRET: &str = "s3cr3t";

fn secret(of: &str) -> String {
    format!("{SECRET}-{of}")
}

#[tokio::test]
async fn cmd_19_and_log_3_no_secret_of_a_message_stands_in_a_log() {
    let (log, _guard) = capture();
    let bed = TestBed::start().await;
    let mut agent = bed.bare_agent("a").await;
    let mut request = agent.register_request();
    request.enrollment_token = secret("token");
    request.csr_pem = secret("csr");
    request.machine_certificate = secret("certificate").into_bytes().into();
    request.attestation_signature = secret("signature").into_bytes().into();
    // Refused by the server with a text of its own, refused by the gateway, then accepted.
    let refusal = Action::Status(Code::Internal, "broken".into());
    bed.server
        .fault(Fault::new(Rpc::ProxyRegister, refusal).times(1))
        .unwrap();
    agent.register_raw(&request.encode_to_vec()).await.unwrap();
    let mut broken = request.encode_to_vec();
    broken.extend([0x12, 1, 0xff]);
    agent.register_raw(&broken).await.unwrap();
    agent.register().await.unwrap();
    agent.subscribe().await.unwrap();
    bed.notice(Event::Connected, &agent.session_id).await;

    let operator = bed.operator().await;
    let sent = CommandRequest {
        parameters: [("password".to_owned(), secret("parameter"))].into(),
        payload: secret("payload").into_bytes().into(),
        ..command("c")
    };
    let mut fanout = operator.send(&["a"], sent.clone(), 20).await.unwrap();
    agent.command().await.unwrap();
    let answer = CommandResponse {
        payload: secret("answer").into_bytes().into(),
        ..success("c", &secret("output"))
    };
    agent.answer(&answer).await.unwrap();
    // Once more for nobody, and a panic of the owner with a command in flight.
    agent.answer(&answer).await.unwrap();
    fanout.rest().await.unwrap();
    let mut fanout = operator.send(&["a"], sent, 20).await.unwrap();
    agent.command().await.unwrap();
    assert!(bed.gateway.inject_owner_panic("a"));
    fanout.rest().await.unwrap();

    let beat = HeartbeatRequest {
        session_id: agent.session_id.clone(),
        status_tags: [(secret("tag"), secret("value"))].into(),
        ..Default::default()
    };
    agent.heartbeat_raw(&beat.encode_to_vec()).await.unwrap();
    let report = InventoryReport {
        session_id: secret("session"),
        plugin_data: [("p".to_owned(), secret("inventory").into_bytes().into())].into(),
        ..Default::default()
    };
    agent.inventory_raw(&report.encode_to_vec()).await.unwrap();
    let session = agent.session_id.clone();
    agent.half_close().await.unwrap();
    bed.notice(Event::Disconnected, &session).await;
    soon("the stop", Box::pin(bed.stop())).await;

    let text = log.text();
    assert!(
        text.contains("Agent a connected from 127.0.0.1"),
        "the log was captured: {text}"
    );
    assert!(!text.contains(SECRET), "{text}");
    assert!(
        !text.contains(&session),
        "session ids are secrets too: {text}"
    );
}

#[tokio::test]
async fn log_4_text_of_an_agent_is_cut_and_its_control_characters_are_masked() {
    let (log, _guard) = capture();
    let bed = TestBed::start().await;
    // The server would refuse such an id; here it says yes to everything.
    let id = format!("evil\n2026 INFO forged{}", "x".repeat(200));
    let answer = crate::support::accepted(&crate::support::session_id('5'));
    let answer = Action::Answer(answer.encode_to_vec().into());
    bed.server
        .fault(Fault::new(Rpc::ProxyRegister, answer))
        .unwrap();
    let mut agent = bed.bare_agent(&id).await;
    agent.register().await.unwrap();
    agent.subscribe().await.unwrap();
    let text = log.text();
    let line = text
        .lines()
        .find(|line| line.contains(" connected from "))
        .expect("the line");
    assert!(line.contains("Agent evil?2026 INFO forged"), "{line}");
    assert!(!line.contains(&"x".repeat(129)), "{line}");
    assert!(
        !text
            .lines()
            .any(|line| line.starts_with("2026 INFO forged")),
        "{text}"
    );
}

#[tokio::test]
async fn admit_6_the_rule_is_told_at_boot() {
    const RULE: &str = "Heartbeat admission is connection-bound: a heartbeat is admitted only on \
                        the connection that opened its session";
    let (log, _guard) = capture();
    let _bed = TestBed::start().await;
    assert!(log.text().contains(RULE));
}

#[tokio::test]
async fn admit_5_refusals_are_summed_up_in_one_line() {
    const SUMMARY: &str = "Heartbeat admission rejected heartbeats since the last summary: ";
    let (log, _guard) = capture();
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let stranger = bed.bare_agent("b").await;
    assert!(!log.text().contains(SUMMARY));
    for session in [secret("session"), agent.session_id.clone()]
        .iter()
        .cycle()
        .take(10)
    {
        let beat = HeartbeatRequest {
            session_id: session.clone(),
            ..Default::default()
        };
        let answer = stranger.heartbeat_raw(&beat.encode_to_vec()).await.unwrap();
        assert_eq!(answer.status.code, yuzu_tests::raw::code::NOT_FOUND);
    }
    let text = log.text();
    let lines: Vec<_> = text.lines().filter(|l| l.contains(SUMMARY)).collect();
    // The others wait for the next summary, ten seconds later.
    assert_eq!(lines.len(), 1, "{text}");
    assert!(
        lines[0].contains(" INFO ") && lines[0].ends_with(&format!("{SUMMARY}unknown_session=1"))
    );
    assert!(!text.contains(SECRET), "{text}");
}

#[tokio::test]
async fn inv_3_a_refused_report_is_told_without_its_session() {
    let (log, _guard) = capture();
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let report = InventoryReport {
        session_id: secret("session"),
        ..Default::default()
    };
    let line = "ReportInventory refused before forwarding: no session held on this connection \
                (unknown_session)";
    // Other tests refuse reports too, and there is one line a second for all.
    let told = async {
        while !log.text().contains(line) {
            agent.inventory_raw(&report.encode_to_vec()).await.unwrap();
        }
    };
    soon("the line", told).await;
    let text = log.text();
    let line = text.lines().find(|l| l.contains(line)).unwrap();
    assert!(line.contains(" WARN "), "{line}");
    assert!(!text.contains(SECRET), "{text}");
}

#[tokio::test]
async fn old_fault_16_agents_that_leave_together_write_one_line_each() {
    let (log, _guard) = capture();
    let bed = TestBed::start().await;
    let mut agents = Vec::new();
    for n in 0..100 {
        agents.push(bed.agent(&format!("a-{n}")).await);
    }
    let before = log.text().len();
    agents.iter().for_each(|agent| agent.connection.cut());
    bed.metric_becomes("agents_disconnected_total", &[("node", &node())], 100.0)
        .await;
    let text = log.text().split_off(before);
    let of = |level: &str| text.lines().filter(|line| line.contains(level)).count();
    assert_eq!((of(" WARN "), of("ERROR")), (0, 0), "{text}");
    assert_eq!(of(" INFO "), 100, "one for each: {text}");
}

/// The name of a node with the default configuration.
fn node() -> String {
    yuzu_gateway::config::Config::default().node.name
}

#[tokio::test]
async fn stop_7_a_stop_at_a_silent_server_writes_one_line_about_what_it_left() {
    let (log, _guard) = capture();
    let budget = std::time::Duration::from_millis(500);
    let setup = Setup::default().gateway(|config| config.shutdown.flush_budget = budget);
    let bed = setup.start().await;
    let mut agents = Vec::new();
    for n in 0..80 {
        agents.push(bed.agent(&format!("a-{n}")).await);
    }
    let silent = Fault::new(Rpc::NotifyStreamStatus, Action::Hang);
    bed.server.fault(silent).unwrap();
    let before = log.text().len();
    let TestBed { server, gateway } = bed;
    let report = soon("the stop", gateway.shutdown()).await;
    assert_eq!(report.unsent, 80);
    // Calls that were out end with their connection.
    server.kill().await;
    let text = log.text().split_off(before);
    let loud = |line: &&str| line.contains(" WARN ") || line.contains("ERROR");
    let loud: Vec<_> = text.lines().filter(loud).collect();
    // The answer to a CONNECTED may have been on its way when the stop began.
    let told = "stream-status notification(s) sent, 80 not sent by the flush deadline";
    assert!(loud.len() == 1 && loud[0].contains(told), "{loud:#?}");
}

#[tokio::test]
async fn owner_10_every_restart_writes_its_outcome_once_and_no_secret() {
    let (log, _guard) = capture();
    let bed = TestBed::start().await;
    let agent = bed.agent("a").await;
    let mut gone = bed.agent("b").await;
    let before = log.text().len();
    for panics in 1..=2 {
        assert!(bed.gateway.inject_owner_panic("a"));
        let recovered = [("outcome", "recovered")];
        bed.metric_becomes("agent_owner_restarts_total", &recovered, f64::from(panics))
            .await;
    }
    let refuse = Fault::new(Rpc::ProxyRegister, Action::Refuse).replay(true);
    bed.server.fault(refuse).unwrap();
    assert!(bed.gateway.inject_owner_panic("b"));
    assert!(gone.stream_end().await.unwrap().is_ok());
    let text = log.text().split_off(before);
    let of = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    assert_eq!(of("session owner restarted; the agent keeps its stream"), 2);
    assert_eq!(
        of("session owner restarted; its session was not recovered"),
        1
    );
    for session in [&agent.session_id, &gone.session_id] {
        assert!(!text.contains(session.as_str()), "{text}");
    }
}
