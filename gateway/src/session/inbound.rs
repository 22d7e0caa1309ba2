//! The receiving half of a Subscribe stream.
//!
//! Responsible for cutting the agent's bytes into frames within the connection's budget. Must
//! never decode a frame.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::Instant;
use tonic::Status;

use crate::edge::connection::{Charge, Connection};
use crate::edge::deframe::Deframer;

/// The receiving half of a Subscribe stream.
pub(crate) struct Inbound {
    body: Incoming,
    deframer: Deframer,
    charge: Charge,
}

impl Inbound {
    pub(crate) fn new(body: Incoming, connection: &Arc<Connection>) -> Self {
        let deframer = Deframer::new(connection.limits().max_message_bytes);
        connection.session_began();
        Self {
            body,
            deframer,
            charge: Charge::new(connection),
        }
    }

    /// The agent's next frame; `None` when it half-closed. Nothing is lost when the future is
    /// dropped.
    ///
    /// # Errors
    /// The status the stream ends with: cancelled when it was reset or its connection lost, else
    /// what is wrong with the bytes.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            let message = self.deframer.next()?;
            self.charge
                .set(self.deframer.held())
                .map_err(|over| Status::resource_exhausted(over.to_string()))?;
            if message.is_some() {
                return Ok(message);
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(_)) => return Err(Status::cancelled("the stream was reset")),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.deframer.push(data);
                    }
                }
            }
        }
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        self.charge.connection().session_ended(Instant::now());
    }
}
