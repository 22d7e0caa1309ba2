//! Keeps one connection to the server up.
//!
//! Responsible for dialling: again with [`super::redial`], the next endpoint when one cannot be
//! reached (UPCH-2), back to a preferred one when so configured; and for following the server's
//! limit on concurrent streams. Must never make a call.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout_at};

use super::channel::{Channel, Connection, State};
use super::dial::dial;
use super::error::ConnectError;
use super::frame::RequestBody;
use super::lane::Lanes;
use super::ledger::Ledger;
use super::order::Order;
use super::redial::{Redial, STABLE};
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
    /// Where the server is, in order of preference; not empty.
    pub(crate) endpoints: Vec<Endpoint>,
    /// How long a standby is used before the preferred endpoints are tried again; zero is until
    /// it fails.
    pub(crate) failback_after: Duration,
    /// Bound of one attempt, the wait for the server's SETTINGS included.
    pub(crate) connect_timeout: Duration,
    /// TCP_NODELAY.
    pub(crate) nodelay: bool,
    /// [`KEEP_ALIVE`] and [`KEEP_ALIVE_TIMEOUT`].
    pub(crate) keep_alive: (Duration, Duration),
    /// Streams in use at most, whatever the server allows.
    pub(crate) max_streams: usize,
}

type Driver = http2::Connection<TokioIo<TcpStream>, RequestBody, TokioExecutor>;

/// Keeps the connection up.
#[derive(Debug)]
pub(crate) struct Keeper {
    settings: Settings,
    state: watch::Sender<State>,
    lanes: Arc<Lanes>,
    metrics: Arc<Metrics>,
}

/// A connection that was just made. Dropping it closes the connection once the calls on it have
/// ended.
struct Made {
    /// Which endpoint.
    at: usize,
    connection: Arc<Connection>,
    driver: Driver,
}

/// How the watch over a connection ended.
enum Ended {
    /// The server asked to leave.
    Left,
    /// It broke.
    Lost(ConnectError),
    /// There is one to a preferred endpoint.
    Replaced(Made),
}

impl Keeper {
    /// A keeper and the channel it keeps connected; the former is to be run. `lanes` follows the
    /// stream limit.
    pub(crate) fn new(
        settings: Settings,
        lanes: Arc<Lanes>,
        metrics: Arc<Metrics>,
    ) -> (Channel, Self) {
        let (channel, state) = Channel::new();
        let keeper = Self {
            settings,
            state,
            lanes,
            metrics,
        };
        (channel, keeper)
    }

    /// Dials, watches, dials again; never returns.
    pub(crate) async fn run(&self) {
        let mut redial = Redial::new();
        let mut order = Order::new(self.settings.endpoints.len());
        loop {
            self.state.send_replace(State::Connecting);
            let (at, error, pause) = match self.round(&order).await {
                Ok(made) => self.serve(made, &mut order, &mut redial).await,
                Err((at, error)) => (at, error, redial.failed(jitter())),
            };
            tracing::warn!(
                endpoint = %self.settings.endpoints[at],
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

    /// Tries every endpoint once; the last error when none can be reached.
    async fn round(&self, order: &Order) -> Result<Made, (usize, ConnectError)> {
        let round = order.round();
        for (tried, at) in round.iter().enumerate() {
            match self.connect(*at).await {
                Ok(made) => return Ok(made),
                Err(error) if tried + 1 == round.len() => return Err((*at, error)),
                Err(error) => tracing::warn!(
                    endpoint = %self.settings.endpoints[*at],
                    reason = %error.text,
                    "upstream endpoint cannot be reached; trying the next one"
                ),
            }
        }
        Err((0, ConnectError::new("other", "there is no endpoint")))
    }

    /// Publishes a connection, and those that replace it, until the last one ends: to which
    /// endpoint it was, why it ended, and the pause before the next attempt.
    async fn serve(
        &self,
        mut made: Made,
        order: &mut Order,
        redial: &mut Redial,
    ) -> (usize, ConnectError, Duration) {
        loop {
            let (at, since) = (made.at, Instant::now());
            order.connected(at);
            tracing::info!(
                endpoint = %self.settings.endpoints[at],
                standby = at > 0,
                "upstream connected"
            );
            let ended = self.watch(made, order).await;
            let up = since.elapsed();
            let (error, pause) = match ended {
                Ended::Replaced(preferred) => {
                    made = preferred;
                    continue;
                }
                Ended::Left => (
                    ConnectError::new("closed", "the server closed the connection"),
                    redial.told_to_leave(up, jitter()),
                ),
                Ended::Lost(error) => (error, redial.lost(up, jitter())),
            };
            if up < STABLE {
                order.did_not_last();
            }
            self.follow(None);
            return (at, error, pause);
        }
    }

    async fn connect(&self, at: usize) -> Result<Made, ConnectError> {
        let Settings {
            endpoints,
            connect_timeout,
            nodelay,
            keep_alive,
            max_streams,
            ..
        } = &self.settings;
        let endpoint = &endpoints[at];
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
            Ok(Made {
                at,
                connection: Arc::new(Connection::new(sender, ledger, authority)),
                driver,
            })
        };
        match timeout_at(deadline, shake).await {
            Ok(made) => made,
            Err(_) => Err(ConnectError::new(
                "timeout",
                "the server sent no http/2 settings",
            )),
        }
    }

    /// Publishes a connection and follows its stream limit until it ends or is replaced.
    async fn watch(&self, made: Made, order: &Order) -> Ended {
        let Made {
            connection,
            mut driver,
            ..
        } = made;
        let mut seen = announced(&driver);
        self.follow(seen);
        self.state
            .send_replace(State::Live(Arc::clone(&connection)));
        let mut poll = interval(LIMIT_POLL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut preferred = pin!(self.preferred(order));
        loop {
            // The tick also lets the driver notice a GOAWAY, which does not wake it.
            tokio::select! {
                result = &mut driver => return match result {
                    Ok(()) => Ended::Left,
                    Err(error) => Ended::Lost(ended(&error)),
                },
                made = &mut preferred => return Ended::Replaced(made),
                _ = poll.tick() => {}
            }
            let now = announced(&driver);
            if seen != now {
                connection.ledger().announce(now);
                self.follow(now);
                seen = now;
            }
        }
    }

    /// A connection to a preferred endpoint, once there is one.
    async fn preferred(&self, order: &Order) -> Made {
        let after = self.settings.failback_after;
        if after.is_zero() || order.preferred().is_empty() {
            return std::future::pending().await;
        }
        loop {
            sleep(after).await;
            for at in order.preferred() {
                if let Ok(made) = self.connect(at).await {
                    return made;
                }
            }
        }
    }

    /// Brings the permits under the server's limit on streams.
    fn follow(&self, server: Option<u32>) {
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
        self.lanes.follow(server);
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
    use crate::upstream::tests::{LONG, lanes, metrics, settings, soon, until};

    #[tokio::test]
    async fn a_request_that_an_ending_connection_gives_back_goes_to_the_next_one() {
        let mut server = Server::start(|_| Reply::Message(Bytes::new())).await;
        let (channel, keeper) = Keeper::new(settings(server.address), lanes(), metrics());
        let client = Client::new(Some(channel), 4 << 20, metrics());
        let Made {
            connection: first,
            driver: undriven,
            ..
        } = keeper.connect(0).await.unwrap();
        keeper.state.send_replace(State::Live(Arc::clone(&first)));
        let call = tokio::spawn(async move {
            client
                .call(Rpc::BatchHeartbeat, Bytes::new(), None, soon())
                .await
        });
        until("the request is queued", || first.ledger().in_use() == 1).await;
        drop(undriven);
        let second = keeper.connect(0).await.unwrap();
        keeper.state.send_replace(State::Live(second.connection));
        tokio::spawn(second.driver);
        assert_eq!(call.await.unwrap(), Ok(Bytes::new()));
        assert_eq!(first.ledger().in_use(), 0);
        timeout_at(Instant::now() + LONG, server.calls.recv())
            .await
            .unwrap();
        assert!(server.calls.try_recv().is_err(), "sent twice");
    }
}
