//! `yuzu-gateway cluster members`: the cluster as a running node sees it.
//!
//! Responsible for asking the node's health address and for the table. Must never be asked for a
//! decision: what it prints is a moment old.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use crate::cli::{self, MembersArguments};

const PATIENCE: Duration = Duration::from_secs(5);
/// Far beyond the page of the largest cluster.
const MAX_ANSWER: u64 = 16 << 20;

const COLUMNS: [&str; 7] = [
    "NAME",
    "ADDRESS",
    "VERSION",
    "VISIBILITY",
    "DRAINING",
    "SESSIONS",
    "STARTED (unix ms)",
];

/// Prints one row per node.
pub(crate) fn print(arguments: &MembersArguments) -> ExitCode {
    let address = match arguments.health {
        Some(address) => address,
        None => match arguments.file.load() {
            Ok(loaded) => reachable(loaded.config.observe.health_address),
            Err(refused) => return cli::refuse(&refused),
        },
    };
    match ask(address) {
        Ok((200, page)) => cli::print(&table(&page), ExitCode::SUCCESS),
        Ok((404, _)) => {
            cli::complain(&format!(
                "{address}: this node has no listener for other gateways"
            ));
            cli::INCOMPLETE.into()
        }
        Ok((status, _)) => failed(address, &format!("it answers with {status}")),
        Err(error) => failed(address, &error.to_string()),
    }
}

fn failed(address: SocketAddr, why: &str) -> ExitCode {
    cli::complain(&format!("{address}: {why}"));
    cli::FAILED.into()
}

/// An address that a process of this machine can connect to.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// The status and the page.
fn ask(address: SocketAddr) -> io::Result<(u16, Value)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!("GET /cluster HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
    let no_http = || io::Error::new(io::ErrorKind::InvalidData, "it does not speak HTTP");
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(no_http)?;
    let status = head.split(' ').nth(1).and_then(|text| text.parse().ok());
    let page = serde_json::from_str(body).unwrap_or_default();
    Ok((status.ok_or_else(no_http)?, page))
}

fn table(page: &Value) -> String {
    let nodes = page["members"].as_array().map_or(&[][..], Vec::as_slice);
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    rows.extend(nodes.iter().map(row));
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or_default()
    };
    let widths: Vec<_> = (0..COLUMNS.len()).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths);
        let line: String = cells
            .map(|(cell, width)| format!("{cell:<width$}  "))
            .collect();
        out.push_str(line.trim_end());
        out.push('\n');
    }
    match &page["state"] {
        Value::String(state) if state == "joined" => {}
        Value::String(state) if state == "alone" => {
            out.push_str("\nthis node is alone: no other is linked with it\n");
        }
        state => out.push_str(&format!(
            "\nthis node is not in the cluster: {}\n",
            text(state)
        )),
    }
    out
}

fn row(node: &Value) -> [String; COLUMNS.len()] {
    let own = node["self"] == true;
    [
        format!(
            "{}{}",
            text(&node["name"]),
            if own { " (this node)" } else { "" }
        ),
        text(&node["address"]),
        text(&node["version"]),
        text(&node["visibility"]),
        text(&node["draining"]),
        text(&node["sessions"]),
        text(&node["incarnation"]),
    ]
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mesh_3_the_table_has_a_row_for_each_node() {
        let node = |name: &str, own: bool| {
            json!({
                "name": name, "self": own, "address": "192.0.2.1:9100", "version": "1.0.0",
                "visibility": "public", "draining": false, "sessions": 12, "incarnation": 5,
            })
        };
        let page = json!({ "state": "joined", "members": [node("a", false), node("bee", true)] });
        let expected = "\
NAME             ADDRESS         VERSION  VISIBILITY  DRAINING  SESSIONS  STARTED (unix ms)
a                192.0.2.1:9100  1.0.0    public      false     12        5
bee (this node)  192.0.2.1:9100  1.0.0    public      false     12        5
";
        assert_eq!(table(&page), expected);
        let page = json!({ "state": "alone", "members": [node("bee", true)] });
        assert!(table(&page).ends_with("\nthis node is alone: no other is linked with it\n"));
    }
}
