//! Keeps one connection to the server up.
//!
//! Responsible for dialling: again with [`super::redial`], the next endpoint when one cannot be
//! reached (UPCH-2), back to a preferred one when so configured; and for following the server's
//! limit on concurrent streams. Must never make a call.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Scheme;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::carrier::Carrier;
use super::channel::{Channel, State};
use super::connection::{Condition, Connection, KeepAlive};
use super::dial::{self, dial};
use super::error::ConnectError;
use super::lane::Lanes;
use super::order::Order;
use super::redial::{Redial, STABLE};
use super::tls::{BAD_TLS_OPTIONS, ClientTls};
use crate::config::Endpoint;
use crate::observe::metrics::Metrics;

/// How an upstream connection is kept alive.
pub(crate) const KEEP_ALIVE: KeepAlive = KeepAlive {
    after: Duration::from_secs(60),
    timeout: Duration::from_secs(20),
};

/// How long the server's system may acknowledge nothing of what was sent: longer than a call takes,
/// and no longer than the breaker is open at first, so that its probe finds another connection.
pub(crate) const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// What the channel is told. Endpoints and TLS stay as they were told first.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Where the server is, in order of preference; not empty.
    pub(crate) endpoints: Vec<Endpoint>,
    /// How long a standby is used before the preferred endpoints are tried again; zero is until
    /// it fails.
    pub(crate) failback_after: Duration,
    /// Bound of one attempt, the wait for the server's SETTINGS included; over TLS, of the TCP
    /// connect and of what follows it, each.
    pub(crate) connect_timeout: Duration,
    /// Of each socket.
    pub(crate) socket: dial::Options,
    /// [`KEEP_ALIVE`].
    pub(crate) keep_alive: KeepAlive,
    /// Streams in use at most, whatever the server allows.
    pub(crate) max_streams: usize,
    /// `None` is plaintext.
    pub(crate) tls: Option<Arc<ClientTls>>,
}

/// Keeps the connection up.
#[derive(Debug)]
pub(crate) struct Keeper {
    settings: watch::Sender<Arc<Settings>>,
    state: watch::Sender<State>,
    lanes: Arc<Lanes>,
    metrics: Arc<Metrics>,
}

/// A connection that was just made.
struct Made {
    /// Which endpoint.
    at: usize,
    connection: Arc<Connection>,
    condition: watch::Receiver<Condition>,
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
            settings: watch::Sender::new(Arc::new(settings)),
            state,
            lanes,
            metrics,
        };
        keeper.show(None);
        (channel, keeper)
    }

    /// Puts other settings in force: for the next attempt, and on the live connection how many
    /// streams are used.
    pub(crate) fn retune(&self, change: impl FnOnce(&mut Settings)) {
        self.settings
            .send_modify(|settings| change(Arc::make_mut(settings)));
        let max_streams = self.settings().max_streams;
        if let State::Live(connection) = &*self.state.borrow() {
            connection.retune(max_streams);
        }
    }

    fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.borrow())
    }

    /// Dials, watches, dials again; never returns.
    pub(crate) async fn run(&self) {
        let mut redial = Redial::new();
        let mut order = Order::new(self.settings().endpoints.len());
        loop {
            self.state.send_replace(State::Connecting);
            let (at, error, pause) = match self.round(&order).await {
                Ok(made) => self.serve(made, &mut order, &mut redial).await,
                Err((at, error)) => (at, error, redial.failed(jitter())),
            };
            if !told_elsewhere(&error) {
                tracing::warn!(
                    endpoint = %self.settings().endpoints[at],
                    reason = %error.text,
                    redial_in_ms = pause.as_millis() as u64,
                    "no upstream connection"
                );
            }
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
                Err(error) if told_elsewhere(&error) => {}
                Err(error) => tracing::warn!(
                    endpoint = %self.settings().endpoints[*at],
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
            self.show(Some(at));
            tracing::info!(
                endpoint = %self.settings().endpoints[at],
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
            self.show(None);
            self.follow(None);
            return (at, error, pause);
        }
    }

    async fn connect(&self, at: usize) -> Result<Made, ConnectError> {
        let settings = self.settings();
        let Settings {
            endpoints,
            connect_timeout,
            socket,
            keep_alive,
            max_streams,
            tls,
            ..
        } = &*settings;
        let endpoint = &endpoints[at];
        let authority = endpoint
            .to_string()
            .parse()
            .map_err(|_| ConnectError::new("other", "the endpoint is no authority"))?;
        let mut deadline = Instant::now() + *connect_timeout;
        let stream = dial(endpoint, *connect_timeout, *socket).await;
        let (carrier, scheme) = match tls {
            None => (Carrier::Plain(stream?), Scheme::HTTP),
            Some(tls) => {
                let stream = stream.inspect_err(|_| tls.not_reached())?;
                deadline = Instant::now() + *connect_timeout;
                let secured = timeout_at(deadline, tls.secure(stream, endpoint)).await;
                let secured = secured.unwrap_or_else(|_| Err(slow("completed no TLS handshake")));
                (secured?, Scheme::HTTPS)
            }
        };
        let alert = carrier.alert();
        let told = |error| alert.get().cloned().unwrap_or(error);
        let origin = (scheme, authority);
        let (connection, mut condition) =
            Connection::start(carrier, origin, *max_streams, *keep_alive)
                .await
                .map_err(told)?;
        // Before the server's SETTINGS its limit is a guess, and streams over it would be refused.
        let settled = condition.wait_for(|now| *now != Condition::Unsettled);
        match timeout_at(deadline, settled).await {
            Ok(Ok(now)) => match &*now {
                Condition::Over(error) => return Err(told(error.clone())),
                Condition::Unsettled | Condition::Open(_) | Condition::Leaving => {}
            },
            Ok(Err(_gone)) => return Err(gone()),
            Err(_elapsed) => return Err(slow("sent no http/2 settings")),
        }
        Ok(Made {
            at,
            connection,
            condition,
        })
    }

    /// Publishes a connection and follows its stream limit until it ends or is replaced.
    async fn watch(&self, made: Made, order: &Order) -> Ended {
        let Made {
            connection,
            mut condition,
            ..
        } = made;
        let mut preferred = pin!(self.preferred(order));
        let mut connection = Some(connection);
        loop {
            let now = condition.borrow_and_update().clone();
            match now {
                Condition::Unsettled => {}
                Condition::Open(limit) => self.follow(limit),
                Condition::Leaving => return Ended::Left,
                Condition::Over(error) => return Ended::Lost(error),
            }
            // Once, and after the limit is in force. Calls own it from now on: whatever takes its
            // place in the channel ends it.
            if let Some(connection) = connection.take() {
                self.state
                    .send_replace(State::Live(Arc::clone(&connection)));
                // Settings that changed while it was made.
                connection.retune(self.settings().max_streams);
            }
            tokio::select! {
                changed = condition.changed() => if changed.is_err() {
                    return Ended::Lost(gone());
                },
                made = &mut preferred => return Ended::Replaced(made),
            }
        }
    }

    /// A connection to a preferred endpoint, once there is one.
    async fn preferred(&self, order: &Order) -> Made {
        let mut settings = self.settings.subscribe();
        loop {
            let after = settings.borrow_and_update().failback_after;
            let due = async {
                if after.is_zero() || order.preferred().is_empty() {
                    std::future::pending().await
                } else {
                    sleep(after).await
                }
            };
            tokio::select! {
                // The sender lives as long as the keeper.
                _ = settings.changed() => continue,
                () = due => {}
            }
            for at in order.preferred() {
                if let Ok(made) = self.connect(at).await {
                    return made;
                }
            }
        }
    }

    /// Shows which endpoint calls go to.
    fn show(&self, active: Option<usize>) {
        let gauges = &self.metrics.upstream_endpoint_active;
        let gauge = |endpoint: &Endpoint| gauges.with_label_values(&[&endpoint.to_string()]);
        let endpoints = &self.settings().endpoints;
        // All of them first: one may be configured twice.
        endpoints.iter().for_each(|endpoint| gauge(endpoint).set(0));
        if let Some(active) = active {
            gauge(&endpoints[active]).set(1);
        }
    }

    /// Brings the permits under the server's limit on streams.
    fn follow(&self, server: Option<u32>) {
        self.metrics
            .upstream_server_max_streams
            .set(server.map_or(0, i64::from));
        let wanted = self.settings().max_streams;
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

impl Drop for Keeper {
    fn drop(&mut self) {
        self.state.send_replace(State::Closed);
    }
}

/// Whether [`ClientTls`] reports it, at its own pace (LOG-6).
fn told_elsewhere(error: &ConnectError) -> bool {
    error.tls == Some(BAD_TLS_OPTIONS)
}

fn slow(fault: &str) -> ConnectError {
    ConnectError::new("timeout", format!("the server {fault}"))
}

/// The task of a connection ended without a word.
fn gone() -> ConnectError {
    ConnectError::new("closed", "the connection is gone")
}

/// A random number in `0.0..=1.0`.
fn jitter() -> f64 {
    getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::net::TcpListener;

    use super::*;
    use crate::upstream::client::Client;
    use crate::upstream::rpc::Rpc;
    use crate::upstream::tests::peer::Peer;
    use crate::upstream::tests::server::{Reply, Server};
    use crate::upstream::tests::{LONG, lanes, metrics, settings, soon, until};

    #[tokio::test]
    async fn a_request_that_an_ending_connection_does_not_take_goes_to_the_next_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let leaving = settings(listener.local_addr().unwrap());
        let (_, first) = Keeper::new(leaving, lanes(), metrics());
        let (first, peer) = tokio::join!(first.connect(0), Peer::accept(&listener, None));
        let (first, mut peer) = (first.unwrap().connection, peer);
        peer.go_away(0).await;
        until("it ends", || first.is_closed()).await;
        first.forget_the_end();

        let mut server = Server::start(|_| Reply::Message(Bytes::new())).await;
        let (channel, keeper) = Keeper::new(settings(server.address), lanes(), metrics());
        let client = Client::new(Some(channel), 4 << 20, metrics());
        keeper.state.send_replace(State::Live(Arc::clone(&first)));
        let call = tokio::spawn(async move {
            client
                .call(Rpc::BatchHeartbeat, Bytes::new(), None, soon())
                .await
        });
        until("the call found out", || first.is_closed()).await;
        assert_eq!(first.ledger().in_use(), 0);
        let second = keeper.connect(0).await.unwrap();
        keeper.state.send_replace(State::Live(second.connection));
        assert_eq!(call.await.unwrap(), Ok(Bytes::new()));
        timeout_at(Instant::now() + LONG, server.calls.recv())
            .await
            .unwrap();
        assert!(server.calls.try_recv().is_err(), "sent twice");
    }
}
