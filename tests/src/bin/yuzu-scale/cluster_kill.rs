//! SIGKILL of a private and of the public one of three nodes, amid commands for agents of all.

use crate::bed::Binaries;
use crate::report::Report;
use crate::trio::answers::{Account, Call, End, Told, call};
use crate::trio::load::{Load, longest_silence};
use crate::trio::{Group, LIMIT, PRIVATE, PUBLIC, Trio, command};
use futures_util::StreamExt;
use futures_util::stream::{FuturesUnordered, iter};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use yuzu_tests::broadcast::percentile;
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::operator::Operator;

pub(crate) const ABOUT: &str =
    "SIGKILL of a private and of the public one of three gateways with 3,000 agents";

/// Each node has agents, and the one that dies has some of both kinds.
const LEAST: usize = 6;
/// Single commands in flight.
const AT_ONCE: usize = 64;
/// Over which agents answer what is under way when a node dies.
const SPREAD: Duration = Duration::from_secs(3);
/// From the new stream of an agent to the answer to a command (SHIFT-4).
const ROUTABLE: Duration = Duration::from_secs(2);
/// From the death of the public node to a broadcast that reaches everyone again: the agents' backoff
/// and what the nodes have to find each other again.
const WHOLE: Duration = Duration::from_secs(15);
/// Between two attempts of a caller.
const PAUSE: Duration = Duration::from_millis(20);

/// The private node that dies.
const DIES: usize = PRIVATE[0];

pub(crate) async fn run(binaries: &Binaries, agents: usize) -> Result<Report, String> {
    if agents < LEAST {
        return Err(format!("--agents must be at least {LEAST}"));
    }
    check_descriptors(agents)?;
    let mut trio = Trio::start(binaries).await?;
    let third = agents / 3;
    trio.add(PUBLIC, third, 0);
    // Of those whose node dies, half have said RUNNING by then.
    trio.add(DIES, third / 2, 0);
    trio.add(DIES, third - third / 2, 1);
    trio.add(PRIVATE[1], third, 0);
    trio.settled(LIMIT).await?;
    trio.known().await?;
    let mut report = Report::default();
    everyone(&trio, &mut report).await?;
    private_dies(&mut trio, &mut report).await?;
    public_dies(&mut trio, &mut report).await?;
    report.exactly("commands that came twice to an agent", trio.repeated(), 0);
    trio.stop().await;
    Ok(report)
}

/// A command for each agent of every node.
async fn everyone(trio: &Trio, report: &mut Report) -> Result<(), String> {
    let operator = trio.caller().await?;
    let ids: Vec<_> = trio.ids().map(|(.., id)| id).collect();
    let calls: Vec<Call> = iter(&ids)
        .map(|id| {
            let command = command(&format!("one-{id}"), Duration::ZERO);
            let operator = &operator;
            async move { call(operator, &[id], command, |_| ()).await }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let whole = calls.iter().filter(|call| call.is_whole(1)).count() as u64;
    let agents = trio.agents() as u64;
    report.exactly("agents of all nodes that answered a command", whole, agents);
    let mut times: Vec<_> = calls.iter().map(|call| call.took).collect();
    times.sort_unstable();
    let median = percentile(&times, 0.5).unwrap_or_default();
    report.time("one command, 64 callers, median", median);
    let all = call(&operator, &[], command("all", Duration::ZERO), |_| ()).await;
    report.exactly(
        "the same, of one command for all",
        u64::from(all.is_whole(trio.agents())),
        1,
    );
    Ok(())
}

/// The agents of the private node that dies.
#[derive(Clone)]
struct Doomed {
    prefixes: Vec<String>,
    agents: usize,
}

impl Doomed {
    fn of(trio: &Trio) -> Self {
        let options = Self::groups(trio).map(|group| group.fleet.options());
        Self {
            prefixes: options.clone().map(|group| group.prefix.clone()).collect(),
            agents: options.map(|group| group.agents).sum(),
        }
    }

    fn groups(trio: &Trio) -> impl Iterator<Item = &Group> + Clone {
        trio.groups.iter().filter(|group| group.home == DIES)
    }

    fn reconnects(trio: &Trio) -> u64 {
        let groups = Self::groups(trio);
        groups.map(|group| group.fleet.snapshot().reconnects).sum()
    }

    /// How many of them a call says something of that `is_so`.
    fn count(&self, call: &Call, is_so: impl Fn(&Told) -> bool) -> u64 {
        let mine = |id: &str| self.prefixes.iter().any(|prefix| id.starts_with(&**prefix));
        let told = call
            .told
            .iter()
            .filter(|(id, told)| is_so(told) && mine(id));
        told.count() as u64
    }
}

/// A command for all, and word of when a third of the doomed has answered it.
fn amid(operator: &Arc<Operator>, doomed: &Doomed) -> (JoinHandle<Call>, oneshot::Receiver<()>) {
    let (tell, told) = oneshot::channel();
    let (operator, doomed) = (Arc::clone(operator), doomed.clone());
    let mut tell = Some(tell);
    let under_way = tokio::spawn(async move {
        let third = doomed.agents as u64 / 3;
        let each = |call: &Call| {
            if tell.is_some() && doomed.count(call, |told| told.end.is_some()) >= third {
                // Whoever does not wait any more has failed.
                let _ = tell.take().map(|tell| tell.send(()));
            }
        };
        call(&operator, &[], command("amid", SPREAD), each).await
    });
    (under_way, told)
}

async fn private_dies(trio: &mut Trio, report: &mut Report) -> Result<(), String> {
    let operator = Arc::new(trio.caller().await?);
    let doomed = Doomed::of(trio);
    let before = Doomed::reconnects(trio);
    let (under_way, third_answered) = amid(&operator, &doomed);
    let load = Load::start(trio, "private");
    let third_answered = third_answered.await;
    third_answered.map_err(|_| trio.failed("the broadcast ended too early"))?;
    let killed = Instant::now();
    trio.nodes[DIES].kill().await?;
    let routable = routable(trio, &operator, killed).await?;
    let amid = under_way.await.map_err(|e| e.to_string())?;
    let ended = killed.elapsed();
    let load = load.end().await;

    tell_amid(trio, &doomed, &amid, report);
    report.time("kill to the end of the broadcast", ended);
    let reconnects = Doomed::reconnects(trio) - before;
    report.exactly("reconnects", reconnects, doomed.agents as u64);
    tell_routable(&routable, killed, report);
    let account = Account::of(trio, load.iter().flat_map(|done| &done.calls));
    account.tell("load", report);
    report.exactly("load: cut after an agent had them", account.cut, 0);
    let silence = longest_silence(&load);
    report.time("load: longest time without an answer", silence);
    Ok(())
}

fn tell_amid(trio: &Trio, doomed: &Doomed, amid: &Call, report: &mut Report) {
    let account = Account::of(trio, [amid]);
    let ended = |end| doomed.count(amid, |told| told.end == Some(end));
    let kinds = [End::Success, End::Unknown, End::Disconnected].map(ended);
    let agents = doomed.agents as u64;
    report.count("targets of the node that died, answered before", kinds[0]);
    report.count("the same, outcome_unknown", kinds[1]);
    report.count("the same, agent_disconnected", kinds[2]);
    report.exactly("the same, all three", kinds.iter().sum(), agents);
    let others = account.count(End::Success) - kinds[0];
    let wanted = trio.agents() as u64 - agents;
    report.exactly("targets of other nodes, answered", others, wanted);
    report.exactly("targets without an entry", account.lost, 0);
    report.exactly("entries twice", account.doubled, 0);
    report.exactly("SUCCESS that no agent sent", account.invented, 0);
    let unheard = |told: &Told| told.end == Some(End::Disconnected) && told.running == 0;
    let unfit = account.unfit + doomed.count(amid, unheard);
    report.exactly("entries that do not fit what came before", unfit, 0);
}

/// An agent that came back.
struct Back {
    /// When its new stream was open.
    open: Instant,
    /// From then to its first answer.
    answered: Duration,
    attempts: u64,
}

/// Sends each agent of the dead node a command as soon as it has a new stream, again and again.
async fn routable(
    trio: &Trio,
    operator: &Arc<Operator>,
    killed: Instant,
) -> Result<Vec<Back>, String> {
    let mut waiting: Vec<_> = Doomed::groups(trio)
        .flat_map(|group| (0..group.fleet.options().agents).map(move |index| (group, index)))
        .collect();
    let mut asked = FuturesUnordered::new();
    let mut back = Vec::new();
    let deadline = killed + LIMIT;
    while !(waiting.is_empty() && asked.is_empty()) {
        waiting.retain(|&(group, index)| {
            let opened = group.came_back(index, killed);
            let gone = opened.is_some();
            asked.extend(opened.map(|opened| {
                let id = group.fleet.options().agent_id(index);
                answered(operator, id, opened.at)
            }));
            !gone
        });
        tokio::select! {
            Some(one) = asked.next(), if !asked.is_empty() => back.push(one),
            () = sleep(Duration::from_millis(5)) => {}
        }
        if Instant::now() >= deadline {
            let left = waiting.len() + asked.len();
            return Err(trio.failed(&format!("{left} agents are not routable")));
        }
    }
    Ok(back)
}

async fn answered(operator: &Operator, id: String, open: Instant) -> Back {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let command = command(&format!("back-{id}-{attempts}"), Duration::ZERO);
        let call = call(operator, &[&id], command, |_| ()).await;
        if call.is_whole(1) {
            let answered = open.elapsed();
            return Back {
                open,
                answered,
                attempts,
            };
        }
        sleep(PAUSE).await;
    }
}

fn tell_routable(back: &[Back], killed: Instant, report: &mut Report) {
    let mut times: Vec<_> = back.iter().map(|back| back.answered).collect();
    times.sort_unstable();
    let last = back.iter().map(|back| back.open - killed).max();
    report.time("kill to the last new stream", last.unwrap_or_default());
    for (name, share) in [("median", 0.5), ("p90", 0.9), ("p99", 0.99)] {
        let time = percentile(&times, share).unwrap_or_default();
        report.time(&format!("new stream to an answer, {name}"), time);
    }
    let slowest = times.last().copied().unwrap_or_default();
    report.within("new stream to an answer, slowest", slowest, ROUTABLE);
    let first = back.iter().filter(|back| back.attempts == 1).count() as u64;
    report.count("of them by the first command", first);
}

async fn public_dies(trio: &mut Trio, report: &mut Report) -> Result<(), String> {
    trio.nodes[DIES].start_again(LIMIT).await?;
    trio.joined().await?;
    trio.settled(LIMIT).await?;
    trio.known().await?;
    let operator = trio.caller().await?;
    let under_way =
        tokio::spawn(async move { call(&operator, &[], command("cut", SPREAD), |_| ()).await });
    let load = Load::start(trio, "public");
    sleep(SPREAD / 2).await;
    let killed = Instant::now();
    trio.nodes[PUBLIC].kill().await?;
    let cut = under_way.await.map_err(|e| e.to_string())?;
    trio.nodes[PUBLIC].start_again(LIMIT).await?;
    report.time("kill of the public node to ready", killed.elapsed());
    let again = whole_again(trio, killed).await?;
    report.time("the same, to a caller that is connected", again.connected);
    report.within(
        "the same, to all answers of a broadcast",
        again.whole,
        WHOLE,
    );
    report.count("broadcasts until then", again.rounds);
    trio.settled(LIMIT).await?;
    report.time("kill to a right directory at the server", killed.elapsed());
    let load = load.end().await;
    let calls = load.iter().flat_map(|done| &done.calls);
    let account = Account::of(trio, calls.chain([&cut]));
    account.tell("load of the public node", report);
    let what = "load of the public node: cut after an agent had them";
    report.count(what, account.cut);
    let what = "load of the public node: longest time without an answer";
    report.time(what, longest_silence(&load));
    Ok(())
}

/// From the death of the public node.
struct Again {
    /// To the first connection of a caller.
    connected: Duration,
    /// To the last answer of the first broadcast that all agents answered.
    whole: Duration,
    rounds: u64,
}

/// Sends one broadcast after the other until all agents answer.
async fn whole_again(trio: &Trio, killed: Instant) -> Result<Again, String> {
    let operator = loop {
        match Operator::connect(trio.callers()).await {
            Ok(operator) => break operator,
            Err(error) if killed.elapsed() > LIMIT => return Err(error.to_string()),
            Err(_) => sleep(PAUSE).await,
        }
    };
    let connected = killed.elapsed();
    let mut rounds = 0;
    while killed.elapsed() < LIMIT {
        rounds += 1;
        let command = command(&format!("whole-{rounds}"), Duration::ZERO);
        let all = call(&operator, &[], command, |_| ()).await;
        if all.is_whole(trio.agents()) {
            return Ok(Again {
                connected,
                whole: killed.elapsed(),
                rounds,
            });
        }
        sleep(PAUSE).await;
    }
    Err(trio.failed("no broadcast reaches everyone again"))
}
