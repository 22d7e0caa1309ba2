//! The receiving half of a Subscribe stream.
//!
//! Responsible for cutting the agent's bytes into frames within the connection's budget, and for
//! having large ones take their turn. Must never decode a frame.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::Instant;
use tonic::Status;

use super::arriving::{Arriving, Place};
use crate::edge::charge::Charge;
use crate::edge::connection::{Connection, Signal};
use crate::edge::deframe::Deframer;
use crate::edge::pause::Paused;

/// The receiving half of a Subscribe stream.
pub(crate) struct Inbound {
    body: Incoming,
    deframer: Deframer,
    charge: Charge,
    arriving: Arriving,
    /// Of the large frame that is being received.
    place: Option<Place>,
}

impl Inbound {
    pub(crate) fn new(body: Incoming, connection: &Arc<Connection>, arriving: &Arriving) -> Self {
        let deframer = Deframer::new(connection.limits().max_message_bytes);
        connection.session_began();
        Self {
            body,
            deframer,
            charge: Charge::of_stream(connection),
            arriving: arriving.clone(),
            place: None,
        }
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        self.charge.connection()
    }

    /// The agent's next frame, with its place when it is a large one; `None` when the agent
    /// half-closed. Nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// The status the stream ends with: cancelled when it was reset or its connection lost, else
    /// what is wrong with the bytes.
    pub(super) async fn next(&mut self) -> Result<Option<(Bytes, Option<Place>)>, Status> {
        loop {
            if let Some(message) = self.received()? {
                return Ok(Some((message, self.place.take())));
            }
            if self.place.is_none() && Arriving::asks(self.deframer.awaited()) {
                self.place = Some(self.take_turn().await);
            }
            if !self.more().await? {
                return Ok(None);
            }
        }
    }

    /// Waits for the place of the frame that has begun; the rest stays in the agent's socket.
    async fn take_turn(&self) -> Place {
        let place = self.arriving.place(self.deframer.awaited());
        // Boxed: few sessions ever need the room.
        let mut place = Box::pin(place);
        if let Some(place) = place.as_mut().now_or_never() {
            return place;
        }
        let _paused = Paused::new(self.charge.connection());
        place.await
    }

    /// Sends GOAWAY: the agent's next calls go elsewhere, and its streams go on.
    pub(super) fn let_go(&self) {
        self.connection().signal(Signal::Drain);
    }

    /// A frame of a stream that is gone, if it had been received.
    pub(super) fn last(&mut self) -> Option<Bytes> {
        loop {
            if let Some(message) = self.received().ok()? {
                return Some(message);
            }
            if !self.more().now_or_never()?.ok()? {
                return None;
            }
        }
    }

    fn received(&mut self) -> Result<Option<Bytes>, Status> {
        let message = self.deframer.next()?;
        self.charge.set(self.deframer.held())?;
        Ok(message)
    }

    /// Waits for more bytes. False: there are none.
    async fn more(&mut self) -> Result<bool, Status> {
        match self.body.frame().await {
            None => Ok(false),
            Some(Err(_)) => Err(Status::cancelled("the stream was reset")),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    self.deframer.push(data);
                }
                Ok(true)
            }
        }
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        self.charge.connection().session_ended(Instant::now());
    }
}
