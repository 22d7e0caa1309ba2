//! `watch`: WatchEvents until Ctrl-C.

use serde_json::json;
use yuzu_proto::server::v1::AgentEvent;
use yuzu_proto::server::v1::agent_event::Event;

use super::{EXIT_CALL, EXIT_OK, Gateway, refused, text};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    gateway: Gateway,
    /// Only this agent; repeat for more
    #[arg(long = "agent", value_name = "ID")]
    agents: Vec<String>,
    /// End after so many events
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> u8 {
    tokio::select! {
        code = watch(args) => code,
        _ = tokio::signal::ctrl_c() => EXIT_OK,
    }
}

async fn watch(args: Args) -> u8 {
    let mut operator = match args.gateway.connect().await {
        Ok(operator) => operator,
        Err(code) => return code,
    };
    let mut events = match operator.watch(args.agents).await {
        Ok(events) => events,
        Err(status) => return refused(&status),
    };
    eprintln!("watching");
    let mut seen = 0;
    while args.count.is_none_or(|count| seen < count) {
        match events.message().await {
            Ok(Some(event)) => print(&event, args.json),
            Ok(None) => {
                eprintln!("error: the gateway ended the stream");
                return EXIT_CALL;
            }
            Err(status) => return refused(&status),
        }
        seen += 1;
    }
    EXIT_OK
}

fn print(event: &AgentEvent, as_json: bool) {
    let id = &event.agent_id;
    let at = event
        .occurred_at
        .as_ref()
        .map_or(0, |time| time.millis_epoch);
    let (kind, detail) = match &event.event {
        Some(Event::Connected(connected)) => ("connected", connected.session_id.as_str()),
        Some(Event::Disconnected(gone)) => ("disconnected", gone.reason.as_str()),
        Some(Event::PluginLoaded(_)) => ("plugin_loaded", ""),
        None => ("unknown", ""),
    };
    if as_json {
        println!(
            "{}",
            json!({ "agent_id": id, "at_ms": at, "event": kind, "detail": detail })
        );
    } else {
        let (id, detail) = (text::printable(id, 256), text::printable(detail, 100));
        println!("{at}\t{id}\t{kind}\t{detail}");
    }
}
