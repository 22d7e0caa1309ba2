//! `agents`: ListAgents, page by page.

use serde_json::json;
use yuzu_proto::server::v1::AgentSummary;

use super::{EXIT_OK, Gateway, refused, text};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    gateway: Gateway,
    /// Agents per call, 1 to 1000
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(i32).range(1..=1000))]
    page: i32,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> u8 {
    let mut operator = match args.gateway.connect().await {
        Ok(operator) => operator,
        Err(code) => return code,
    };
    let (mut cursor, mut count) = (String::new(), 0);
    loop {
        let page = match operator.list(&cursor, args.page).await {
            Ok(page) => page,
            Err(status) => return refused(&status),
        };
        page.agents.iter().for_each(|agent| print(agent, args.json));
        count += page.agents.len();
        // A cursor that does not move on would list the same page for ever.
        if page.next_cursor <= cursor {
            break;
        }
        cursor = page.next_cursor;
    }
    eprintln!("{count} agents");
    EXIT_OK
}

fn print(agent: &AgentSummary, as_json: bool) {
    let (id, host) = (&agent.agent_id, &agent.hostname);
    let seen = agent.last_seen.as_ref().map_or(0, |time| time.millis_epoch);
    if as_json {
        println!(
            "{}",
            json!({ "agent_id": id, "hostname": host, "last_seen_ms": seen })
        );
    } else {
        println!(
            "{}\t{}\t{seen}",
            text::printable(id, 256),
            text::printable(host, 80)
        );
    }
}
