//! The one HTTP/2 connection to the server.
//!
//! Responsible for keeping a connection to the first endpoint up, dialling again with
//! [`super::redial`], publishing what calls can count on, and following the server's limit on
//! concurrent streams. Must never make a call, and must never let one wait for a connection that
//! is not being made (UPCH-2).

use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout_at};

use super::dial::dial;
use super::error::{CallError, ConnectError};
use super::frame::RequestBody;
use super::ledger::{Ledger, Slot, TooManyStreams};
use super::redial::Redial;
use crate::config::Endpoint;
use crate::observe::metrics::Metrics;

/// Time without a received byte until a ping; the server accepts one without data every 30 s at
/// the earliest.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// Time for its answer.
pub(crate) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Cancelled calls whose late answers are still recognised. The answer of a forgotten one is reset
/// again, and h2 ends a connection after 1,024 such resets in its whole life: that cap is off,
/// since it is there against hostile peers, and calls to the server are cancelled all the time.
const REMEMBERED_RESETS: usize = 512;
const LIMIT_POLL: Duration = Duration::from_millis(100);
const SETTINGS_POLL: Duration = Duration::from_millis(2);

/// Stream limit of a connection before the server's SETTINGS came. No server can announce it (it
/// does not fit 32 bits) and it is not what h2 takes for unlimited, so the three are told apart;
/// until then the ledger alone bounds the streams.
const NOT_ANNOUNCED: usize = usize::MAX - 1;
const UNLIMITED: usize = usize::MAX;

/// What the channel is told once.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Where the server is.
    pub(crate) endpoint: Endpoint,
    /// Bound of one attempt, the wait for the server's SETTINGS included.
    pub(crate) connect_timeout: Duration,
    /// TCP_NODELAY.
    pub(crate) nodelay: bool,
    /// [`KEEP_ALIVE`] and [`KEEP_ALIVE_TIMEOUT`].
    pub(crate) keep_alive: (Duration, Duration),
    /// Streams in use at most, whatever the server allows.
    pub(crate) max_streams: usize,
}

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
    /// Takes a stream's place in the ledger.
    pub(crate) fn open(&self) -> Result<Slot, TooManyStreams> {
        self.ledger.open()
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
    /// A channel and what keeps it connected; the latter is to be run.
    pub(crate) fn new(settings: Settings, metrics: Arc<Metrics>) -> (Self, Keeper) {
        let (sender, state) = watch::channel(State::Connecting);
        (
            Self { state },
            Keeper {
                settings,
                state: sender,
                metrics,
            },
        )
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

type Driver = http2::Connection<TokioIo<TcpStream>, RequestBody, TokioExecutor>;

/// Keeps the connection up.
#[derive(Debug)]
pub(crate) struct Keeper {
    settings: Settings,
    state: watch::Sender<State>,
    metrics: Arc<Metrics>,
}

impl Keeper {
    /// Dials, watches, dials again; never returns. Dropping it closes the connection once the
    /// calls on it have ended.
    pub(crate) async fn run(&self) {
        let endpoint = &self.settings.endpoint;
        let mut redial = Redial::new();
        loop {
            self.state.send_replace(State::Connecting);
            let (error, pause) = match self.connect().await {
                Ok((connection, driver)) => {
                    tracing::info!(%endpoint, "upstream connected");
                    let (ledger, since) = (Arc::clone(&connection.ledger), Instant::now());
                    self.state.send_replace(State::Live(connection));
                    let ended = self.watch(driver, &ledger).await;
                    self.metrics.upstream_server_max_streams.set(0);
                    match ended {
                        Ok(()) => (
                            ConnectError::new("closed", "the server closed the connection"),
                            redial.told_to_leave(since.elapsed(), jitter()),
                        ),
                        Err(error) => (error, redial.lost(since.elapsed(), jitter())),
                    }
                }
                Err(error) => (error, redial.failed(jitter())),
            };
            tracing::warn!(
                %endpoint,
                reason = %error.text,
                redial_in_ms = pause.as_millis() as u64,
                "no upstream connection"
            );
            if !pause.is_zero() {
                self.state.send_replace(State::Down(error));
                sleep(pause).await;
            }
        }
    }

    async fn connect(&self) -> Result<(Arc<Connection>, Driver), ConnectError> {
        let Settings {
            endpoint,
            connect_timeout,
            nodelay,
            keep_alive,
            max_streams,
        } = &self.settings;
        let authority = endpoint
            .to_string()
            .parse()
            .map_err(|_| ConnectError::new("other", "the endpoint is no authority"))?;
        let deadline = Instant::now() + *connect_timeout;
        let stream = dial(endpoint, *connect_timeout, *nodelay).await?;
        let shake = async {
            let (sender, mut driver) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .initial_max_send_streams(NOT_ANNOUNCED)
                .keep_alive_interval(keep_alive.0)
                .keep_alive_timeout(keep_alive.1)
                .keep_alive_while_idle(true)
                .max_concurrent_reset_streams(REMEMBERED_RESETS)
                .max_local_error_reset_streams(None)
                .handshake(TokioIo::new(stream))
                .await
                .map_err(|error| ended(&error))?;
            settled(&mut driver).await?;
            let ledger = Ledger::new(*max_streams);
            ledger.announce(announced(&driver));
            Ok((
                Arc::new(Connection {
                    sender,
                    ledger,
                    authority,
                }),
                driver,
            ))
        };
        match timeout_at(deadline, shake).await {
            Ok(made) => made,
            Err(_) => Err(ConnectError::new(
                "timeout",
                "the server sent no http/2 settings",
            )),
        }
    }

    /// Follows the stream limit until the connection ends; `Ok` when the server asked to leave.
    async fn watch(&self, mut driver: Driver, ledger: &Ledger) -> Result<(), ConnectError> {
        let mut poll = interval(LIMIT_POLL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = None;
        loop {
            let now = announced(&driver);
            if seen != Some(now) {
                ledger.announce(now);
                self.tell_limit(now);
                seen = Some(now);
            }
            // The tick also lets the driver notice a GOAWAY, which does not wake it.
            tokio::select! {
                result = &mut driver => return result.map_err(|error| ended(&error)),
                _ = poll.tick() => {}
            }
        }
    }

    fn tell_limit(&self, server: Option<u32>) {
        self.metrics
            .upstream_server_max_streams
            .set(server.map_or(0, i64::from));
        let wanted = self.settings.max_streams;
        match server {
            None => {}
            Some(streams) if (streams as usize) < wanted => tracing::warn!(
                "The server allows {streams} concurrent streams on the gateway's connections; \
                 the gateway would use up to {wanted} and holds calls back"
            ),
            Some(streams) => tracing::info!(
                "The server allows {streams} concurrent streams on the gateway's connections; \
                 the gateway uses at most {wanted}"
            ),
        }
    }
}

/// Waits for the server's SETTINGS: before them the limit is a guess, and streams over it would
/// be refused.
async fn settled(driver: &mut Driver) -> Result<(), ConnectError> {
    while driver.current_max_send_streams() == NOT_ANNOUNCED {
        tokio::select! {
            result = &mut *driver => return Err(match result {
                Ok(()) => ConnectError::new("closed", "the server closed the connection"),
                Err(error) => ended(&error),
            }),
            () = sleep(SETTINGS_POLL) => {}
        }
    }
    Ok(())
}

fn announced(driver: &Driver) -> Option<u32> {
    match driver.current_max_send_streams() {
        NOT_ANNOUNCED | UNLIMITED => None,
        streams => u32::try_from(streams).ok(),
    }
}

fn ended(error: &hyper::Error) -> ConnectError {
    super::transport::closed(error)
}

/// A random number in `0.0..=1.0`.
fn jitter() -> f64 {
    getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::upstream::client::Client;
    use crate::upstream::rpc::Rpc;
    use crate::upstream::tests::server::{Reply, Server};
    use crate::upstream::tests::{LONG, metrics, settings, soon, until};

    #[tokio::test]
    async fn a_request_that_an_ending_connection_gives_back_goes_to_the_next_one() {
        let mut server = Server::start(|_| Reply::Message(Bytes::new())).await;
        let (channel, keeper) = Channel::new(settings(server.address), metrics());
        let client = Client::new(Some(channel), 4 << 20, metrics());
        let (first, undriven) = keeper.connect().await.unwrap();
        keeper.state.send_replace(State::Live(Arc::clone(&first)));
        let call = tokio::spawn(async move {
            client
                .call(Rpc::BatchHeartbeat, Bytes::new(), None, soon())
                .await
        });
        until("the request is queued", || first.ledger.in_use() == 1).await;
        drop(undriven);
        let (second, driver) = keeper.connect().await.unwrap();
        keeper.state.send_replace(State::Live(second));
        tokio::spawn(driver);
        assert_eq!(call.await.unwrap(), Ok(Bytes::new()));
        assert_eq!(first.ledger.in_use(), 0);
        timeout_at(Instant::now() + LONG, server.calls.recv())
            .await
            .unwrap();
        assert!(server.calls.try_recv().is_err(), "sent twice");
    }
}
