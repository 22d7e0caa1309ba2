//! Who is enrolled, under which session, behind which gateway.
//!
//! Responsible for the answers of the real server to registrations, presented sessions, notices
//! and heartbeats. Pure: new session ids come in as arguments. Sessions live in memory (`known`)
//! and in rows that outlive a simulated restart, like the real server's store.
//!
//! Must never grow beyond the agents it was allowed, eight older sessions per agent included.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use tonic::{Code, Status};
use yuzu_proto::agent::v1::{HeartbeatRequest, RegisterRequest, RegisterResponse};
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_proto::gateway::v1::{BatchHeartbeatResponse, StreamStatusNotification};

use crate::config::{Enrolment, IssuedCertificate};

const SESSION_PREFIX: &str = "gw-session-";
const SESSION_HEX: usize = 32;
const MAX_AGENT_ID: usize = 256;
const MAX_LABEL: usize = 64;
const MAX_VERDICT: usize = 4096;
const MAX_VERDICT_ID: usize = 64;
const OLDER_SESSIONS: usize = 8;

/// How far an agent's stream has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteState {
    /// Registered or adopted; no CONNECTED since.
    Registered,
    /// CONNECTED was recorded.
    Connected,
    /// DISCONNECTED was recorded.
    Disconnected,
}

/// Where an agent is reached.
#[derive(Clone, PartialEq, Eq)]
pub struct Route {
    /// The agent.
    pub agent_id: Arc<str>,
    /// Its current session.
    pub session_id: Arc<str>,
    /// How far the stream has come.
    pub state: RouteState,
    /// Gateway of the last CONNECTED; empty before it.
    pub gateway_node: String,
    /// Stream of the last CONNECTED; empty before it.
    pub stream_home_id: String,
    /// Address in the last CONNECTED; empty before it.
    pub peer_addr: String,
    /// Capabilities of the last CONNECTED.
    pub wire_capabilities: Vec<String>,
    /// Cluster the agent is bound to since its first CONNECTED that named one.
    pub cluster_id: String,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Route({}, {:?}, node {})",
            self.agent_id, self.state, self.gateway_node
        )
    }
}

/// What a simulated restart of the server loses besides its sessions in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Restart {
    /// All connections are cut.
    pub drop_connections: bool,
    /// The directory is lost too, so that any well-formed session can be adopted by any agent.
    pub lose_directory: bool,
}

struct Session {
    agent: Arc<str>,
    known: bool,
}

struct Agent {
    route: Route,
    older: VecDeque<Arc<str>>,
}

/// The server's memory.
pub(crate) struct Directory {
    agents: HashMap<Arc<str>, Agent>,
    sessions: HashMap<Arc<str>, Session>,
    pub(crate) enrolment: Enrolment,
    pub(crate) issued: Option<IssuedCertificate>,
    max_agents: usize,
}

impl Directory {
    pub(crate) fn new(
        enrolment: Enrolment,
        issued: Option<IssuedCertificate>,
        max_agents: usize,
    ) -> Self {
        let (agents, sessions) = (HashMap::new(), HashMap::new());
        Directory {
            agents,
            sessions,
            enrolment,
            issued,
            max_agents,
        }
    }

    pub(crate) fn routes(&self) -> impl Iterator<Item = &Route> {
        self.agents.values().map(|agent| &agent.route)
    }

    pub(crate) fn route(&self, agent: &str) -> Option<&Route> {
        self.agents.get(agent).map(|agent| &agent.route)
    }

    /// The session is in memory, as a current or as an older one.
    pub(crate) fn knows(&self, session: &str) -> bool {
        self.sessions.get(session).is_some_and(|s| s.known)
    }

    pub(crate) fn known_sessions(&self) -> usize {
        self.sessions.values().filter(|s| s.known).count()
    }

    pub(crate) fn restart(&mut self, restart: Restart) {
        if restart.lose_directory {
            self.agents.clear();
            self.sessions.clear();
        }
        self.sessions
            .values_mut()
            .for_each(|session| session.known = false);
    }

    /// Forgets one session in memory, as after a partial loss. False: it was not known.
    pub(crate) fn forget(&mut self, session: &str) -> bool {
        match self.sessions.get_mut(session) {
            Some(entry) => std::mem::replace(&mut entry.known, false),
            None => false,
        }
    }

    /// `presented`: the session of the metadata, for a replay. `minted`: used for a fresh one.
    pub(crate) fn register(
        &mut self,
        request: &RegisterRequest,
        presented: Option<&str>,
        minted: &str,
    ) -> Result<RegisterResponse, Status> {
        let agent = request
            .info
            .as_ref()
            .map_or("", |info| info.agent_id.as_str());
        check_agent_id(agent, presented.is_none())?;
        if presented.is_some_and(|session| !is_minted_form(session)) {
            return Err(Status::failed_precondition(
                "presented session is malformed",
            ));
        }
        if let Some(refusal) = self.enrol(&request.enrollment_token) {
            return Ok(refusal);
        }
        if let Some(session) = presented {
            self.check_adoption(agent, session)?;
        }
        if !self.agents.contains_key(agent) && self.agents.len() >= self.max_agents {
            return Err(Status::unavailable("directory is full"));
        }
        let session: Arc<str> = Arc::from(presented.unwrap_or(minted));
        self.install(agent, &session);
        let issued = self.issued.clone().filter(|_| !request.csr_pem.is_empty());
        let (issued_certificate, issued_ca_chain) =
            issued.map(|i| (i.certificate, i.chain)).unwrap_or_default();
        Ok(RegisterResponse {
            session_id: session.to_string(),
            accepted: true,
            enrollment_status: "enrolled".into(),
            issued_certificate,
            issued_ca_chain,
            ..Default::default()
        })
    }

    fn enrol(&self, token: &str) -> Option<RegisterResponse> {
        let (reason, status) = match &self.enrolment {
            Enrolment::Open => return None,
            Enrolment::Tokens(tokens) if tokens.contains(token) => return None,
            Enrolment::Tokens(_) => ("invalid token", "denied"),
            Enrolment::Pending => ("enrollment pending approval", "pending"),
            Enrolment::Denied => ("enrollment denied", "denied"),
        };
        Some(refused_registration(reason, status))
    }

    fn check_adoption(&self, agent: &str, session: &str) -> Result<(), Status> {
        if self
            .sessions
            .get(session)
            .is_some_and(|held| &*held.agent != agent)
        {
            return Err(Status::failed_precondition(
                "session is held by another agent",
            ));
        }
        let superseded = self.agents.get(agent).is_some_and(|entry| {
            &*entry.route.session_id != session && entry.route.state != RouteState::Disconnected
        });
        if superseded {
            return Err(Status::failed_precondition(
                "session is superseded by a live session",
            ));
        }
        Ok(())
    }

    /// A new session in memory has no placement until a CONNECTED follows.
    fn install(&mut self, agent: &str, session: &Arc<str>) {
        let mut route = Route {
            agent_id: Arc::from(agent),
            session_id: Arc::clone(session),
            state: RouteState::Registered,
            gateway_node: String::new(),
            stream_home_id: String::new(),
            peer_addr: String::new(),
            wire_capabilities: Vec::new(),
            cluster_id: String::new(),
        };
        let owner = Session {
            agent: Arc::clone(&route.agent_id),
            known: true,
        };
        self.sessions.insert(Arc::clone(session), owner);
        let Some(entry) = self.agents.get_mut(agent) else {
            let key = Arc::clone(&route.agent_id);
            self.agents.insert(
                key,
                Agent {
                    route,
                    older: VecDeque::new(),
                },
            );
            return;
        };
        route.cluster_id = std::mem::take(&mut entry.route.cluster_id);
        let before = std::mem::replace(&mut entry.route, route).session_id;
        entry.older.retain(|older| older != session);
        if before != *session {
            entry.older.push_back(before);
        }
        if entry.older.len() > OLDER_SESSIONS
            && let Some(oldest) = entry.older.pop_front()
        {
            self.sessions.remove(&oldest);
        }
    }

    /// True: recorded, or rightly ignored.
    pub(crate) fn notify(&mut self, notice: &StreamStatusNotification) -> bool {
        let session = self.sessions.get(notice.session_id.as_str());
        if !session.is_some_and(|s| s.known && *s.agent == *notice.agent_id) {
            return false;
        }
        let Some(entry) = self.agents.get_mut(notice.agent_id.as_str()) else {
            return false;
        };
        let current = *entry.route.session_id == *notice.session_id;
        match Event::try_from(notice.event) {
            Ok(Event::Connected) => current && connect(&mut entry.route, notice),
            Ok(Event::Disconnected) => {
                let home = clamp(&notice.stream_home_id, "");
                let stored = &entry.route.stream_home_id;
                if current && (stored.is_empty() || home.is_empty() || stored == home) {
                    entry.route.state = RouteState::Disconnected;
                }
                true
            }
            Err(_) => false,
        }
    }

    /// Ids that are empty or too long are neither acknowledged nor listed.
    pub(crate) fn heartbeats(&self, heartbeats: &[HeartbeatRequest]) -> BatchHeartbeatResponse {
        let known = |id: &str| self.knows(id);
        verdict(
            heartbeats
                .iter()
                .map(|heartbeat| heartbeat.session_id.as_str()),
            known,
        )
    }
}

fn connect(route: &mut Route, notice: &StreamStatusNotification) -> bool {
    let cluster = clamp(&notice.cluster_id, "unknown");
    if !route.cluster_id.is_empty() && !cluster.is_empty() && route.cluster_id != cluster {
        return false;
    }
    if !cluster.is_empty() {
        route.cluster_id = cluster.into();
    }
    route.state = RouteState::Connected;
    route.gateway_node.clone_from(&notice.gateway_node);
    route.stream_home_id = clamp(&notice.stream_home_id, "").into();
    route.peer_addr.clone_from(&notice.peer_addr);
    route
        .wire_capabilities
        .clone_from(&notice.wire_capabilities);
    true
}

fn clamp<'a>(label: &'a str, sentinel: &'a str) -> &'a str {
    if label.len() > MAX_LABEL {
        sentinel
    } else {
        label
    }
}

/// The answer to a batch with these session ids.
pub(crate) fn verdict<'a>(
    ids: impl Iterator<Item = &'a str>,
    known: impl Fn(&str) -> bool,
) -> BatchHeartbeatResponse {
    let mut response = BatchHeartbeatResponse::default();
    let mut listed = HashSet::new();
    for id in ids.filter(|id| !id.is_empty() && id.len() <= MAX_VERDICT_ID) {
        if known(id) {
            response.acknowledged_count += 1;
        } else if listed.len() < MAX_VERDICT {
            listed.insert(id);
        } else if !listed.contains(id) {
            response.unknown_session_ids_truncated = true;
        }
    }
    response.unknown_session_ids = listed.into_iter().map(str::to_owned).collect();
    response.unknown_session_ids.sort_unstable();
    response
}

/// A registration answered OK and not accepted.
pub(crate) fn refused_registration(reason: &str, status: &str) -> RegisterResponse {
    RegisterResponse {
        reject_reason: reason.into(),
        enrollment_status: status.into(),
        ..Default::default()
    }
}

/// The form in which sessions are minted, from 16 random bytes.
pub(crate) fn session_id(random: [u8; 16]) -> String {
    use fmt::Write as _;
    let mut id = String::with_capacity(SESSION_PREFIX.len() + SESSION_HEX);
    id.push_str(SESSION_PREFIX);
    for byte in random {
        let _ = write!(id, "{byte:02x}");
    }
    id
}

fn is_minted_form(id: &str) -> bool {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    id.strip_prefix(SESSION_PREFIX)
        .is_some_and(|rest| rest.len() == SESSION_HEX && rest.bytes().all(hex))
}

fn check_agent_id(id: &str, new: bool) -> Result<(), Status> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._:-".contains(c);
    let fault = if id.is_empty() {
        "agent id is empty"
    } else if id.len() > MAX_AGENT_ID {
        "agent id is longer than 256 bytes"
    } else if id.chars().any(|c| c.is_control() || c == ',') {
        "agent id has a control character or a comma"
    } else if new && !id.chars().all(allowed) {
        "a new agent id may hold letters, digits, '.', '_', ':' and '-' only"
    } else {
        return Ok(());
    };
    Err(Status::new(Code::InvalidArgument, fault))
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
