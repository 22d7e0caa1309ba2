//! Half an hour of everything: agents come and leave, operators command them, the server fails.

mod callers;
mod cohort;
mod faults;

use crate::balance::Account;
use crate::bed::{self, Binaries};
use crate::flat::Samples;
use crate::progress;
use crate::report::Report;
use crate::server::Server;
use callers::{Caller, Ledger};
use cohort::{Cohort, Gone};
use faults::Count;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use yuzu_server_stub::{RouteState, State, StubConfig};
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::{Fleet, Options};
use yuzu_tests::metrics::Metrics;
use yuzu_tests::operator::Operator;
use yuzu_tests::process::GatewayProcess;
use yuzu_tests::random::{Random, seed_of_now};

pub(crate) const ABOUT: &str =
    "5,000 agents come, answer and leave for half an hour while the server fails";

/// How much of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) agents: usize,
    pub(crate) time: Duration,
    /// `None`: another one each time.
    pub(crate) seed: Option<u64>,
}

const CALLERS: usize = 8;
const HEARTBEAT: Duration = Duration::from_secs(30);
/// A real agent waits 2 s and longer; these are to be back within a soak of minutes.
const BACKOFF_SCALE: f64 = 0.2;
/// Before memory counts: buffers grow to what they are in use. At most a sixth of the run.
const WARM_UP: Duration = Duration::from_secs(300);
const FLAT: f64 = 1.05;
const SAMPLE: Duration = Duration::from_secs(1);
const PROGRESS_SAMPLES: u64 = 60;
/// Until every notice of a server that failed is recorded: one that was refused waits a minute.
const QUIET_LIMIT: Duration = Duration::from_secs(300);

pub(crate) async fn run(binaries: &Binaries, plan: Plan) -> Result<Report, String> {
    check_descriptors(plan.agents)?;
    let seed = plan.seed.unwrap_or_else(seed_of_now);
    progress::say(&format!("soak: seed {seed}"));
    let server = Arc::new(Server::start(StubConfig::default()).await?);
    let gateway = bed::gateway(binaries, server.addr(), "").await?;
    let soak = Soak::new(plan, &gateway, server, Random::new(seed));
    let mut report = Report::default();
    report.count("seed", seed);
    report.count("agents", plan.agents as u64);
    report.number("minutes", plan.time.as_secs_f64() / 60.0);
    let done = soak.run(&gateway, &mut report).await;
    done.map_err(|problem| format!("{problem} (seed {seed})\n{}", gateway.log_end()))?;
    Ok(report)
}

struct Soak {
    plan: Plan,
    random: Random,
    server: Arc<Server>,
    fleets: Vec<Options>,
    cohorts: Arc<Vec<Arc<Cohort>>>,
    gone: Arc<Gone>,
    ledger: Arc<Ledger>,
    faults: Arc<Count>,
}

impl Soak {
    fn new(plan: Plan, gateway: &GatewayProcess, server: Arc<Server>, random: Random) -> Self {
        let cohorts = plan.agents.div_ceil(cohort::SIZE);
        let fleet = |number| Options {
            prefix: format!("soak-{number}-"),
            heartbeat: Some(HEARTBEAT),
            backoff_scale: BACKOFF_SCALE,
            ..Options::new(
                gateway.agents,
                cohort::SIZE.min(plan.agents - number * cohort::SIZE),
            )
        };
        let fleets: Vec<Options> = (0..cohorts).map(fleet).collect();
        Self {
            cohorts: Arc::new(fleets.iter().map(|f| Arc::new(Cohort::new(f))).collect()),
            plan,
            random,
            server,
            fleets,
            gone: Arc::default(),
            ledger: Arc::default(),
            faults: Arc::default(),
        }
    }

    async fn run(&self, gateway: &GatewayProcess, report: &mut Report) -> Result<(), String> {
        let (over, ended) = watch::channel(false);
        let mut lives = self.lives(&ended);
        let caller = self.caller(gateway, ended.clone()).await?;
        let mut load = self.load(&caller, ended);
        let memory = self.watch(gateway, &mut lives, &mut load).await?;
        over.send_replace(true);
        while let Some(ended) = load.join_next().await {
            ended.map_err(|e| e.to_string())??;
        }
        let mut fleets = Vec::new();
        while let Some(fleet) = lives.join_next().await {
            fleets.push(fleet.map_err(|e| e.to_string())??);
        }
        let answers = caller.broadcast(usize::MAX).await?;
        report.exactly(
            "agents in the last broadcast",
            answers as u64,
            self.plan.agents as u64,
        );
        self.judge_answers(report);
        self.judge_memory(&memory, report)?;
        let metrics = quiet(gateway, self.plan.agents).await?;
        self.judge_counts(&metrics, &fleets, report).await?;
        for fleet in fleets {
            self.gone.add(&fleet.stop().await);
        }
        let metrics = quiet(gateway, 0).await?;
        let left = gateway.anonymous_memory()?;
        report.count("anonymous memory when all have left, KiB", left >> 10);
        self.judge_empty(&metrics, report)
    }

    fn lives(&self, over: &watch::Receiver<bool>) -> JoinSet<Result<Fleet, String>> {
        let mut lives = JoinSet::new();
        let random = self.random.apart(0);
        for (number, (cohort, options)) in self.cohorts.iter().zip(&self.fleets).enumerate() {
            let random = random.apart(number as u64);
            let (cohort, options) = (Arc::clone(cohort), options.clone());
            let (gone, over) = (Arc::clone(&self.gone), over.clone());
            lives.spawn(async move { cohort.live(options, random, over, &gone).await });
        }
        lives
    }

    async fn caller(
        &self,
        gateway: &GatewayProcess,
        over: watch::Receiver<bool>,
    ) -> Result<Caller, String> {
        let operator = Operator::connect(gateway.management).await;
        Ok(Caller {
            operator: Arc::new(operator.map_err(|e| e.to_string())?),
            cohorts: Arc::clone(&self.cohorts),
            ledger: Arc::clone(&self.ledger),
            over,
        })
    }

    fn load(&self, caller: &Caller, over: watch::Receiver<bool>) -> JoinSet<Result<(), String>> {
        let mut load = JoinSet::new();
        let random = self.random.apart(1);
        for name in 0..CALLERS {
            let random = random.apart(name as u64);
            load.spawn(caller.clone().singles(name, random));
        }
        load.spawn(caller.clone().broadcasts(self.random.apart(2)));
        let (server, count) = (Arc::clone(&self.server), Arc::clone(&self.faults));
        load.spawn(faults::happen(server, self.random.apart(3), over, count));
        load
    }

    /// Samples memory until the time is over, and tells every minute how it goes. Ends with what
    /// ends too early.
    async fn watch(
        &self,
        gateway: &GatewayProcess,
        lives: &mut JoinSet<Result<Fleet, String>>,
        load: &mut JoinSet<Result<(), String>>,
    ) -> Result<Samples, String> {
        let started = Instant::now();
        let mut samples = Samples::default();
        let mut ticks = interval(SAMPLE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for tick in 1.. {
            tokio::select! {
                _ = ticks.tick() => {}
                Some(ended) = load.join_next() => ended.map_err(|e| e.to_string())??,
                Some(ended) = lives.join_next() => drop(ended.map_err(|e| e.to_string())??),
            }
            let now = started.elapsed();
            let memory = gateway.anonymous_memory()?;
            samples.add(now, memory);
            if tick % PROGRESS_SAMPLES == 0 {
                self.progress(now, memory, &bed::scrape(gateway).await?);
            }
            if now >= self.plan.time {
                break;
            }
        }
        Ok(samples)
    }

    fn progress(&self, now: Duration, memory: u64, metrics: &Metrics) {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        let ledger = &self.ledger;
        progress::say(&format!(
            "soak: minute {:.0}: {} agents, {:.1} MiB, {} lives ended, {} commands, {} answers, \
             {} faults, {} lost",
            now.as_secs_f64() / 60.0,
            bed::value_or_zero(metrics, "agents_current", &[]),
            memory as f64 / f64::from(1 << 20),
            bed::value_or_zero(metrics, "agents_disconnected_total", &[]),
            of(&ledger.commands),
            of(&ledger.answered),
            self.faults.all(),
            of(&ledger.lost),
        ));
    }

    fn judge_answers(&self, report: &mut Report) {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        let (ledger, faults) = (&self.ledger, &self.faults);
        report.count("lives of agents", of(&self.gone.lives));
        report.count("server faults: delays", of(&faults.delays));
        report.count("server faults: refusals", of(&faults.refusals));
        report.count("server faults: cut connections", of(&faults.cuts));
        report.count("commands", of(&ledger.commands));
        report.count("broadcasts among them", of(&ledger.broadcasts));
        report.exactly("answers lost of agents that stayed", of(&ledger.lost), 0);
        report.exactly("answers doubled, strayed, misordered", of(&ledger.wrong), 0);
        report.exactly("entries of no known kind", of(&ledger.others), 0);
        let here: u64 = self.cohorts.iter().map(|c| c.lost_streams()).sum();
        let lost = here + of(&self.gone.lost_streams);
        report.exactly("streams lost of agents that stayed", lost, 0);
    }

    fn judge_memory(&self, memory: &Samples, report: &mut Report) -> Result<(), String> {
        let range = memory.range_from(WARM_UP.min(self.plan.time / 6));
        let range = range.ok_or("no memory was read after the warm-up")?;
        report.count("anonymous memory, lowest, KiB", range.lowest >> 10);
        report.count("anonymous memory, highest, KiB", range.highest >> 10);
        report.times("the highest by the lowest", range.ratio(), FLAT);
        Ok(())
    }

    /// With all agents here, and nothing on its way.
    async fn judge_counts(
        &self,
        metrics: &Metrics,
        fleets: &[Fleet],
        report: &mut Report,
    ) -> Result<(), String> {
        let of = |name: &str| bed::value(metrics, name, &[]);
        let seen = |counter: &AtomicU64| counter.load(Relaxed);
        let now: Vec<_> = fleets.iter().map(Fleet::snapshot).collect();
        let opened = now.iter().map(|fleet| fleet.connects).sum::<u64>();
        let connected = now.iter().map(|fleet| fleet.connected).sum::<u64>();
        let opened = opened + seen(&self.gone.connects);
        let listener = [("listener", "agent")];
        let open = bed::value(metrics, "listener_connections", &listener)?;
        let accepted = bed::value(metrics, "listener_accepted_total", &listener)?;
        Account::new("connections opened", "by agents", opened)
            .part("accepted by the gateway", accepted)
            .judge(report);
        Account::new("connections", "accepted by the gateway", accepted)
            .part("ended, as agents saw it", opened - connected)
            .part("open at the gateway", open)
            .judge(report);
        Account::new("sessions", "connected", of("agents_connected_total")?)
            .part("disconnected", of("agents_disconnected_total")?)
            .part("held", of("agents_current")?)
            .judge(report);
        let routes = self.server.view(|s| bed::routes(s, RouteState::Connected));
        Account::new(
            "sessions at the server",
            "held by the gateway",
            of("agents_current")?,
        )
        .part("known to the server", routes)
        .judge(report);
        Account::new("commands", "targets", of("fanout_target_count_sum")?)
            .part("answered", seen(&self.ledger.answered))
            .part("refused", seen(&self.ledger.refused))
            .part("timed out", of("commands_timed_out_total")?)
            .part("disconnected", seen(&self.ledger.disconnected))
            .judge(report);
        Account::new(
            "answers",
            "taken of agents",
            of("command_duration_ms_count")?,
        )
        .part("seen by operators", seen(&self.ledger.answered))
        .judge(report);
        for name in [
            "upstream_notify_dropped_total",
            "upstream_notify_lost_total",
            "heartbeat_buffer_dropped_total",
            "command_slow_callers_total",
            "commands_dropped_backpressure_total",
            "agent_owner_restarts_total",
        ] {
            report.exactly(name, of(name)?, 0);
        }
        let replays = of("registration_replay_total")?;
        report.count("registrations replayed", replays);
        Ok(())
    }

    /// With all agents gone.
    fn judge_empty(&self, metrics: &Metrics, report: &mut Report) -> Result<(), String> {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        let gone = &self.gone;
        report.exactly("agents that did not end", of(&gone.running), 0);
        report.exactly(
            "commands twice or late at an agent",
            of(&gone.misordered),
            0,
        );
        let connected = bed::value(metrics, "agents_connected_total", &[])?;
        Account::new("sessions at the end", "connected", connected)
            .part(
                "disconnected",
                bed::value(metrics, "agents_disconnected_total", &[])?,
            )
            .judge(report);
        let known = self
            .server
            .view(|s: &State| bed::routes(s, RouteState::Connected));
        report.exactly("agents that the server still holds", known, 0);
        let listener = [("listener", "agent")];
        let open = bed::value(metrics, "listener_connections", &listener)?;
        report.exactly("connections open at the gateway", open, 0);
        Ok(())
    }
}

/// Waits until the gateway holds this many agents and nothing is on its way to the server.
async fn quiet(gateway: &GatewayProcess, agents: usize) -> Result<Metrics, String> {
    let listener = [("listener", "agent")];
    let still = |metrics: &Metrics| {
        let of = |name: &str| bed::value(metrics, name, &[]);
        let idle = [
            "upstream_notify_pending",
            "upstream_notify_inflight",
            "upstream_notify_unacked_keys",
            "upstream_permits_held",
            "upstream_permits_waiting",
            "registration_replay_queue_depth",
        ];
        let open = bed::value(metrics, "listener_connections", &listener);
        idle.iter().all(|name| of(name) == Ok(0))
            && of("agents_current") == Ok(agents as u64)
            && open == Ok(agents as u64)
    };
    let what = format!("{agents} agents and a quiet gateway");
    bed::gateway_has(gateway, &what, QUIET_LIMIT, still).await
}
