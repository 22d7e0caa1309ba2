//! The one HTTP/2 connection to the server, as calls see it.
//!
//! Responsible for what calls can count on: a live connection, one being made, or none. Must never
//! make a call, and must never let one wait for a connection that is not being made (UPCH-2).

use std::sync::Arc;

use tokio::sync::watch;

use super::connection::Connection;
use super::error::{CallError, ConnectError};

/// What calls can count on.
#[derive(Debug, Clone)]
pub(crate) enum State {
    /// A connection is being made.
    Connecting,
    /// A connection is up.
    Live(Arc<Connection>),
    /// No connection, and none being made just now.
    Down(ConnectError),
    /// Nobody makes connections any more.
    Closed,
}

/// Where calls find the connection.
#[derive(Debug, Clone)]
pub(crate) struct Channel {
    state: watch::Receiver<State>,
}

impl Channel {
    /// A channel whose connection is being made; the sender tells what becomes of it.
    pub(crate) fn new() -> (Self, watch::Sender<State>) {
        let (sender, state) = watch::channel(State::Connecting);
        (Self { state }, sender)
    }

    /// Whether a connection is up.
    #[cfg(test)]
    pub(crate) fn is_connected(&self) -> bool {
        self.live().is_some()
    }

    /// The live connection, if there is one.
    pub(crate) fn live(&self) -> Option<Arc<Connection>> {
        match &*self.state.borrow() {
            State::Live(connection) if !connection.is_closed() => Some(Arc::clone(connection)),
            _ => None,
        }
    }

    /// Completes when there is a live connection, or when there will be none any more.
    pub(crate) async fn connected(&self) {
        let mut state = self.state.clone();
        // An error means that nobody makes connections any more, which a call finds out.
        let _ = state
            .wait_for(|state| match state {
                State::Live(connection) => !connection.is_closed(),
                State::Connecting | State::Down(_) => false,
                State::Closed => true,
            })
            .await;
    }

    /// The live connection. Waits only while one is being made; the caller bounds the wait.
    ///
    /// # Errors
    /// [`CallError::NotConnected`] with the last connection error, [`CallError::NoUpstream`] when
    /// the channel is closed.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, CallError> {
        let mut state = self.state.clone();
        loop {
            match &*state.borrow_and_update() {
                // One that is closed: its end is published in a moment.
                State::Live(connection) if !connection.is_closed() => {
                    return Ok(Arc::clone(connection));
                }
                State::Live(_) | State::Connecting => {}
                State::Down(error) => return Err(CallError::NotConnected(error.clone())),
                State::Closed => return Err(CallError::NoUpstream),
            }
            state
                .changed()
                .await
                .map_err(|_closed| CallError::NoUpstream)?;
        }
    }
}
