//! Asks the nodes, when all must be right again, what only they can say.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use turmoil::net::TcpStream;
use yuzu_proto::server::v1::GetAgentResponse;
use yuzu_server_stub::{RouteState, StubServer};
use yuzu_tests::metrics::Metrics;
use yuzu_tests::operator::Operator;

use crate::caller::{connect, one};
use crate::ledger::{Call, Ledger, Order, now};
use crate::node::METRICS;
use crate::plan::{CONVERGED, HEALED, Plan, QUIET};

const PATIENCE: Duration = Duration::from_secs(2);
/// The number of the judge among callers.
pub const JUDGE: usize = 99;

/// See the module.
#[derive(Debug, Clone)]
pub struct Judge {
    /// Hosts of the nodes, the public one first.
    pub nodes: Vec<String>,
    /// All agents.
    pub agents: Rc<Vec<String>>,
    /// The server.
    pub server: Rc<StubServer>,
    /// What really happened.
    pub ledger: Ledger,
    /// What the seed says.
    pub plan: Plan,
}

/// Judges twice: when the cluster must have converged, and when all is quiet.
pub fn run(judge: Judge) -> Pin<Box<dyn Future<Output = turmoil::Result>>> {
    Box::pin(twice(judge))
}

async fn twice(judge: Judge) -> turmoil::Result {
    sleep((HEALED + CONVERGED).saturating_sub(now())).await;
    judge.ownership().await;
    sleep(QUIET.saturating_sub(now())).await;
    judge.directory();
    judge.metrics().await;
    judge.ledger.say(now(), "judged");
    Ok(())
}

impl Judge {
    fn wrong(&self, what: String) {
        self.ledger.wrong(now(), what);
    }

    /// Every agent has a stream, every node knows which, and the public one reaches it.
    async fn ownership(&self) {
        let mut operators = Vec::new();
        for node in &self.nodes {
            match connect(node).await {
                Some(operator) => operators.push(operator),
                None => return self.wrong(format!("{node} can't be reached")),
            }
        }
        for agent in self.agents.iter() {
            let Some((label, owner)) = self.current(agent) else {
                self.wrong(format!("{agent} has no stream"));
                continue;
            };
            for (index, node) in self.nodes.iter().enumerate() {
                let found = known(&operators[index], agent).await;
                if found.as_deref() != Ok(&*label) && self.is_still(agent, &label) {
                    self.wrong(format!(
                        "{node} knows {agent} as {found:?}, which is {label} at node {owner}"
                    ));
                }
            }
            let call = Call {
                command: format!("j.{agent}"),
                caller: JUDGE,
                at: now(),
                timeout: PATIENCE,
                targets: Some(vec![agent.clone()]),
                order: Order {
                    frames: 1,
                    pause: Duration::from_millis(10),
                    ends: true,
                },
                entries: Vec::new(),
                end: None,
            };
            one(&operators[0], call, &self.ledger).await;
            let told: Vec<_> = {
                let book = self.ledger.read();
                let call = book.calls.iter().rev().find(|call| call.caller == JUDGE);
                let entries = call.into_iter().flat_map(|call| &call.entries);
                entries.map(|entry| entry.output.clone()).collect()
            };
            let expected = [
                format!("j.{agent}/{agent}/0"),
                format!("j.{agent}/{agent}/1"),
            ];
            if told != expected && self.is_still(agent, &label) {
                self.wrong(format!("{label} at node {owner} answers {told:?}"));
            }
        }
    }

    fn current(&self, agent: &str) -> Option<(String, usize)> {
        let book = self.ledger.read();
        let attached = &book.attached[*book.current.get(agent)?];
        Some((attached.label.clone(), attached.node))
    }

    fn is_still(&self, agent: &str, label: &str) -> bool {
        self.current(agent).is_some_and(|(now, _)| now == label)
    }

    /// The server is right about every agent (VIS-3).
    fn directory(&self) {
        let book = self.ledger.read();
        let mut wrong = Vec::new();
        for agent in self.agents.iter() {
            let Some(place) = book.current.get(agent) else {
                continue;
            };
            let session = &book.attached[*place].session;
            let route = self.server.view(|state| state.route(agent).cloned());
            let is_right = route.as_ref().is_some_and(|route| {
                route.state == RouteState::Connected
                    && *route.session_id == **session
                    && route.gateway_node == self.nodes[0]
            });
            // A registration that the agent had given up may have come later than the one it has.
            let is_overtaken = route.as_ref().is_some_and(|route| {
                let mut attached = book.attached.iter();
                route.state == RouteState::Registered
                    && !attached.any(|stream| *stream.session == *route.session_id)
            });
            if !is_right && !is_overtaken {
                wrong.push(format!(
                    "the server has {agent} as {route:?}, session {}",
                    {
                        route
                            .as_ref()
                            .is_some_and(|route| *route.session_id == **session)
                    }
                ));
            }
        }
        drop(book);
        wrong.into_iter().for_each(|what| self.wrong(what));
    }

    /// Nothing is left behind, and what is counted adds up.
    async fn metrics(&self) {
        let mut held = BTreeMap::new();
        for place in self.ledger.read().current.values() {
            let node = self.ledger.read().attached[*place].node;
            *held.entry(node).or_insert(0.0) += 1.0;
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(metrics) = scrape(node).await else {
                self.wrong(format!("{node} shows no metrics"));
                continue;
            };
            let of = |name: &str, labels: &[(&str, &str)]| {
                let value = metrics.value(&format!("yuzu_gw_{name}"), labels);
                value.unwrap_or_default()
            };
            let own = held.get(&index).copied().unwrap_or_default();
            let all: f64 = held.values().sum();
            let others = (self.nodes.len() - 1) as f64;
            let exact = [
                ("forward_sessions", 0.0),
                ("forwarded_sessions", 0.0),
                ("forward_inflight_bytes", 0.0),
                ("agents_current", own),
                ("adjacency_agents", all - own),
                ("cluster_peers_connected", others),
                ("commands_dropped_backpressure_total", 0.0),
                ("adjacency_full_total", 0.0),
            ];
            for (name, expected) in exact {
                let value = of(name, &[]);
                if value != expected {
                    self.wrong(format!("{node} has {name} {value}, not {expected}"));
                }
            }
            for outcome in ["resumed", "lost"] {
                let sessions = of("forward_resumes_total", &[("outcome", outcome)]);
                let line = format!("{node} counts {sessions} sessions {outcome}");
                self.ledger.say(now(), line);
            }
            let forwarded = of("fanout_remote_dispatched_count_sum", &[]);
            let ended = of("forward_requests_total", &[]);
            // Nobody is waited for on behalf of a caller that leaves.
            if forwarded < ended || (forwarded > ended && !self.plan.makes_callers_leave()) {
                self.wrong(format!(
                    "{node} forwarded to {forwarded} targets, of which {ended} ended"
                ));
            }
        }
    }
}

/// The host name that an agent has registered with, as a node knows it.
async fn known(operator: &Operator, agent: &str) -> Result<String, String> {
    let answer = timeout(PATIENCE, operator.get(agent)).await;
    let answer = answer.map_err(|_| "no answer")?;
    let answer: GetAgentResponse = answer.map_err(|error| error.to_string())?.decode()?;
    Ok(answer.summary.unwrap_or_default().hostname)
}

/// The metrics of a node.
pub async fn scrape(host: &str) -> Option<Metrics> {
    let address = SocketAddr::new(turmoil::lookup(host), METRICS);
    let read = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let ask = format!("GET /metrics HTTP/1.1\r\nhost: {host}\r\n\r\n");
        stream.write_all(ask.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        Metrics::parse(body).ok()
    };
    timeout(PATIENCE, read).await.ok()?
}
