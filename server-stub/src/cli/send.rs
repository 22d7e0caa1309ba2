//! `send`: one command through a gateway, answers as they arrive.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use tonic::Streaming;
use yuzu_proto::server::v1::SendCommandResponse;
use yuzu_server_stub::operator::{Dispatch, Summary, Tally, new_command_id, status_name};

use super::{EXIT_CALL, EXIT_OK, EXIT_RESULT, EXIT_USAGE, Gateway, refused, text};

/// Longest time a gateway gives a command.
const MAX_TIMEOUT_S: i64 = 3600;
/// How much later than the gateway this side gives up.
const GRACE: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    gateway: Gateway,
    /// Target; repeat for more
    #[arg(long = "agent", value_name = "ID", required_unless_present = "all")]
    agents: Vec<String>,
    /// Broadcast to every agent the gateway holds
    #[arg(long, conflicts_with = "agents")]
    all: bool,
    /// Plugin of the agent
    #[arg(long)]
    plugin: String,
    /// Action of the plugin
    #[arg(long)]
    action: String,
    /// Parameter of the action; repeat for more
    #[arg(long = "param", value_name = "KEY=VALUE", value_parser = parameter)]
    parameters: Vec<(String, String)>,
    /// File whose bytes are the payload
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// Seconds until the gateway gives up, 1 to 3600; not given: the gateway's default
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i32).range(1..=MAX_TIMEOUT_S))]
    timeout: Option<i32>,
    /// Id of the command; not given: a random one
    #[arg(long, value_name = "ID")]
    command_id: Option<String>,
    /// One JSON object per line, the summary last
    #[arg(long)]
    json: bool,
}

fn parameter(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err("use KEY=VALUE".into()),
    }
}

impl Args {
    fn dispatch(&self) -> Result<Dispatch, String> {
        let payload = match &self.payload_file {
            Some(file) => {
                let shown = file.display();
                let read = std::fs::read(file);
                read.map_err(|error| format!("can't read the payload from {shown}: {error}"))?
            }
            None => Vec::new(),
        };
        let command_id = match &self.command_id {
            Some(id) => id.clone(),
            None => new_command_id().map_err(|error| format!("no random command id: {error}"))?,
        };
        Ok(Dispatch {
            agents: self.agents.clone(),
            command_id,
            plugin: self.plugin.clone(),
            action: self.action.clone(),
            parameters: self.parameters.iter().cloned().collect(),
            payload: Bytes::from(payload),
            timeout_seconds: self.timeout.unwrap_or(0),
        })
    }

    fn deadline(&self) -> Duration {
        let seconds = self.timeout.map_or(MAX_TIMEOUT_S, i64::from);
        Duration::from_secs(seconds.unsigned_abs()) + GRACE
    }
}

pub(crate) async fn run(args: Args) -> u8 {
    let dispatch = match args.dispatch() {
        Ok(dispatch) => dispatch,
        Err(error) => {
            eprintln!("error: {error}");
            return EXIT_USAGE;
        }
    };
    let mut operator = match args.gateway.connect().await {
        Ok(operator) => operator,
        Err(code) => return code,
    };
    let mut tally = Tally::new(&dispatch.agents);
    let started = Instant::now();
    let call = async {
        let answers = operator.send(&dispatch).await?;
        print_answers(answers, &mut tally, started, args.json).await
    };
    let end = tokio::select! {
        end = tokio::time::timeout(args.deadline(), call) => Some(end),
        _ = tokio::signal::ctrl_c() => None,
    };
    let summary = tally.summary();
    print_summary(&dispatch.command_id, &summary, started.elapsed(), args.json);
    match end {
        Some(Ok(Ok(()))) if summary.all_succeeded() => EXIT_OK,
        Some(Ok(Ok(()))) | None => EXIT_RESULT,
        Some(Ok(Err(status))) => refused(&status),
        Some(Err(_)) => {
            eprintln!("error: the gateway did not end the call in time");
            EXIT_CALL
        }
    }
}

async fn print_answers(
    mut answers: Streaming<SendCommandResponse>,
    tally: &mut Tally,
    started: Instant,
    as_json: bool,
) -> Result<(), tonic::Status> {
    while let Some(answer) = answers.message().await? {
        let elapsed = started.elapsed();
        let failure = tally.take(&answer, elapsed);
        if as_json {
            println!("{}", json_of(&answer, elapsed));
        } else {
            println!("{}", line_of(&answer, elapsed, failure));
        }
    }
    Ok(())
}

fn line_of(answer: &SendCommandResponse, elapsed: Duration, failure: Option<String>) -> String {
    let response = answer.response.clone().unwrap_or_default();
    let status = failure.unwrap_or_else(|| status_name(response.status));
    let agent = text::printable(&answer.agent_id, 256);
    let ms = millis(elapsed);
    let mut line = format!(
        "{ms:>8.1} ms  {agent}  {status}  exit {}",
        response.exit_code
    );
    if !response.payload.is_empty() {
        let _ = write!(line, "  payload {} bytes", response.payload.len());
    }
    if !response.output.is_empty() {
        let _ = write!(line, "  {}", text::printable(&response.output, 200));
    }
    line
}

fn json_of(answer: &SendCommandResponse, elapsed: Duration) -> Value {
    let response = answer.response.clone().unwrap_or_default();
    let error = response
        .error
        .map(|error| json!({ "code": error.code, "message": error.message }));
    json!({
        "ms": millis(elapsed),
        "agent_id": answer.agent_id,
        "command_id": response.command_id,
        "status": status_name(response.status),
        "exit_code": response.exit_code,
        "output": response.output,
        "payload_bytes": response.payload.len(),
        "error": error,
    })
}

fn print_summary(command_id: &str, summary: &Summary, elapsed: Duration, as_json: bool) {
    if as_json {
        let summary = json!({
            "command_id": command_id,
            "heard": summary.heard,
            "succeeded": summary.succeeded,
            "failures": summary.failures,
            "unfinished": summary.unfinished,
            "silent": summary.silent,
            "entries": summary.entries,
            "after_the_end": summary.after_the_end,
            "first_answer_ms": summary.first_answer.map(millis),
            "ms": millis(elapsed),
        });
        println!("{}", json!({ "summary": summary }));
        return;
    }
    let counted = |(reason, count): (&String, &usize)| format!("{count} {reason}");
    let failures: Vec<String> = summary.failures.iter().map(counted).collect();
    let failures = if failures.is_empty() {
        "no failures".into()
    } else {
        failures.join(", ")
    };
    eprintln!(
        "{}: {} targets answered, {} succeeded, {failures}, {} unfinished, {} silent; \
         {} entries in {:.1} ms",
        text::printable(command_id, 80),
        summary.heard,
        summary.succeeded,
        summary.unfinished,
        summary.silent,
        summary.entries,
        millis(elapsed),
    );
}

/// Milliseconds with one decimal.
fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}
