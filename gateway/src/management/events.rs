//! WatchEvents: sessions coming and going, from the moment of the call (MGMT-4).

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use prost::Message;
use tonic::Status;
use yuzu_proto::common::v1::Timestamp;
use yuzu_proto::server::v1::agent_event::Event as EventKind;
use yuzu_proto::server::v1::{AgentConnected, AgentDisconnected, AgentEvent, WatchEventsRequest};

use super::{ManagementService, check_agent_ids, decode};
use crate::edge::connection::Connection;
use crate::edge::{Response, grpc};
use crate::session::{Change, Event, MissedEvents, Watcher};

/// A watch without an event for this long ends with OK.
const QUIET: Duration = Duration::from_secs(24 * 3600);

impl ManagementService {
    pub(super) fn watch_events(
        &self,
        message: Bytes,
        connection: &Arc<Connection>,
    ) -> Result<Response, Status> {
        let request: WatchEventsRequest = decode(message)?;
        check_agent_ids(request.agent_ids.len())?;
        let wanted = request.agent_ids.into_iter().collect();
        Ok(grpc::stream(WatchBody::new(
            self.events.watch(),
            wanted,
            connection,
        )))
    }
}

type Wanted = HashSet<String>;
type Next =
    Pin<Box<dyn Future<Output = (Result<Option<Event>, MissedEvents>, Watcher, Wanted)> + Send>>;

/// The next event that is wanted; `Ok(None)` after a quiet day.
async fn next_of(
    mut watcher: Watcher,
    wanted: Wanted,
) -> (Result<Option<Event>, MissedEvents>, Watcher, Wanted) {
    let matching = async {
        loop {
            match watcher.next().await {
                Ok(Some(event)) if wanted.is_empty() || wanted.contains(&*event.agent_id) => {
                    return Ok(Some(event));
                }
                Ok(Some(_)) => {}
                end => return end,
            }
        }
    };
    let next = tokio::time::timeout(QUIET, matching)
        .await
        .unwrap_or(Ok(None));
    (next, watcher, wanted)
}

/// A watcher that does not read holds up nothing: the ring passes it by.
struct WatchBody {
    next: Option<Next>,
    connection: Arc<Connection>,
}

impl WatchBody {
    fn new(watcher: Watcher, wanted: Wanted, connection: &Arc<Connection>) -> Self {
        Self {
            next: Some(Box::pin(next_of(watcher, wanted))),
            connection: Arc::clone(connection),
        }
    }
}

impl Body for WatchBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(next) = &mut self.next else {
            return Poll::Ready(None);
        };
        let (event, watcher, wanted) = ready!(next.as_mut().poll(cx));
        let frame = match event {
            Ok(Some(event)) => {
                self.next = Some(Box::pin(next_of(watcher, wanted)));
                let event = grpc::frame(&encode(&event).encode_to_vec());
                Frame::data(self.connection.watch(event))
            }
            Ok(None) => {
                self.next = None;
                Frame::trailers(grpc::ok_trailers())
            }
            Err(MissedEvents(missed)) => {
                self.next = None;
                let status = Status::resource_exhausted(format!("missed {missed}"));
                Frame::trailers(grpc::trailers(&status))
            }
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.next.is_none()
    }
}

fn encode(event: &Event) -> AgentEvent {
    let kind = match &event.change {
        Change::Connected(session_id) => EventKind::Connected(AgentConnected {
            session_id: session_id.to_string(),
        }),
        Change::Disconnected => EventKind::Disconnected(AgentDisconnected {
            reason: "normal".to_owned(),
        }),
    };
    AgentEvent {
        agent_id: event.agent_id.to_string(),
        occurred_at: Some(Timestamp {
            millis_epoch: event.at_ms,
        }),
        event: Some(kind),
    }
}

#[cfg(test)]
mod tests;
