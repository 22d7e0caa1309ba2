//! The client that a control plane or an operator uses on a gateway's management listener.
//!
//! Responsible for dispatching commands, listing agents and watching events with the generated
//! client, and for the tally of a dispatch. Must never retry: whoever calls decides.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_proto::agent::v1::command_response::Status as Outcome;
use yuzu_proto::server::v1::management_service_client::ManagementServiceClient;
use yuzu_proto::server::v1::{
    AgentEvent, ListAgentsRequest, ListAgentsResponse, SendCommandRequest, SendCommandResponse,
    WatchEventsRequest,
};

/// Largest answer taken; the gateway's own listener takes 8 MiB from an agent.
const MAX_ANSWER: usize = 16 << 20;
/// Targets that one tally follows.
const MAX_TARGETS: usize = 1_000_000;

/// Exit code of the entries that the gateway makes itself.
const GATEWAY_MADE: i32 = -1;
/// Outputs of those entries.
const GATEWAY_OUTPUTS: [&str; 3] = ["not_connected", "agent_disconnected", "backpressure"];

/// A command for some agents or for all.
#[derive(Clone, Default, PartialEq)]
pub struct Dispatch {
    /// Targets; empty: every agent the gateway holds.
    pub agents: Vec<String>,
    /// Correlates the answers; shall be unique.
    pub command_id: String,
    /// Plugin of the agent.
    pub plugin: String,
    /// Action of the plugin.
    pub action: String,
    /// Parameters of the action.
    pub parameters: HashMap<String, String>,
    /// Binary argument.
    pub payload: Bytes,
    /// When the gateway gives up, in seconds; 0: the gateway's own default.
    pub timeout_seconds: i32,
}

impl fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (targets, id) = (self.agents.len(), &self.command_id);
        write!(
            f,
            "Dispatch({id}, {targets} listed targets, {} payload bytes)",
            self.payload.len()
        )
    }
}

impl Dispatch {
    /// The request as it goes to the gateway.
    #[must_use]
    pub fn request(&self) -> SendCommandRequest {
        let command = CommandRequest {
            command_id: self.command_id.clone(),
            plugin: self.plugin.clone(),
            action: self.action.clone(),
            parameters: self.parameters.clone(),
            payload: self.payload.clone(),
            ..Default::default()
        };
        SendCommandRequest {
            agent_ids: self.agents.clone(),
            command: Some(command),
            timeout_seconds: self.timeout_seconds,
        }
    }
}

/// Why no call could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The address is not a URI.
    #[error("`{0}` is not the address of a gateway: use host:port or http://host:port")]
    Address(String),
    /// Nobody answers there.
    #[error("no connection to the gateway at {address}")]
    Connection {
        /// The address.
        address: String,
        /// Why.
        source: tonic::transport::Error,
    },
}

/// `host:port`, or a URI.
fn endpoint(gateway: &str) -> Result<Endpoint, ConnectError> {
    let uri = if gateway.contains("://") {
        gateway.into()
    } else {
        format!("http://{gateway}")
    };
    uri.parse()
        .map_err(|_| ConnectError::Address(gateway.to_owned()))
}

/// One connection to a management listener.
#[derive(Debug, Clone)]
pub struct Operator {
    client: ManagementServiceClient<Channel>,
}

impl Operator {
    /// Connects; `gateway` is `host:port` or a URI, plaintext.
    ///
    /// # Errors
    /// The address is malformed, or nobody answers within `timeout`.
    pub async fn connect(gateway: &str, timeout: Duration) -> Result<Operator, ConnectError> {
        let endpoint = endpoint(gateway)?.connect_timeout(timeout);
        Self::over(gateway, endpoint.tcp_nodelay(true).connect().await)
    }

    /// As [`Operator::connect`], over TLS. The gateway must be `name`, else the host of its address.
    ///
    /// # Errors
    /// As [`Operator::connect`], a failed handshake included.
    pub async fn connect_tls(
        gateway: &str,
        timeout: Duration,
        tls: Arc<ClientConfig>,
        name: Option<&str>,
    ) -> Result<Operator, ConnectError> {
        let bad_address = || ConnectError::Address(gateway.to_owned());
        let endpoint = endpoint(gateway)?;
        let (host, port) = (endpoint.uri().host(), endpoint.uri().port_u16());
        let host = host.ok_or_else(bad_address)?.trim_matches(['[', ']']);
        let address = (host.to_owned(), port.ok_or_else(bad_address)?);
        let name = ServerName::try_from(name.unwrap_or(host).to_owned());
        let name = name.map_err(|_| bad_address())?;
        let connector = TlsConnector::from(tls);
        let secure = tower::service_fn(move |_: Uri| {
            let (address, name, connector) = (address.clone(), name.clone(), connector.clone());
            async move {
                let secured = async {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    connector.connect(name, stream).await
                };
                let stream = tokio::time::timeout(timeout, secured).await??;
                Ok::<_, io::Error>(TokioIo::new(stream))
            }
        });
        Self::over(gateway, endpoint.connect_with_connector(secure).await)
    }

    fn over(
        gateway: &str,
        channel: Result<Channel, tonic::transport::Error>,
    ) -> Result<Operator, ConnectError> {
        let failed = |source| ConnectError::Connection {
            address: gateway.to_owned(),
            source,
        };
        let client = ManagementServiceClient::new(channel.map_err(failed)?);
        Ok(Operator {
            client: client.max_decoding_message_size(MAX_ANSWER),
        })
    }

    /// Dispatches a command; answers come as the agents give them.
    ///
    /// # Errors
    /// The status the gateway refused with.
    pub async fn send(
        &mut self,
        dispatch: &Dispatch,
    ) -> Result<Streaming<SendCommandResponse>, Status> {
        Ok(self
            .client
            .send_command(dispatch.request())
            .await?
            .into_inner())
    }

    /// One page of agents by id; an empty cursor is the first page.
    ///
    /// # Errors
    /// The status the gateway refused with.
    pub async fn list(&mut self, cursor: &str, limit: i32) -> Result<ListAgentsResponse, Status> {
        let cursor = cursor.to_owned();
        let request = ListAgentsRequest {
            limit,
            cursor,
            ..Default::default()
        };
        Ok(self.client.list_agents(request).await?.into_inner())
    }

    /// Events of some agents, or of all when none is named, from now on.
    ///
    /// # Errors
    /// The status the gateway refused with.
    pub async fn watch(&mut self, agents: Vec<String>) -> Result<Streaming<AgentEvent>, Status> {
        let request = WatchEventsRequest { agent_ids: agents };
        Ok(self.client.watch_events(request).await?.into_inner())
    }
}

/// How one target stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Running,
    Ended(Ending),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    Succeeded,
    /// The agent's own status, other than success.
    Failed(i32),
    /// Position in [`GATEWAY_OUTPUTS`].
    ByGateway(usize),
}

/// Counts the answers of one dispatch.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    listed: HashSet<String>,
    targets: HashMap<String, Standing>,
    entries: u64,
    after_the_end: u64,
    untracked: u64,
    first_answer: Option<Duration>,
}

/// A dispatch in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Targets that sent or were given an entry.
    pub heard: usize,
    /// Targets with SUCCESS.
    pub succeeded: usize,
    /// Targets that ended otherwise, by reason: an agent's status by name, or the output of an
    /// entry that the gateway made.
    pub failures: BTreeMap<String, usize>,
    /// Targets that ran and did not end.
    pub unfinished: usize,
    /// Listed targets without any entry.
    pub silent: usize,
    /// All entries, RUNNING ones included.
    pub entries: u64,
    /// Entries of targets that had ended already; the contract has none.
    pub after_the_end: u64,
    /// Entries of targets beyond the million that are followed.
    pub untracked: u64,
    /// From the dispatch to the first entry.
    pub first_answer: Option<Duration>,
}

impl Summary {
    /// Every target that was listed or heard ended with SUCCESS, and there was one.
    #[must_use]
    pub fn all_succeeded(&self) -> bool {
        let others = self.unfinished + self.silent + self.failures.len();
        self.succeeded > 0 && others == 0 && self.untracked == 0
    }
}

impl Tally {
    /// `listed`: targets of the dispatch; none for a broadcast.
    #[must_use]
    pub fn new(listed: &[String]) -> Self {
        Tally {
            listed: listed.iter().cloned().collect(),
            ..Tally::default()
        }
    }

    /// Takes one answer, `elapsed` after the dispatch. Returns the reason when it ends its target
    /// without success.
    pub fn take(&mut self, answer: &SendCommandResponse, elapsed: Duration) -> Option<String> {
        self.entries += 1;
        self.first_answer.get_or_insert(elapsed);
        let standing = standing(answer);
        let full = self.targets.len() >= MAX_TARGETS;
        match self.targets.get_mut(&answer.agent_id) {
            Some(Standing::Ended(_)) => self.after_the_end += 1,
            Some(before) => *before = standing,
            None if full => self.untracked += 1,
            None => {
                self.targets.insert(answer.agent_id.clone(), standing);
            }
        }
        match standing {
            Standing::Ended(ending) => reason(ending),
            Standing::Running => None,
        }
    }

    /// The numbers so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let mut failures = BTreeMap::new();
        let (mut succeeded, mut unfinished) = (0, 0);
        for standing in self.targets.values() {
            match standing {
                Standing::Running => unfinished += 1,
                Standing::Ended(ending) => match reason(*ending) {
                    None => succeeded += 1,
                    Some(reason) => *failures.entry(reason).or_insert(0) += 1,
                },
            }
        }
        Summary {
            heard: self.targets.len(),
            succeeded,
            failures,
            unfinished,
            silent: self
                .listed
                .iter()
                .filter(|id| !self.targets.contains_key(*id))
                .count(),
            entries: self.entries,
            after_the_end: self.after_the_end,
            untracked: self.untracked,
            first_answer: self.first_answer,
        }
    }
}

fn standing(answer: &SendCommandResponse) -> Standing {
    let Some(response) = &answer.response else {
        return Standing::Running;
    };
    if response.exit_code == GATEWAY_MADE
        && response.status == Outcome::Failure as i32
        && let Some(output) = GATEWAY_OUTPUTS
            .iter()
            .position(|known| *known == response.output)
    {
        return Standing::Ended(Ending::ByGateway(output));
    }
    match Outcome::try_from(response.status) {
        Ok(Outcome::Running) => Standing::Running,
        Ok(Outcome::Success) => Standing::Ended(Ending::Succeeded),
        _ => Standing::Ended(Ending::Failed(response.status)),
    }
}

fn reason(ending: Ending) -> Option<String> {
    match ending {
        Ending::Succeeded => None,
        Ending::ByGateway(output) => Some(GATEWAY_OUTPUTS[output].to_owned()),
        Ending::Failed(status) => Some(status_name(status)),
    }
}

/// Name of a command status; numbers the contract does not know are shown as such.
#[must_use]
pub fn status_name(status: i32) -> String {
    Outcome::try_from(status).map_or_else(
        |_| format!("STATUS_{status}"),
        |known| known.as_str_name().to_owned(),
    )
}

/// A command id that no other dispatch has: `cmd-` and 16 random hex digits.
///
/// # Errors
/// The system has no random numbers.
pub fn new_command_id() -> Result<String, getrandom::Error> {
    Ok(format!("cmd-{:016x}", getrandom::u64()?))
}

#[cfg(test)]
mod tests {
    use yuzu_proto::agent::v1::CommandResponse;

    use super::*;

    fn answer(agent: &str, status: i32, exit_code: i32, output: &str) -> SendCommandResponse {
        let output = output.to_owned();
        let response = CommandResponse {
            status,
            exit_code,
            output,
            ..Default::default()
        };
        SendCommandResponse {
            agent_id: agent.into(),
            response: Some(response),
        }
    }

    #[test]
    fn a_tally_tells_success_failure_loss_and_silence_apart() {
        let listed = ["a", "b", "c", "d", "e", "f", "f"].map(String::from);
        let mut tally = Tally::new(&listed);
        let ms = Duration::from_millis;
        assert_eq!(tally.take(&answer("a", 0, 0, "line"), ms(5)), None);
        assert_eq!(tally.take(&answer("a", 1, 0, "done"), ms(6)), None);
        assert_eq!(
            tally.take(&answer("b", 2, 3, "oops"), ms(7)).as_deref(),
            Some("FAILURE")
        );
        let lost = tally.take(&answer("c", 2, -1, "not_connected"), ms(8));
        assert_eq!(lost.as_deref(), Some("not_connected"));
        let own = tally.take(&answer("d", 2, -1, "not_connected."), ms(8));
        assert_eq!(own.as_deref(), Some("FAILURE"), "an agent's own failure");
        tally.take(&answer("e", 0, 0, "still at it"), ms(9));
        tally.take(&answer("b", 1, 0, "again"), ms(10));
        let failures = BTreeMap::from([("FAILURE".into(), 2), ("not_connected".into(), 1)]);
        let expected = Summary {
            heard: 5,
            succeeded: 1,
            failures,
            unfinished: 1,
            silent: 1,
            entries: 7,
            after_the_end: 1,
            untracked: 0,
            first_answer: Some(ms(5)),
        };
        assert_eq!(tally.summary(), expected);
        assert!(!tally.summary().all_succeeded());
    }

    #[test]
    fn success_needs_an_answer_of_every_target() {
        let mut tally = Tally::new(&["a".to_owned()]);
        assert!(!tally.summary().all_succeeded());
        tally.take(&answer("a", 1, 0, ""), Duration::ZERO);
        assert!(tally.summary().all_succeeded());
        assert!(
            !Tally::new(&[]).summary().all_succeeded(),
            "a broadcast that reached nobody"
        );
    }

    #[test]
    fn unknown_statuses_are_terminal_and_keep_their_number() {
        let mut tally = Tally::new(&[]);
        let reason = tally.take(&answer("a", 77, 0, ""), Duration::ZERO);
        assert_eq!(reason.as_deref(), Some("STATUS_77"));
        assert_eq!(status_name(3), "TIMEOUT");
    }
}
