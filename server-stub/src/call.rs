//! One call, from its headers to its answer.
//!
//! Responsible for recording the request, asking the fault rules, and applying the call to the
//! directory. Must never count a call twice, nor lose one that the caller gave up.

use std::future::pending;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request};
use hyper::body::Incoming;
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;
use yuzu_proto::SESSION_HEADER;
use yuzu_proto::agent::v1::{InventoryAck, RegisterResponse};
use yuzu_proto::gateway::v1::{BatchHeartbeatResponse, ForwardGuardianAck, StreamStatusAck};

use crate::connection::{Connection, StreamGuard};
use crate::directory::{refused_registration, session_id, verdict};
use crate::faults::{Action, Facts, Plan};
use crate::grpc::{self, Answer};
use crate::records::{Message, Received};
use crate::rpc::Rpc;
use crate::state::{Shared, State};

/// Metadata that every gRPC client sends.
const USUAL_METADATA: [&str; 6] = [
    "content-type",
    "te",
    "user-agent",
    "grpc-timeout",
    "grpc-accept-encoding",
    "accept-encoding",
];

/// Serves one request; the error resets the stream. No stream: refused.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    stream: Option<StreamGuard>,
    request: Request<Incoming>,
) -> Result<Answer, h2::Error> {
    let Some(stream) = stream else {
        return Err(h2::Reason::REFUSED_STREAM.into());
    };
    let mut answer = answer(&shared, &connection, request).await?;
    answer.body_mut().hold(stream);
    Ok(answer)
}

async fn answer(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Answer, h2::Error> {
    let (head, body) = request.into_parts();
    let Some(rpc) = Rpc::from_path(head.uri.path()) else {
        shared.update(|state| state.unknown_methods += 1);
        return Ok(grpc::status(Status::unimplemented("unknown method")));
    };
    let raw = match grpc::read_message(body, shared.config.max_message_bytes).await {
        Ok(raw) => raw,
        Err(status) => {
            shared.update(|state| state.counts.get_mut(rpc).failed += 1);
            return Ok(grpc::status(status));
        }
    };
    let received = describe(rpc, connection, &head.headers, raw);
    let presented = received.presented_session.clone();
    let message = received.message();
    let call = Call {
        shared: Arc::clone(shared),
        rpc,
        presented,
        end: End::Cancelled,
    };
    let plan = shared.update(|state| {
        state.received_now(received);
        let message = message.as_ref().ok();
        let plan = state.faults.plan(rpc, &call.facts(message));
        let counts = state.counts.get_mut(rpc);
        counts.faulted += u64::from(plan.faulted);
        counts.undecodable += u64::from(message.is_none());
        let release = state.releases.get(rpc).subscribe();
        (plan, release)
    });
    let (plan, release) = plan;
    call.run(message.ok(), plan, release, connection).await
}

fn describe(rpc: Rpc, connection: &Connection, headers: &HeaderMap, raw: Bytes) -> Received {
    let text = |name: &str| {
        headers
            .get(name)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let other = headers.keys().map(http::HeaderName::as_str);
    let other = other.filter(|name| *name != SESSION_HEADER && !USUAL_METADATA.contains(name));
    Received {
        seq: 0,
        at: Instant::now(),
        rpc,
        connection: connection.id,
        peer: connection.peer,
        grpc_timeout: text("grpc-timeout"),
        presented_session: text(SESSION_HEADER),
        other_metadata: other.map(str::to_owned).collect(),
        raw,
    }
}

#[derive(Clone, Copy)]
enum End {
    Ok,
    Refused,
    Failed,
    Broken,
    Cancelled,
}

/// An answer that the service itself gives, and how it counts.
type Ordinary = Result<(Bytes, End), Status>;

struct Call {
    shared: Arc<Shared>,
    rpc: Rpc,
    presented: Option<String>,
    end: End,
}

impl Call {
    fn facts<'a>(&self, message: Option<&'a Message>) -> Facts<'a> {
        let mut facts = Facts {
            replay: self.presented.is_some(),
            ..Facts::default()
        };
        match message {
            Some(Message::Register(request)) => {
                facts.agent_id = request.info.as_ref().map(|info| info.agent_id.as_str());
            }
            Some(Message::StreamStatus(notice)) => {
                facts.agent_id = Some(&notice.agent_id);
                facts.event = Some(notice.event);
            }
            Some(Message::Guardian(request)) => facts.agent_id = Some(&request.agent_id),
            Some(Message::Heartbeats(_) | Message::Inventory(_)) | None => {}
        }
        facts
    }

    async fn run(
        mut self,
        message: Option<Message>,
        plan: Plan,
        release: watch::Receiver<u64>,
        connection: &Connection,
    ) -> Result<Answer, h2::Error> {
        let mut early = plan.effect_first.then(|| self.apply(message.as_ref()));
        if !plan.delay.is_zero() {
            self.shared.wait(plan.delay).await;
        }
        match plan.end {
            None | Some(Action::Delay(_)) => {}
            Some(Action::Hang) => self.hang(release).await,
            Some(Action::Status(code, text)) => {
                self.end = End::Failed;
                return Ok(grpc::status(Status::new(code, text)));
            }
            Some(Action::DropConnection) => {
                self.end = End::Broken;
                connection.cut();
                pending::<()>().await;
            }
            Some(Action::ResetStream(code)) => {
                self.end = End::Broken;
                return Err(h2::Reason::from(code).into());
            }
            Some(Action::Garbage(kind)) => {
                self.end = End::Broken;
                let ordinary = early.take().and_then(Result::ok);
                return Ok(grpc::garbage(
                    kind,
                    &ordinary.map(|o| o.0).unwrap_or_default(),
                ));
            }
            Some(Action::Refuse) => early = Some(refusal(self.rpc, message.as_ref())),
            Some(Action::Answer(bytes)) => early = Some(Ok((bytes, End::Ok))),
        }
        match early.unwrap_or_else(|| self.apply(message.as_ref())) {
            Ok((bytes, end)) => {
                self.end = end;
                Ok(grpc::message(&bytes))
            }
            Err(status) => {
                self.end = End::Failed;
                Ok(grpc::status(status))
            }
        }
    }

    async fn hang(&self, mut release: watch::Receiver<u64>) {
        let _gauge = Hung::new(&self.shared, self.rpc);
        if release.changed().await.is_err() {
            pending::<()>().await;
        }
    }

    /// What the server does with the call.
    fn apply(&self, message: Option<&Message>) -> Ordinary {
        let Some(message) = message else {
            return Err(Status::internal("request could not be decoded"));
        };
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|_| Status::unavailable("no random numbers"))?;
        let minted = session_id(random);
        let presented = self.presented.as_deref();
        self.shared
            .update(|state| apply(state, message, presented, &minted))
    }
}

fn apply(state: &mut State, message: &Message, presented: Option<&str>, minted: &str) -> Ordinary {
    let directory = &mut state.directory;
    Ok(match message {
        Message::Register(request) => register(directory.register(request, presented, minted)?),
        Message::Heartbeats(batch) => {
            let response = directory.heartbeats(&batch.heartbeats);
            (response.encode_to_vec().into(), End::Ok)
        }
        Message::Inventory(report) => inventory(directory.knows(&report.session_id)),
        Message::StreamStatus(notice) => stream_status(directory.notify(notice)),
        Message::Guardian(_) => guardian(true),
    })
}

/// The same messages, refused.
fn refusal(rpc: Rpc, message: Option<&Message>) -> Ordinary {
    Ok(match rpc {
        Rpc::ProxyRegister => register(refused_registration("refused by a fault rule", "denied")),
        Rpc::BatchHeartbeat => {
            let response = match message {
                Some(Message::Heartbeats(batch)) => verdict(
                    batch.heartbeats.iter().map(|h| h.session_id.as_str()),
                    |_| false,
                ),
                _ => BatchHeartbeatResponse::default(),
            };
            (response.encode_to_vec().into(), End::Refused)
        }
        Rpc::ProxyInventory => inventory(false),
        Rpc::NotifyStreamStatus => stream_status(false),
        Rpc::ForwardGuardianMessage => guardian(false),
    })
}

fn register(response: RegisterResponse) -> (Bytes, End) {
    (response.encode_to_vec().into(), end_of(response.accepted))
}

fn inventory(received: bool) -> (Bytes, End) {
    let ack = InventoryAck {
        received,
        ..Default::default()
    };
    (ack.encode_to_vec().into(), end_of(received))
}

fn stream_status(acknowledged: bool) -> (Bytes, End) {
    (
        StreamStatusAck { acknowledged }.encode_to_vec().into(),
        end_of(acknowledged),
    )
}

fn guardian(acknowledged: bool) -> (Bytes, End) {
    (
        ForwardGuardianAck { acknowledged }.encode_to_vec().into(),
        end_of(acknowledged),
    )
}

fn end_of(accepted: bool) -> End {
    if accepted { End::Ok } else { End::Refused }
}

impl Drop for Call {
    fn drop(&mut self) {
        let (rpc, end) = (self.rpc, self.end);
        self.shared.update(|state| {
            let counts = state.counts.get_mut(rpc);
            counts.in_flight -= 1;
            match end {
                End::Ok => counts.ok += 1,
                End::Refused => counts.refused += 1,
                End::Failed => counts.failed += 1,
                End::Broken => counts.broken += 1,
                End::Cancelled => counts.cancelled += 1,
            }
            state.in_flight -= 1;
        });
    }
}

/// Counts a hung call while it hangs.
struct Hung<'a> {
    shared: &'a Shared,
    rpc: Rpc,
}

impl<'a> Hung<'a> {
    fn new(shared: &'a Shared, rpc: Rpc) -> Self {
        shared.update(|state| state.counts.get_mut(rpc).hung += 1);
        Hung { shared, rpc }
    }
}

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        self.shared
            .update(|state| state.counts.get_mut(self.rpc).hung -= 1);
    }
}
