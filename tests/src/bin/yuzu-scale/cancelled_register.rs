//! Agents that reset their Register while it waits for a permit.

use crate::bed::median_and_most;
use crate::report::Report;
use prost::Message;
use std::collections::HashSet;
use std::time::Duration;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, timeout};
use yuzu_proto::agent::v1::HeartbeatRequest;
use yuzu_proto::path;
use yuzu_server_stub::{Action, Fault, Rpc};
use yuzu_tests::agent::Agent;
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::raw::{Answer, CallError, Request, frame};
use yuzu_tests::testbed::{Setup, TestBed};

pub(crate) const ABOUT: &str = "agents reset their Register while it waits for a permit";

const PERMITS: u64 = 48;
/// Agents that wait, half of which reset their call.
pub(crate) const AGENTS: usize = 100;
const LIMIT: Duration = Duration::from_secs(20);
const BOUND: Duration = Duration::from_millis(1);

/// An agent and its Register, which has no answer yet.
struct Call {
    agent: Agent,
    register: JoinHandle<Result<Answer, CallError>>,
}

pub(crate) async fn run(agents: usize) -> Result<Report, String> {
    if agents < 2 {
        return Err("--agents must be at least 2".into());
    }
    check_descriptors(2 * (agents + PERMITS as usize))?;
    let (waits, resets) = (agents as u64, agents as u64 / 2);
    let bed = Setup::default().start().await;
    let hang = Fault::new(Rpc::ProxyRegister, Action::Hang);
    bed.server.fault(hang).map_err(|e| e.to_string())?;
    let mut held = Vec::new();
    for number in 0..PERMITS {
        held.push(call(&bed, &format!("held-{number}")).await?);
    }
    let hung = |state: &yuzu_server_stub::State| {
        (state.counts(Rpc::ProxyRegister).hung == PERMITS).then_some(())
    };
    let all = bed.server.wait_for("48 hung calls", LIMIT, hung).await;
    all.map_err(|e| e.to_string())?;
    let mut waiting = Vec::new();
    for number in 0..waits {
        waiting.push(call(&bed, &format!("waiting-{number}")).await?);
    }
    becomes(&bed, waits).await?;
    let (mut bare, mut freed, mut reset) = (Vec::new(), Vec::new(), HashSet::new());
    for left in (waits - resets..waits).rev() {
        let Call { agent, register } = waiting.pop().ok_or("nobody waits")?;
        bare.push(round_trip(&agent).await?);
        let started = Instant::now();
        // The task drops the call, which resets its stream.
        register.abort();
        becomes(&bed, left).await?;
        freed.push(started.elapsed());
        reset.insert(agent.id.clone());
    }
    bed.server.clear_faults(None);
    bed.server.release(None);
    for call in held.into_iter().chain(waiting) {
        let answer = timeout(LIMIT, call.register).await;
        let answer = answer.map_err(|_| "a Register has no answer")?;
        let answer = answer
            .map_err(|e| e.to_string())?
            .map_err(|e| e.to_string())?;
        if !answer.status.is_ok() {
            return Err(format!("{}: {}", call.agent.id, answer.status));
        }
    }
    let received = bed.server.received(Rpc::ProxyRegister);
    let seen = received.iter().filter_map(|r| r.register()?.info);
    let seen = seen.filter(|info| reset.contains(&info.agent_id)).count() as u64;
    let (bare, bare_most) = median_and_most(bare);
    let (freed, freed_most) = median_and_most(freed);
    let mut report = Report::default();
    report.count("calls reset while they waited", resets);
    report.time("bare round trip, a heartbeat, median", bare);
    report.time("the same, slowest", bare_most);
    report.within("reset to a free place, median", freed, bare + BOUND);
    report.time("the same, slowest", freed_most);
    report.exactly("calls of these agents the server saw", seen, 0);
    let others = PERMITS + waits - resets;
    report.exactly("calls the server saw", received.len() as u64, others);
    bed.stop().await;
    Ok(report)
}

async fn call(bed: &TestBed, id: &str) -> Result<Call, String> {
    let agent = Agent::connect(bed.agents(), id).await;
    let agent = agent.map_err(|e| e.to_string())?;
    let request = Request::new(path::REGISTER).timeout(Duration::from_secs(30));
    let body = frame(&agent.register_request().encode_to_vec());
    let register = tokio::spawn(agent.connection.begin_unary(&request, body));
    Ok(Call { agent, register })
}

/// An answer that the gateway gives by itself: the session is not known.
async fn round_trip(agent: &Agent) -> Result<Duration, String> {
    let body = HeartbeatRequest::default().encode_to_vec();
    let started = Instant::now();
    let answer = agent.heartbeat_raw(&body).await;
    answer.map(|_| started.elapsed()).map_err(|e| e.to_string())
}

/// Spins until so many Registers wait: a timer is too coarse for what is measured.
async fn becomes(bed: &TestBed, wanted: u64) -> Result<(), String> {
    let gauge = &bed.gateway.metrics().upstream_permits_waiting;
    let gauge = gauge.with_label_values(&["register"]);
    let spin = async {
        while u64::try_from(gauge.get()) != Ok(wanted) {
            yield_now().await;
        }
    };
    let reached = timeout(LIMIT, spin).await;
    reached.map_err(|_| format!("{} Registers wait, not {wanted}", gauge.get()))
}
