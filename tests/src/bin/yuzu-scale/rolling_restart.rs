//! Three nodes that stop as planned and start again, one after the other, under commands.

use crate::bed::Binaries;
use crate::report::Report;
use crate::trio::answers::{Account, Call, End, Over, call};
use crate::trio::{LIMIT, PRIVATE, PUBLIC, Trio, command, name};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use yuzu_tests::operator::Operator;

pub(crate) const ABOUT: &str =
    "three gateways with 3,000 agents stop and start one after the other under commands";

/// Callers that send commands to one agent after the other.
const SINGLE: usize = 8;
/// Between two of their commands.
const PAUSE: Duration = Duration::from_millis(5);
/// Between two broadcasts.
const BROADCASTS: Duration = Duration::from_millis(500);
/// Over which agents answer them.
const SPREAD: Duration = Duration::from_millis(300);
/// Before the first stop, between two, and after the last start.
const REST: Duration = Duration::from_secs(2);

/// What all callers know.
#[derive(Clone)]
struct Load {
    address: SocketAddr,
    agents: Arc<[String]>,
    ends: watch::Receiver<bool>,
}

/// What one caller did.
struct Done {
    calls: Vec<Call>,
    /// Whether it is one of [`SINGLE`].
    single: bool,
    connections: u64,
}

pub(crate) async fn run(binaries: &Binaries, agents: usize) -> Result<Report, String> {
    let mut trio = Trio::start(binaries).await?;
    for home in [PUBLIC, PRIVATE[0], PRIVATE[1]] {
        trio.add(home, agents / 3, 0);
    }
    trio.settled(LIMIT).await?;
    let (end, ends) = watch::channel(false);
    let load = Load {
        address: trio.callers(),
        agents: trio.ids().map(|(.., id)| id).collect(),
        ends,
    };
    let mut callers = JoinSet::new();
    for caller in 0..SINGLE {
        callers.spawn(load.clone().singles(caller));
    }
    callers.spawn(load.broadcasts());
    let mut report = Report::default();
    for node in [PRIVATE[0], PRIVATE[1], PUBLIC] {
        sleep(REST).await;
        restart(&mut trio, node, &mut report).await?;
    }
    trio.settled(LIMIT).await?;
    sleep(REST).await;
    end.send_replace(true);
    judge(&trio, &callers.join_all().await, &mut report);
    report.exactly(
        "routes of the server that are wrong at the end",
        trio.wrong_routes().await?,
        0,
    );
    let operator = trio.caller().await?;
    let last = call(&operator, &[], command("last", Duration::ZERO), |_| ()).await;
    let answered = last.ended(End::Success) as u64;
    report.exactly(
        "agents that answer at the end",
        answered,
        trio.agents() as u64,
    );
    report.exactly("commands that came twice to an agent", trio.repeated(), 0);
    trio.stop().await;
    Ok(report)
}

/// As [`docs/operating.md`](../../../docs/operating.md) has it: the next one is for when this one is
/// ready and listed.
async fn restart(trio: &mut Trio, node: usize, report: &mut Report) -> Result<(), String> {
    let started = Instant::now();
    let status = trio.nodes[node].terminate(LIMIT).await?;
    let stopped = started.elapsed();
    // A process that a signal ended has no code; none ends with this one.
    let code = status.code().map_or(255, i32::unsigned_abs);
    trio.nodes[node].start_again(LIMIT).await?;
    trio.joined().await?;
    let name = name(node);
    report.exactly(&format!("{name}: exit code"), code.into(), 0);
    report.time(&format!("{name}: SIGTERM to the end"), stopped);
    report.time(
        &format!("{name}: SIGTERM to listed again"),
        started.elapsed(),
    );
    Ok(())
}

impl Load {
    async fn singles(self, caller: usize) -> Done {
        let named = |number: usize| {
            let agent = &*self.agents[(caller + number * SINGLE) % self.agents.len()];
            (vec![agent], Duration::ZERO, PAUSE)
        };
        self.calls(&format!("single-{caller}"), true, named).await
    }

    async fn broadcasts(self) -> Done {
        let all = |_| (Vec::new(), SPREAD, BROADCASTS);
        self.calls("all", false, all).await
    }

    /// Sends commands until the end: to whom, answered over what time, and the pause after each are
    /// what `next` says.
    async fn calls<'a>(
        &'a self,
        id: &str,
        single: bool,
        next: impl Fn(usize) -> (Vec<&'a str>, Duration, Duration),
    ) -> Done {
        let mut calls = Vec::new();
        let mut connections = 0;
        let mut operator = None;
        while !*self.ends.borrow() {
            let Some(connected) = &operator else {
                operator = Operator::connect(self.address).await.ok();
                connections += u64::from(operator.is_some());
                sleep(PAUSE).await;
                continue;
            };
            let number = calls.len();
            let (named, spread, pause) = next(number);
            let command = command(&format!("{id}-{number}"), spread);
            calls.push(call(connected, &named, command, |_| ()).await);
            if connected.connection.is_closed() {
                operator = None;
            }
            sleep(pause).await;
        }
        Done {
            calls,
            single,
            connections,
        }
    }
}

fn judge(trio: &Trio, done: &[Done], report: &mut Report) {
    for (what, single) in [("commands for one", true), ("broadcasts", false)] {
        let of_kind = || done.iter().filter(|done| done.single == single);
        let calls = || of_kind().flat_map(|done| &done.calls);
        let account = Account::of(trio, calls());
        report.count(what, calls().count() as u64);
        let told = [
            ("own answers", End::Success),
            ("not_connected", End::NotConnected),
            ("agent_disconnected", End::Disconnected),
            ("outcome_unknown", End::Unknown),
        ];
        for (name, end) in told {
            report.count(&format!("{what}: {name}"), account.count(end));
        }
        let bad = [
            ("without an entry", account.lost),
            ("entries twice", account.doubled),
            ("SUCCESS that no agent sent", account.invented),
            ("outcome_unknown after an answer", account.unfit),
            ("entries of another kind", account.count(End::Other)),
        ];
        for (name, count) in bad {
            report.exactly(&format!("{what}: {name}"), count, 0);
        }
        report.count(
            &format!("{what}: calls refused by the node that stops"),
            account.refused,
        );
        report.count(&format!("{what}: calls without a status"), account.broken);
        let again = of_kind().map(|done| done.connections - 1).max();
        report.exactly(
            &format!("{what}: most connections that a caller lost"),
            again.unwrap_or(0),
            1,
        );
    }
    report.time(
        "longest time without an answer for anyone",
        longest_silence(done),
    );
}

fn longest_silence(done: &[Done]) -> Duration {
    let calls = done.iter().flat_map(|done| &done.calls);
    let answered = calls.filter(|call| call.over == Over::Ok && call.ended(End::Success) > 0);
    let mut times: Vec<_> = answered.map(|call| call.ended_at).collect();
    times.sort_unstable();
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or_default()
}
