//! The one HTTP/2 connection to the server, as calls see it.
//!
//! Responsible for what calls can count on: a live connection, one being made, or none. Must never
//! make a call, and must never let one wait for a connection that is not being made (UPCH-2).

use std::sync::Arc;

use http::uri::Authority;
use hyper::client::conn::http2;
use tokio::sync::watch;

use super::error::{CallError, ConnectError};
use super::frame::RequestBody;
use super::ledger::{Ledger, Slot, TooManyStreams};

/// What calls can count on.
#[derive(Debug, Clone)]
pub(crate) enum State {
    /// A connection is being made.
    Connecting,
    /// A connection is up.
    Live(Arc<Connection>),
    /// No connection, and none being made just now.
    Down(ConnectError),
}

/// A live connection.
#[derive(Debug)]
pub(crate) struct Connection {
    sender: http2::SendRequest<RequestBody>,
    ledger: Arc<Ledger>,
    authority: Authority,
}

impl Connection {
    /// A connection whose streams `ledger` counts.
    pub(crate) fn new(
        sender: http2::SendRequest<RequestBody>,
        ledger: Arc<Ledger>,
        authority: Authority,
    ) -> Self {
        Self {
            sender,
            ledger,
            authority,
        }
    }

    /// Takes a stream's place in the ledger.
    pub(crate) fn open(&self) -> Result<Slot, TooManyStreams> {
        self.ledger.open()
    }

    /// The streams of this connection.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The way to send requests.
    pub(crate) fn sender(&self) -> http2::SendRequest<RequestBody> {
        self.sender.clone()
    }

    /// Host and port for `:authority`.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }
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
        matches!(&*self.state.borrow(), State::Live(connection) if !connection.sender.is_closed())
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
                // A sender that is closed: its end is published in a moment.
                State::Live(connection) if !connection.sender.is_closed() => {
                    return Ok(Arc::clone(connection));
                }
                State::Live(_) | State::Connecting => {}
                State::Down(error) => return Err(CallError::NotConnected(error.clone())),
            }
            state
                .changed()
                .await
                .map_err(|_closed| CallError::NoUpstream)?;
        }
    }
}
