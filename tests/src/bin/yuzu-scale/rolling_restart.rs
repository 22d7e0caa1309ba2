//! Three nodes that stop as planned and start again, one after the other, under commands.

use crate::bed::Binaries;
use crate::report::Report;
use crate::trio::answers::{Account, End, call};
use crate::trio::load::{Done, Load, longest_silence};
use crate::trio::{LIMIT, Named, PRIVATE, PUBLIC, Trio, command, name};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use yuzu_tests::cli::check_descriptors;

pub(crate) const ABOUT: &str =
    "three gateways with 3,000 agents stop and start one after the other under commands";

/// Each node has agents.
const LEAST: usize = 3;
/// Before the first stop, between two, and after the last start.
const REST: Duration = Duration::from_secs(2);

pub(crate) async fn run(binaries: &Binaries, agents: usize) -> Result<Report, String> {
    if agents < LEAST {
        return Err(format!("--agents must be at least {LEAST}"));
    }
    check_descriptors(agents)?;
    let mut trio = Trio::start(binaries).await?;
    for home in [PUBLIC, PRIVATE[0], PRIVATE[1]] {
        trio.add(home, agents / 3, 0);
    }
    trio.settled(LIMIT).await?;
    let load = Load::start(&trio, "load");
    let mut report = Report::default();
    for node in [PRIVATE[0], PRIVATE[1], PUBLIC] {
        sleep(REST).await;
        restart(&mut trio, node, &mut report).await?;
    }
    trio.settled(LIMIT).await?;
    trio.known().await?;
    sleep(REST).await;
    judge(&trio, &load.end().await, &mut report);
    without_public(&mut trio, &mut report).await?;
    report.exactly(
        "routes of the server that are wrong at the end",
        trio.wrong_routes(Named::Public).await?,
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

/// The directory is right at the end whether or not agents are announced again (VIS-5), if they never
/// were while the public node was away. So now it stays away until they are, and comes back.
async fn without_public(trio: &mut Trio, report: &mut Report) -> Result<(), String> {
    let started = Instant::now();
    trio.nodes[PUBLIC].terminate(LIMIT).await?;
    trio.told(Named::Own, LIMIT).await?;
    let name = name(PUBLIC);
    report.time(
        &format!("{name}: SIGTERM to the private nodes' own names at the server"),
        started.elapsed(),
    );
    let started = Instant::now();
    trio.nodes[PUBLIC].start_again(LIMIT).await?;
    trio.joined().await?;
    trio.settled(LIMIT).await?;
    report.time(
        &format!("{name}: start to its name for all agents"),
        started.elapsed(),
    );
    trio.known().await
}

fn judge(trio: &Trio, done: &[Done], report: &mut Report) {
    for (what, is_single) in [("commands for one", true), ("broadcasts", false)] {
        let of_kind = || done.iter().filter(|done| done.is_single == is_single);
        let calls = || of_kind().flat_map(|done| &done.calls);
        let account = Account::of(trio, calls());
        report.count(what, calls().count() as u64);
        account.tell(what, report);
        report.exactly(
            &format!("{what}: cut after an agent had them"),
            account.cut,
            0,
        );
        let lost = of_kind().map(|done| done.connections - 1).max();
        let name = format!("{what}: most connections that a caller lost");
        report.exactly(&name, lost.unwrap_or_default(), 1);
    }
    report.time(
        "longest time without an answer for anyone",
        longest_silence(done),
    );
}
