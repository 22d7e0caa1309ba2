//! SIGKILL of the gateway under load, and a new start on the same ports.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::{Instant, interval, sleep};
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_proto::server::v1::QueryInventoryResponse;
use yuzu_server_stub::{RouteState, State, StubConfig};
use yuzu_tests::broadcast::{Round, broadcast};
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::{Fleet, Options};
use yuzu_tests::operator::Operator;

pub(crate) const ABOUT: &str = "SIGKILL under load and a new start: all back, directory right";

pub(crate) const AGENTS: usize = 5_000;
const HEARTBEAT: Duration = Duration::from_secs(2);
/// The load before the kill.
const BROADCAST_EVERY: Duration = Duration::from_millis(200);
const LOAD: Duration = Duration::from_secs(5);
const START_LIMIT: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(180);

pub(crate) async fn run(binaries: &Binaries, agents: usize) -> Result<Report, String> {
    check_descriptors(agents)?;
    let mut bed = Bed::start(binaries, StubConfig::default()).await?;
    let fleet = Fleet::start(Options {
        heartbeat: Some(HEARTBEAT),
        connects_per_second: Some(2_000.0),
        ..bed.fleet("nine-", agents)
    });
    let all = fleet.all_subscribed(LIMIT).await;
    all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
    let operator = Operator::connect(bed.gateway.management).await;
    let operator = operator.map_err(|e| e.to_string())?;
    let load = tokio::spawn(async move {
        let mut ticks = interval(BROADCAST_EVERY);
        let mut answers = 0;
        loop {
            ticks.tick().await;
            match broadcast(&operator, command("load"), 60).await {
                Ok(round) => answers += round.tally.answered() as u64,
                // The gateway is gone.
                Err(_) => return answers,
            }
        }
    });
    sleep(LOAD).await;
    let killed = Instant::now();
    bed.gateway.kill().await?;
    let answers = load.await.map_err(|e| e.to_string())?;
    bed.gateway.start_again(START_LIMIT).await?;
    let ready = killed.elapsed();
    let back = fleet.all_subscribed(LIMIT).await;
    back.map_err(|now| format!("only {} agents are back", now.subscribed))?;
    let back = killed.elapsed();
    let right =
        |state: &State| (bed::routes(state, RouteState::Connected) == agents as u64).then_some(());
    bed.server_has("a right directory", LIMIT, right).await?;
    let recorded = killed.elapsed();

    let mut report = Report::default();
    report.count("commands answered before the kill", answers);
    report.time("kill to ready", ready);
    report.time("kill to the last agent subscribed", back);
    report.time("kill to the last CONNECTED recorded", recorded);
    judge(&bed, &fleet, agents, &mut report).await?;
    fleet.stop().await;
    Ok(report)
}

fn command(id: &str) -> CommandRequest {
    CommandRequest {
        command_id: id.into(),
        plugin: "shell".into(),
        ..CommandRequest::default()
    }
}

/// Each agent once, with the session that the server has for it.
async fn judge(bed: &Bed, fleet: &Fleet, agents: usize, report: &mut Report) -> Result<(), String> {
    let operator = Operator::connect(bed.gateway.management).await;
    let operator = operator.map_err(|e| e.to_string())?;
    let held = sessions(&operator).await?;
    let ids: Vec<String> = (0..agents).map(|n| fleet.options().agent_id(n)).collect();
    let agree = bed.server.view(|state| {
        let agrees = |id: &&String| {
            let route = state.route(id);
            route.is_some_and(|route| held.get(*id).is_some_and(|s| **s == *route.session_id))
        };
        ids.iter().filter(agrees).count() as u64
    });
    let (agents, routes) = (
        agents as u64,
        bed.server.view(|s| s.routes().count() as u64),
    );
    report.exactly("sessions of the gateway", held.len() as u64, agents);
    report.exactly("agents in the directory", routes, agents);
    report.exactly("agents with the same session in both", agree, agents);
    let Round { tally, status, .. } = broadcast(&operator, command("after"), 60).await?;
    let wrong = tally.doubled + tally.failures + tally.strays + usize::from(!status.is_ok());
    let missing = tally.missing(ids.iter().map(String::as_str)) as u64;
    report.exactly("agents that do not answer a broadcast", missing, 0);
    report.exactly("answers that are wrong", wrong as u64, 0);
    let seen = fleet.snapshot();
    report.exactly("agents refused for good", seen.denied, 0);
    report.exactly("agents with an open stream", seen.subscribed, agents);
    Ok(())
}

/// What the gateway holds: agent and session.
async fn sessions(operator: &Operator) -> Result<HashMap<String, String>, String> {
    let answer = operator.inventory("", "").await;
    let answer: QueryInventoryResponse = answer.map_err(|e| e.to_string())?.decode()?;
    let read = |(agent, facts): (String, bytes::Bytes)| {
        let facts: serde_json::Value = serde_json::from_slice(&facts).map_err(|e| e.to_string())?;
        let session = facts["session_id"].as_str().ok_or("no session")?;
        Ok((agent, session.to_owned()))
    };
    answer.plugin_data.into_iter().map(read).collect()
}
