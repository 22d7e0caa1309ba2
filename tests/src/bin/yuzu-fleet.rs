//! Simulated agents against a running gateway.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool"
)]

use clap::{Parser, ValueEnum};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};
use yuzu_tests::cli::{Interval, check_descriptors, duration, interval, resolve, stop_signal};
use yuzu_tests::fleet::{Answer, Fleet, Misbehaviour, Options, Outcome, Periodic, Rpc, Snapshot};
use yuzu_tests::raw::{self, Tls, code};

/// Simulated agents: each opens one connection to a gateway, registers, subscribes, sends
/// heartbeats and answers commands. A lost agent comes back with the real agent's backoff
/// (2, 4, ... 256 s). Prints a line a second; Ctrl-C ends all agents cleanly.
#[derive(Debug, Parser)]
#[command(name = "yuzu-fleet", version)]
struct Arguments {
    /// The gateway's agent listener, host:port.
    #[arg(long, default_value = "127.0.0.1:50051")]
    gateway: String,
    /// PEM file with the CA of the gateway; with it the agents speak TLS.
    #[arg(long, value_name = "FILE")]
    ca_cert: Option<PathBuf>,
    /// Name that the gateway's certificate must have; without it the host of --gateway.
    #[arg(long, value_name = "NAME", requires = "ca_cert")]
    tls_name: Option<String>,
    /// Address that the agents dial from; without it the system chooses.
    #[arg(long, value_name = "IP")]
    source: Option<IpAddr>,
    /// Number of agents, one connection each (one process holds about 19,000).
    #[arg(long, default_value_t = 1)]
    agents: usize,
    /// Agent ids are this and a number.
    #[arg(long, default_value = "sim-")]
    prefix: String,
    /// Number of the first agent.
    #[arg(long, default_value_t = 0)]
    first: usize,
    /// Enrollment token that every agent presents.
    #[arg(long, default_value = "", hide_default_value = true)]
    token: String,
    /// Time between heartbeats, such as 30s or 500ms, or `off`.
    #[arg(long, default_value = "30s", value_parser = interval)]
    heartbeat: Interval,
    /// Time from a command to its answer, in milliseconds.
    #[arg(long, default_value_t = 0, value_name = "MS")]
    answer_delay_ms: u64,
    /// Length of an answer's output.
    #[arg(long, default_value_t = 64, value_name = "BYTES")]
    answer_bytes: usize,
    /// RUNNING frames before each answer.
    #[arg(long, default_value_t = 0, value_name = "N")]
    running_frames: u32,
    /// Time between inventory reports, or `off`.
    #[arg(long, default_value = "off", value_parser = interval)]
    inventory: Interval,
    /// Size of an inventory report.
    #[arg(long, default_value_t = 1_000, value_name = "BYTES")]
    inventory_bytes: usize,
    /// Time between unsolicited Guardian frames, or `off`.
    #[arg(long, default_value = "off", value_parser = interval)]
    guardian: Interval,
    /// Connects a second; without it all agents dial at once.
    #[arg(long, value_name = "N")]
    connect_per_second: Option<f64>,
    /// Factor on every backoff wait; 1 is the real agent.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    backoff_scale: f64,
    /// What the agents do wrong.
    #[arg(long, value_enum, default_value_t = Fault::None)]
    misbehave: Fault,
    /// Commands an agent takes before it misbehaves.
    #[arg(long, default_value_t = 0, value_name = "COMMANDS")]
    misbehave_after: u64,
    /// Stop after this time; without it, at Ctrl-C.
    #[arg(long = "for", value_parser = duration, value_name = "DURATION")]
    run_for: Option<Duration>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Fault {
    /// Nothing.
    None,
    /// Connect and never register.
    NeverRegister,
    /// Take commands, answer none.
    NeverAnswer,
    /// Stop reading the stream.
    StopReading,
    /// Half-close the stream.
    HalfClose,
    /// Reset the stream.
    Reset,
    /// Close the socket.
    Disconnect,
    /// Reset the TCP connection.
    Abort,
}

impl Arguments {
    async fn options(self) -> Result<Options, String> {
        check_descriptors(self.agents)?;
        if self
            .connect_per_second
            .is_some_and(|rate| !(rate > 0.0 && rate.is_finite()))
        {
            return Err("--connect-per-second must be above 0".into());
        }
        if !(self.backoff_scale >= 0.0 && self.backoff_scale <= 1_000.0) {
            return Err("--backoff-scale must be between 0 and 1000".into());
        }
        let tls = self.tls()?;
        let after = self.misbehave_after;
        let periodic =
            |every: Interval, bytes| every.0.map(|interval| Periodic { interval, bytes });
        Ok(Options {
            prefix: self.prefix,
            first: self.first,
            heartbeat: self.heartbeat.0,
            answer: Answer {
                delay: Duration::from_millis(self.answer_delay_ms),
                bytes: self.answer_bytes,
                running_frames: self.running_frames,
            },
            inventory: periodic(self.inventory, self.inventory_bytes),
            guardian: periodic(self.guardian, 64),
            misbehaviour: match self.misbehave {
                Fault::None => Misbehaviour::None,
                Fault::NeverRegister => Misbehaviour::NeverRegister,
                Fault::NeverAnswer => Misbehaviour::NeverAnswer,
                Fault::StopReading => Misbehaviour::StopReading { after },
                Fault::HalfClose => Misbehaviour::HalfClose { after },
                Fault::Reset => Misbehaviour::Reset { after },
                Fault::Disconnect => Misbehaviour::Disconnect { after },
                Fault::Abort => Misbehaviour::Abort { after },
            },
            connects_per_second: self.connect_per_second,
            backoff_scale: self.backoff_scale,
            enrollment_token: self.token,
            connection: raw::Options {
                tls,
                source: self.source,
                ..raw::Options::default()
            },
            ..Options::new(resolve(&self.gateway).await?, self.agents)
        })
    }
}

impl Arguments {
    fn tls(&self) -> Result<Option<Tls>, String> {
        let Some(path) = &self.ca_cert else {
            return Ok(None);
        };
        let pem = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let host = self
            .gateway
            .rsplit_once(':')
            .map_or(&*self.gateway, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = self.tls_name.as_deref().unwrap_or(host);
        Tls::trusting(&pem)?.named(name).map(Some)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let run_for = arguments.run_for;
    match arguments.options().await {
        Ok(options) => {
            run(options, run_for).await;
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("yuzu-fleet: {problem}");
            ExitCode::from(2)
        }
    }
}

async fn run(options: Options, run_for: Option<Duration>) {
    let gateway = options.gateway;
    if let Err(error) = tokio::net::TcpStream::connect(gateway).await {
        eprintln!("yuzu-fleet: {gateway} cannot be reached yet ({error}); the agents keep trying");
    }
    println!(
        "{} agents at {gateway}, {} to {}; Ctrl-C ends them",
        options.agents,
        options.agent_id(0),
        options.agent_id(options.agents.saturating_sub(1))
    );
    let started = Instant::now();
    let fleet = Fleet::start(options);
    let mut before = fleet.snapshot();
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let end = async {
        match run_for {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(end);
    let signal = stop_signal();
    tokio::pin!(signal);
    second.tick().await;
    loop {
        tokio::select! {
            _ = second.tick() => {
                let now = fleet.snapshot();
                println!("{:>5}s  {}", started.elapsed().as_secs(), line(&now, &before));
                before = now;
            }
            () = &mut signal => break,
            () = &mut end => break,
        }
    }
    println!("stopping");
    let last = fleet.stop().await;
    println!(" total  {}", line(&last, &Snapshot::default()));
    if last.running > 0 {
        eprintln!("yuzu-fleet: {} agents did not end in time", last.running);
    }
}

/// What is, and what was added since `before`.
fn line(now: &Snapshot, before: &Snapshot) -> String {
    let mut line = format!(
        "connected {} subscribed {}  commands {} (+{})  answers {} (+{})  heartbeats {}/{}",
        now.connected,
        now.subscribed,
        now.commands,
        now.commands - before.commands,
        now.answers,
        now.answers - before.answers,
        now.heartbeats_acked,
        now.heartbeats_sent,
    );
    for (name, count) in [
        ("inventories", now.inventories_acked),
        ("guardian frames", now.guardian_frames),
        ("reconnects", now.reconnects),
        ("refused for good", now.denied),
        ("failed connects", now.connect_failures),
        ("duplicates", now.duplicates),
        ("out of order", now.out_of_order),
    ] {
        if count > 0 {
            line.push_str(&format!("  {name} {count}"));
        }
    }
    for (&(rpc, outcome), count) in &now.ends {
        if rpc != Rpc::Subscribe && outcome == Outcome::Status(code::OK) {
            continue;
        }
        line.push_str(&format!(
            "  {} {}: {count}",
            rpc_name(rpc),
            outcome_name(outcome)
        ));
    }
    line
}

fn rpc_name(rpc: Rpc) -> &'static str {
    match rpc {
        Rpc::Register => "register",
        Rpc::Subscribe => "stream ended",
        Rpc::Heartbeat => "heartbeat",
        Rpc::Inventory => "inventory",
    }
}

fn outcome_name(outcome: Outcome) -> String {
    match outcome {
        Outcome::Status(code) => format!("status {code}"),
        Outcome::Deadline => "deadline".into(),
        Outcome::Broken => "broken".into(),
        Outcome::Disconnected => "disconnected".into(),
    }
}
