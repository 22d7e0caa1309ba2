//! Registrations of one connection against its cap, and what they cost.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use prost::Message;
use std::collections::HashSet;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use yuzu_proto::agent::v1::{AgentInfo, RegisterRequest};
use yuzu_proto::path;
use yuzu_server_stub::{Action, Fault, Rpc, StubConfig};
use yuzu_tests::agent::Agent;
use yuzu_tests::raw::{Request, Status, code, frame};

pub(crate) const ABOUT: &str = "200 ids at once, 20 times one id, 40 times 1 MiB on one connection";

const CAP: u64 = 8;
const LIMIT: Duration = Duration::from_secs(30);
/// Far above what a refusal takes.
const QUIET: Duration = Duration::from_secs(2);
const IN_A_ROW: usize = 40;
const LARGE: usize = 1 << 20;
/// Another row of this size would be more than that.
const SLACK: u64 = 1 << 20;
/// Until what is free has gone back.
const SETTLE: Duration = Duration::from_secs(20);

pub(crate) async fn run(binaries: &Binaries) -> Result<Report, String> {
    let mut report = Report::default();
    let distinct = (0..200).map(|n| format!("a-{n}")).collect();
    at_once(binaries, "200 ids", distinct, &mut report).await?;
    let same = vec!["a".to_owned(); 20];
    at_once(binaries, "20 times one id", same, &mut report).await?;
    in_a_row(binaries, &mut report).await?;
    Ok(report)
}

fn request(id: &str, token_bytes: usize) -> Vec<u8> {
    let request = RegisterRequest {
        info: Some(AgentInfo {
            agent_id: id.into(),
            ..AgentInfo::default()
        }),
        enrollment_token: "t".repeat(token_bytes),
        ..RegisterRequest::default()
    };
    request.encode_to_vec()
}

/// While the server keeps what it gets. The listener allows 32 calls of one connection at once;
/// the others follow as the first ones are refused. Nobody waits for a number of refusals, so that
/// a gateway which lets too many through, or too few, shows it in the figures.
async fn at_once(
    binaries: &Binaries,
    what: &str,
    ids: Vec<String>,
    report: &mut Report,
) -> Result<(), String> {
    let bed = Bed::start(binaries, StubConfig::default()).await?;
    let hang = Fault::new(Rpc::ProxyRegister, Action::Hang);
    bed.server.fault(hang).map_err(|e| e.to_string())?;
    let agent = Agent::connect(bed.gateway.agents, "all").await;
    let agent = agent.map_err(|e| e.to_string())?;
    // Its answer comes after the listener's limits, which are kept to from then on.
    let settled = agent.heartbeat().await;
    settled.map_err(|e| e.to_string())?;
    let wanted = ids.len() as u64;
    let distinct = ids.iter().collect::<HashSet<_>>().len() == ids.len();
    let mut calls = JoinSet::new();
    for id in ids {
        let call = Request::new(path::REGISTER).timeout(LIMIT);
        let call = agent.connection.begin_unary(&call, frame(&request(&id, 0)));
        calls.spawn(async move {
            let answer = call.await.map_err(|e| e.to_string())?;
            Ok(answer.status)
        });
    }
    let early = until_quiet(&mut calls).await?;
    let received = bed.server.view(|s| s.counts(Rpc::ProxyRegister).received);
    let metrics = bed::scrape(&bed.gateway).await?;
    bed.server.clear_faults(None);
    bed.server.release(None);
    let late = calls.join_all().await;
    let late: Vec<Status> = late.into_iter().collect::<Result<_, _>>()?;
    let refused = |status: &&Status| status.code == code::UNAVAILABLE;
    let refused = early.iter().filter(refused).count() as u64;
    let name = |figure: &str| format!("{what}: {figure}");
    report.exactly(&name("refused by the cap"), refused, wanted - CAP);
    let counted = bed::value(&metrics, "session_limit_rejected_total", &[])?;
    report.exactly(&name("refusals counted"), counted, wanted - CAP);
    report.exactly(&name("reached the server"), received, CAP);
    let answers = (early.len() + late.len()) as u64;
    report.exactly(&name("answers"), answers, wanted);
    let accepted = late.iter().filter(|status| status.is_ok()).count() as u64;
    let accepted_name = name("accepted once the server answers");
    match distinct {
        true => report.exactly(&accepted_name, accepted, CAP),
        // Only the newest row is kept, a call that finds a newer one ends with 14.
        false => report.at_least(&accepted_name, accepted, 1),
    }
    Ok(())
}

/// Those that have ended when no other does for a while.
async fn until_quiet(calls: &mut JoinSet<Result<Status, String>>) -> Result<Vec<Status>, String> {
    let mut ended = Vec::new();
    while let Ok(Some(call)) = timeout(QUIET, calls.join_next()).await {
        ended.push(call.map_err(|e| e.to_string())??);
    }
    Ok(ended)
}

async fn in_a_row(binaries: &Binaries, report: &mut Report) -> Result<(), String> {
    let bed = Bed::start(binaries, StubConfig::default()).await?;
    let agent = Agent::connect(bed.gateway.agents, "a").await;
    let agent = agent.map_err(|e| e.to_string())?;
    let large = request("a", LARGE);
    let mut memory = Vec::new();
    for calls in [1, IN_A_ROW - 1] {
        for _ in 0..calls {
            let answer = agent.register_raw(&large).await;
            let answer = answer.map_err(|e| e.to_string())?;
            if !answer.status.is_ok() {
                return Err(answer.status.to_string());
            }
        }
        sleep(SETTLE).await;
        memory.push(bed.gateway.anonymous_memory()?);
    }
    let (first, last) = (memory[0], memory[1]);
    report.count("40 x 1 MiB: memory after the first, KiB", first >> 10);
    report.at_most(
        "40 x 1 MiB: memory after the last, KiB",
        last >> 10,
        (first + SLACK) >> 10,
    );
    Ok(())
}
