//! A peer with a million agents: what a node's table of them costs, and whether commands for its own
//! agents flow while it is filled (ADJ-4).
//!
//! The peer is a gateway in this process that only says that it has them: a million sessions do not
//! fit here. It tells of them over a real link, to a gateway process.

use crate::bed::{self, Binaries};
use crate::report::Report;
use crate::server::Server;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use yuzu_gateway::Gateway;
use yuzu_gateway::config::{Config, Listener, Secret};
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_proto::server::v1::agent_event::Event;
use yuzu_server_stub::StubConfig;
use yuzu_tests::broadcast::percentile;
use yuzu_tests::fleet::{Fleet, Options};
use yuzu_tests::operator::Operator;
use yuzu_tests::process::{GatewayProcess, Lines, Member, free_addresses};
use yuzu_tests::testbed::endpoint;

pub(crate) const ABOUT: &str =
    "1,000,000 agents of a peer, and 100,000, told while commands flow to 1,000 own ones";

const OWN: usize = 1_000;
const CALLERS: usize = 4;
/// Between two commands of a caller: the load is to be seen, not to be all that there is.
const PAUSE: Duration = Duration::from_millis(2);
/// Commands before a peer comes.
const BEFORE: Duration = Duration::from_secs(5);
/// What is to be given back after a change.
const SETTLE: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(120);
const SECRET: &str = "the secret of a pair, 32 characters";
const NAME: &str = "peer";
/// Of a million rows.
const MEMORY: u64 = 150 << 20;
/// The longest that a command may take meanwhile, 99 of 100 of them.
const SLOW: Duration = Duration::from_millis(20);

struct Pair {
    server: Server,
    node: GatewayProcess,
    /// Where the node looks for the peer.
    peer: SocketAddr,
    fleet: Fleet,
}

/// The peer, on threads of its own: a node of a machine of its own.
struct Peer {
    gateway: Option<Gateway>,
    runtime: Option<Runtime>,
}

pub(crate) async fn run(binaries: &Binaries, rows: u64) -> Result<Report, String> {
    let pair = Pair::start(binaries).await?;
    let mut report = Report::default();
    pair.told_of(rows / 10, &mut report).await?;
    pair.told_of(rows, &mut report).await?;
    pair.fleet.stop().await;
    Ok(report)
}

impl Pair {
    async fn start(binaries: &Binaries) -> Result<Self, String> {
        let server = Server::start(StubConfig::default()).await?;
        let free = free_addresses(Ipv4Addr::LOCALHOST);
        let [own, peer] = free.map_err(|e| e.to_string())?;
        let member = Member {
            name: "node".into(),
            address: Ipv4Addr::LOCALHOST,
            private: false,
            node: own,
            seeds: vec![peer],
            secret: SECRET.into(),
        };
        let (gateway, lines) = (&binaries.gateway, Lines::default());
        let node = GatewayProcess::start_member(gateway, server.addr(), lines, &member, LIMIT);
        let node = node.await?;
        let fleet = Fleet::start(Options {
            heartbeat: None,
            ..Options::new(node.agents, OWN)
        });
        let all = fleet.all_subscribed(LIMIT).await;
        all.map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
        Ok(Self {
            server,
            node,
            peer,
            fleet,
        })
    }

    /// A peer comes with so many agents, one of them goes, and then the peer.
    async fn told_of(&self, rows: u64, report: &mut Report) -> Result<(), String> {
        sleep(SETTLE).await;
        let idle = self.node.anonymous_memory()?;
        let load = self.load().await?;
        sleep(BEFORE).await;
        let mut before = load.end().await?;
        let peer = Peer::start(self.config(), rows).await?;
        let load = self.load().await?;
        let linked = |metrics: &_| bed::value(metrics, "cluster_peers_connected", &[]) == Ok(1);
        bed::gateway_has(&self.node, "the peer", LIMIT, linked).await?;
        let started = Instant::now();
        self.knows(rows).await?;
        let took = started.elapsed();
        let mut during = load.end().await?;
        sleep(SETTLE).await;
        let grown = self.node.anonymous_memory()?.saturating_sub(idle);
        let seen = self.sees_one_go(&peer, rows / 2).await?;
        self.knows(rows - 1).await?;
        peer.stop().await?;
        self.knows(0).await?;

        let name = |what: &str| format!("{rows} rows: {what}");
        report.time(&name("link to all of them known, to a second"), took);
        report.at_most(
            &name("memory, bytes"),
            grown,
            MEMORY * rows.max(100_000) / 1_000_000,
        );
        report.number(&name("memory of one, bytes"), grown as f64 / rows as f64);
        report.count(&name("commands meanwhile"), during.times.len() as u64);
        report.exactly(
            &name("commands without their answer"),
            before.failed + during.failed,
            0,
        );
        report.time(&name("one command before, p99"), before.p99());
        report.within(&name("one command meanwhile, p99"), during.p99(), SLOW);
        report.time(&name("the slowest meanwhile"), during.slowest());
        report.within(
            &name("an agent that goes is seen to go"),
            seen,
            Duration::from_secs(1),
        );
        Ok(())
    }

    fn config(&self) -> Config {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut config = Config {
            listeners: vec![Listener::agent(free), Listener::node(self.peer)],
            ..Config::default()
        };
        config.node.name = NAME.into();
        config.upstream.endpoints = vec![endpoint(self.server.addr())];
        config.observe.metrics_address = free;
        config.observe.health_address = free;
        config.cluster.secret = Some(Secret::new(SECRET));
        config
    }

    /// Waits until the node knows of exactly so many agents of the peer.
    async fn knows(&self, rows: u64) -> Result<(), String> {
        let known =
            |metrics: &_| bed::value(metrics, "adjacency_agents", &[("node", "all")]) == Ok(rows);
        let what = format!("{rows} agents of the peer");
        bed::gateway_has(&self.node, &what, LIMIT, known).await?;
        Ok(())
    }

    /// From the peer's word that an agent went to the event at a caller of the node.
    async fn sees_one_go(&self, peer: &Peer, number: u64) -> Result<Duration, String> {
        let operator = self.operator().await?;
        let agent = Gateway::pretended_agent(number);
        let watch = operator.watch(&[&agent]).await;
        let mut watch = watch.map_err(|e| e.to_string())?;
        let started = Instant::now();
        peer.end(number);
        let event = watch.next().await?.map_err(|status| status.to_string())?;
        match event.event {
            Some(Event::Disconnected(_)) if event.agent_id == agent => Ok(started.elapsed()),
            _ => Err(format!("the event is {event:?}")),
        }
    }

    async fn operator(&self) -> Result<Operator, String> {
        let operator = Operator::connect(self.node.management).await;
        operator.map_err(|e| e.to_string())
    }

    /// Begins to send commands to the node's own agents.
    async fn load(&self) -> Result<Load, String> {
        let ends = Arc::new(AtomicBool::new(false));
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (ends, operator) = (Arc::clone(&ends), self.operator().await?);
            let agents: Vec<_> = (0..OWN).map(|n| self.fleet.options().agent_id(n)).collect();
            callers.spawn(async move {
                let mut done = Commands::default();
                let mut number = caller;
                while !ends.load(Ordering::Relaxed) {
                    done.send(&operator, &agents[number % OWN], number).await;
                    number += CALLERS;
                    sleep(PAUSE).await;
                }
                done
            });
        }
        Ok(Load { ends, callers })
    }
}

struct Load {
    ends: Arc<AtomicBool>,
    callers: JoinSet<Commands>,
}

impl Load {
    async fn end(self) -> Result<Commands, String> {
        self.ends.store(true, Ordering::Relaxed);
        let mut all = Commands::default();
        for done in self.callers.join_all().await {
            all.failed += done.failed;
            all.times.extend(done.times);
        }
        all.times.sort_unstable();
        Ok(all)
    }
}

#[derive(Default)]
struct Commands {
    times: Vec<Duration>,
    failed: u64,
}

impl Commands {
    async fn send(&mut self, operator: &Operator, agent: &str, number: usize) {
        let command = CommandRequest {
            command_id: format!("own-{number}"),
            plugin: "shell".into(),
            ..CommandRequest::default()
        };
        let started = Instant::now();
        let answers = match operator.send(&[agent], command, 60).await {
            Ok(mut fanout) => fanout.successes().await,
            Err(error) => Err(error.to_string()),
        };
        self.times.push(started.elapsed());
        self.failed += u64::from(answers != Ok(1));
    }

    fn p99(&mut self) -> Duration {
        percentile(&self.times, 0.99).unwrap_or_default()
    }

    fn slowest(&self) -> Duration {
        self.times.last().copied().unwrap_or_default()
    }
}

impl Peer {
    async fn start(config: Config, rows: u64) -> Result<Self, String> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("peer")
            .enable_all()
            .build()
            .map_err(|e| e.to_string())?;
        let gateway = runtime.spawn(Gateway::start_pretending(config, rows)).await;
        let gateway = gateway.map_err(|e| e.to_string())?;
        Ok(Self {
            gateway: Some(gateway.map_err(|e| e.to_string())?),
            runtime: Some(runtime),
        })
    }

    fn end(&self, number: u64) {
        if let Some(gateway) = &self.gateway {
            gateway.pretend_end(number);
        }
    }

    async fn stop(mut self) -> Result<(), String> {
        if let (Some(gateway), Some(runtime)) = (self.gateway.take(), &self.runtime) {
            let stopped = runtime.spawn(gateway.shutdown()).await;
            stopped.map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting for its threads is not allowed on another runtime.
            runtime.shutdown_background();
        }
    }
}
