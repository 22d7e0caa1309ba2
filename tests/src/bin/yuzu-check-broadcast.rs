//! The scale check of broadcasts: every answer arrives once, and memory is given back.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool"
)]

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_server_stub::{Rpc, State, StubConfig, StubServer};
use yuzu_tests::broadcast::{broadcast, percentile};
use yuzu_tests::cli::check_descriptors;
use yuzu_tests::fleet::{Answer, Fleet, Options};
use yuzu_tests::operator::Operator;
use yuzu_tests::process::{GatewayProcess, program};

/// Starts a gateway as its own process, attaches agents to it and sends broadcasts in rounds.
/// Every answer must arrive once and in order; the gateway's anonymous memory after the last
/// round must be near that after the first; at the end, SIGTERM must tell every session to the
/// server. Exits with 1 when a bound is missed.
#[derive(Debug, Parser)]
#[command(name = "yuzu-check-broadcast", version)]
struct Arguments {
    /// Simulated agents.
    #[arg(long, default_value_t = 2_000)]
    agents: usize,
    /// Broadcasts in a round.
    #[arg(long, default_value_t = 20)]
    broadcasts: usize,
    /// Rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// RUNNING frames before each answer.
    #[arg(long, default_value_t = 2)]
    running_frames: u32,
    /// Length of an answer's output.
    #[arg(long, default_value_t = 64)]
    answer_bytes: usize,
    /// Wait before memory is read, after the first and the last round.
    #[arg(long, default_value_t = 60)]
    settle_seconds: u64,
    /// Memory after the last round may be this multiple of that after the first.
    #[arg(long, default_value_t = 1.05)]
    memory_bound: f64,
    /// The gateway; by default the one beside this program.
    #[arg(long)]
    gateway_binary: Option<PathBuf>,
}

const START_LIMIT: Duration = Duration::from_secs(30);
const ATTACH_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(60);
const COMMAND_TIMEOUT_S: i32 = 60;

#[tokio::main]
async fn main() -> ExitCode {
    match check(Arguments::parse()).await {
        Ok(missed) if missed.is_empty() => {
            println!("all bounds are met");
            ExitCode::SUCCESS
        }
        Ok(missed) => {
            for bound in missed {
                println!("MISSED: {bound}");
            }
            ExitCode::FAILURE
        }
        Err(problem) => {
            eprintln!("yuzu-check-broadcast: {problem}");
            ExitCode::from(2)
        }
    }
}

/// The bounds that were missed.
async fn check(arguments: Arguments) -> Result<Vec<String>, String> {
    if arguments.agents == 0 || arguments.broadcasts == 0 {
        return Err("--agents and --broadcasts must be above 0".into());
    }
    if arguments.rounds < 2 {
        return Err("--rounds must be 2 or more: the last is held against the first".into());
    }
    check_descriptors(arguments.agents)?;
    let binary = arguments.gateway_binary.as_deref();
    let binary = program(binary, "yuzu-gateway", "--gateway-binary")?;
    let server = StubServer::start(StubConfig::default())
        .await
        .map_err(|e| e.to_string())?;
    let gateway = GatewayProcess::start(&binary, server.addr(), START_LIMIT).await?;
    let mut missed = Vec::new();
    let fleet = attach(&arguments, &gateway).await?;
    let operator = Operator::connect(gateway.management)
        .await
        .map_err(|e| e.to_string())?;
    let mut first = 0;
    for round in 1..=arguments.rounds {
        missed.extend(run_round(&arguments, &operator, &fleet, round).await?);
        let memory = gateway.anonymous_memory()?;
        println!(
            "round {round}: {:.1} MiB anonymous memory at its end",
            mebibytes(memory)
        );
        if round == 1 || round == arguments.rounds {
            let memory = settled(&arguments, &gateway).await?;
            if round == 1 {
                first = memory;
            } else {
                missed.extend(judge_memory(&arguments, first, memory));
            }
        }
    }
    let lost = fleet.snapshot();
    if lost.duplicates + lost.out_of_order + lost.reconnects > 0 {
        missed.push(format!(
            "agents saw {} doubled and {} late commands and came back {} times",
            lost.duplicates, lost.out_of_order, lost.reconnects
        ));
    }
    missed.extend(stop(&arguments, &server, gateway).await?);
    fleet.stop().await;
    Ok(missed)
}

async fn attach(arguments: &Arguments, gateway: &GatewayProcess) -> Result<Fleet, String> {
    let answer = Answer {
        bytes: arguments.answer_bytes,
        running_frames: arguments.running_frames,
        delay: Duration::ZERO,
    };
    let started = Instant::now();
    let options = Options {
        answer,
        ..Options::new(gateway.agents, arguments.agents)
    };
    let fleet = Fleet::start(options);
    fleet.all_subscribed(ATTACH_LIMIT).await.map_err(|now| {
        format!(
            "only {} agents are subscribed\n{}",
            now.subscribed,
            gateway.log_end()
        )
    })?;
    println!(
        "{} agents subscribed in {:.2} s, {:.1} MiB anonymous memory",
        arguments.agents,
        started.elapsed().as_secs_f64(),
        mebibytes(gateway.anonymous_memory()?)
    );
    Ok(fleet)
}

/// One round of broadcasts, one after the other.
async fn run_round(
    arguments: &Arguments,
    operator: &Operator,
    fleet: &Fleet,
    round: usize,
) -> Result<Option<String>, String> {
    let ids: Vec<String> = (0..arguments.agents)
        .map(|i| fleet.options().agent_id(i))
        .collect();
    let expected_running = arguments.agents as u64 * u64::from(arguments.running_frames);
    let (mut answers, mut missing, mut wrong, mut latencies) = (0, 0, 0, Vec::new());
    let started = Instant::now();
    for number in 1..=arguments.broadcasts {
        let command = CommandRequest {
            command_id: format!("round{round}-{number}"),
            plugin: "shell".into(),
            ..CommandRequest::default()
        };
        let sent = broadcast(operator, command, COMMAND_TIMEOUT_S).await?;
        let tally = &sent.tally;
        answers += tally.answered();
        missing += tally.missing(ids.iter().map(String::as_str));
        wrong += tally.doubled + tally.misordered + tally.failures + tally.strays;
        wrong += usize::from(!sent.status.is_ok());
        wrong += usize::from(tally.running() != expected_running);
        latencies.extend(sent.latencies);
    }
    let elapsed = started.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let ms = |share| {
        percentile(&latencies, share)
            .unwrap_or_default()
            .as_secs_f64()
            * 1_000.0
    };
    println!(
        "round {round}: {answers} answers in {elapsed:.2} s ({:.0}/s), p50 {:.1} ms, p99 {:.1} ms, \
         {missing} missing, {wrong} wrong",
        answers as f64 / elapsed,
        ms(0.5),
        ms(0.99),
    );
    let expected = arguments.agents * arguments.broadcasts;
    let good = answers == expected && missing == 0 && wrong == 0;
    Ok((!good).then(|| {
        format!("round {round}: {answers} of {expected} answers, {missing} missing, {wrong} wrong")
    }))
}

async fn settled(arguments: &Arguments, gateway: &GatewayProcess) -> Result<u64, String> {
    sleep(Duration::from_secs(arguments.settle_seconds)).await;
    let memory = gateway.anonymous_memory()?;
    println!(
        "{} s later: {:.1} MiB anonymous memory, {:.1} KiB an agent",
        arguments.settle_seconds,
        mebibytes(memory),
        memory as f64 / 1_024.0 / arguments.agents as f64
    );
    Ok(memory)
}

fn judge_memory(arguments: &Arguments, first: u64, last: u64) -> Option<String> {
    let ratio = last as f64 / first as f64;
    println!("memory after the last round: {ratio:.3} of that after the first");
    (ratio > arguments.memory_bound).then(|| {
        format!(
            "memory grew to {ratio:.3} of the first round's, over {}",
            arguments.memory_bound
        )
    })
}

/// SIGTERM: a clean exit, and every session told to the server.
async fn stop(
    arguments: &Arguments,
    server: &StubServer,
    mut gateway: GatewayProcess,
) -> Result<Option<String>, String> {
    let started = Instant::now();
    let status = gateway.terminate(STOP_LIMIT).await?;
    let told = server.view(disconnected);
    println!(
        "SIGTERM: ended with {status} after {:.2} s, {told} sessions told to the server",
        started.elapsed().as_secs_f64()
    );
    let good = status.success() && told == arguments.agents;
    Ok((!good).then(|| {
        format!(
            "the stop: {status}, {told} of {} sessions told",
            arguments.agents
        )
    }))
}

fn disconnected(state: &State) -> usize {
    let notices = state
        .received(Rpc::NotifyStreamStatus)
        .filter_map(|n| n.stream_status());
    notices
        .filter(|notice| notice.event() == Event::Disconnected)
        .count()
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
