//! A server whose calls do not return while more of them wait: what the gateway says of it.

use crate::bed::{self, Bed, Binaries};
use crate::report::Report;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use yuzu_server_stub::{Action, Fault, Rpc, State, StubConfig};
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::{Fleet, Options};
use yuzu_tests::http;

pub(crate) const ABOUT: &str = "calls do not return and others wait: readiness and the slow figure";

pub(crate) const AGENTS: usize = 500;
/// Registers on their way to the server at once.
const PERMITS: u64 = 48;
/// Far above what the scenario takes, so that no call fails before the server returns.
const CALL: Duration = Duration::from_secs(120);
const CONFIG: &str = "rpc_timeout_ms = 60000\n";
/// Half of the minute that is looked at (SLOW-3).
const HALF: Duration = Duration::from_secs(30);
/// Whole seconds only are looked at, sampled ten times a second, and seen by a scrape.
const LATE: Duration = Duration::from_millis(1_300);
const EARLY: Duration = Duration::from_millis(200);
const READY: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

pub(crate) async fn run(binaries: &Binaries, agents: usize) -> Result<Report, String> {
    if agents as u64 <= PERMITS {
        return Err(format!(
            "--agents must be above {PERMITS}: others have to wait"
        ));
    }
    check_descriptors(agents)?;
    let server = crate::server::Server::start(StubConfig::default()).await?;
    let gateway = bed::gateway(binaries, server.addr(), CONFIG).await?;
    let bed = Bed { server, gateway };
    let silent = Fault::new(Rpc::ProxyRegister, Action::Hang);
    bed.server.fault(silent).map_err(|e| e.to_string())?;
    let fleet = Fleet::start(Options {
        call_timeout: CALL,
        ..bed.fleet("slow-", agents)
    });
    let mut report = Report::default();
    let mut watch = Watch::default();
    watch.until(&bed, "a full lane", |now| now.full).await?;
    let full = Instant::now();
    watch.until(&bed, "the slow figure", |now| now.slow).await?;
    let slow = full.elapsed();
    let hung = bed
        .server
        .view(|state| state.counts(Rpc::ProxyRegister).hung);
    bed.server.clear_faults(None);
    bed.server.release(None);
    watch
        .until(&bed, "a lane with room", |now| !now.full)
        .await?;
    let room = Instant::now();
    watch.until(&bed, "the end of it", |now| !now.slow).await?;
    let over = room.elapsed();

    report.exactly("calls that did not return", hung, PERMITS);
    report.within("full lane to `upstream_slow` 1", slow, HALF + LATE);
    report.no_less("the same", slow, HALF - EARLY);
    report.within("lane with room to `upstream_slow` 0", over, HALF + LATE);
    report.no_less("the same", over, HALF - EARLY);
    report.count("`/readyz` asked", watch.asked);
    report.exactly(
        "of them 200, `circuit_breaker` true",
        watch.ready,
        watch.asked,
    );
    report.within("slowest `/readyz`", watch.slowest, READY);
    let all = fleet.all_subscribed(LIMIT).await;
    let subscribed = all.unwrap_or_else(|now| *now).subscribed;
    report.exactly("agents subscribed in the end", subscribed, agents as u64);
    let sent = bed
        .server
        .view(|s: &State| s.counts(Rpc::ProxyRegister).received);
    report.exactly("Registers at the server", sent, agents as u64);
    fleet.stop().await;
    Ok(report)
}

/// What metrics say.
struct Now {
    full: bool,
    slow: bool,
}

/// What `/readyz` said.
#[derive(Default)]
struct Watch {
    asked: u64,
    ready: u64,
    slowest: Duration,
}

impl Watch {
    /// Asks for both until it is so.
    async fn until(
        &mut self,
        bed: &Bed,
        what: &str,
        reached: impl Fn(&Now) -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            self.ask(bed).await?;
            let metrics = bed::scrape(&bed.gateway).await?;
            let full = [("lane", "permits")];
            let now = Now {
                full: bed::value(&metrics, "upstream_lane_saturated", &full)? == 1,
                slow: bed::value(&metrics, "upstream_slow", &[])? == 1,
            };
            if reached(&now) {
                return Ok(());
            }
            sleep(POLL).await;
        }
        Err(format!("waited for {what}\n{}", bed.gateway.log_end()))
    }

    async fn ask(&mut self, bed: &Bed) -> Result<(), String> {
        let started = Instant::now();
        let answer = http::get(bed.gateway.health, "/readyz").await?;
        self.slowest = self.slowest.max(started.elapsed());
        let body: serde_json::Value =
            serde_json::from_str(&answer.body).map_err(|e| e.to_string())?;
        let well = answer.status == 200 && body["checks"]["circuit_breaker"] == true;
        self.asked += 1;
        self.ready += u64::from(well);
        Ok(())
    }
}
