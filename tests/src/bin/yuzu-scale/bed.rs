//! What scenarios share: the gateway as its own process, its metrics, the server in this one.

use crate::server::Server;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use yuzu_proto::gateway::v1::StreamStatusNotification;
use yuzu_server_stub::{RouteState, Rpc, State, StubConfig};
use yuzu_tests::fleet;
use yuzu_tests::http;
use yuzu_tests::metrics::Metrics;
use yuzu_tests::process::{GatewayProcess, program};

const START_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);

/// The programs under test.
#[derive(Debug)]
pub(crate) struct Binaries {
    pub(crate) gateway: PathBuf,
    pub(crate) stub: PathBuf,
}

impl Binaries {
    /// Those that the user names, otherwise those beside this program.
    pub(crate) fn find(gateway: Option<PathBuf>, stub: Option<PathBuf>) -> Result<Self, String> {
        Ok(Self {
            gateway: program(gateway.as_deref(), "yuzu-gateway", "--gateway-binary")?,
            stub: program(stub.as_deref(), "yuzu-server-stub", "--stub-binary")?,
        })
    }
}

/// A server in this process and a gateway in its own.
#[derive(Debug)]
pub(crate) struct Bed {
    pub(crate) server: Server,
    pub(crate) gateway: GatewayProcess,
}

impl Bed {
    pub(crate) async fn start(binaries: &Binaries, server: StubConfig) -> Result<Self, String> {
        let server = Server::start(server).await?;
        let gateway = gateway(binaries, server.addr(), "").await?;
        Ok(Self { server, gateway })
    }

    /// Waits for something at the server.
    pub(crate) async fn server_has<T>(
        &self,
        what: &str,
        limit: Duration,
        look: impl FnMut(&State) -> Option<T>,
    ) -> Result<T, String> {
        let found = self.server.wait_for(what, limit, look).await;
        found.map_err(|e| format!("{e}\n{}", self.gateway.log_end()))
    }

    /// Agents without heartbeats whose ids begin with `prefix`.
    pub(crate) fn fleet(&self, prefix: &str, agents: usize) -> fleet::Options {
        fleet::Options {
            prefix: prefix.into(),
            heartbeat: None,
            ..fleet::Options::new(self.gateway.agents, agents)
        }
    }
}

/// Starts a gateway process; `more` as in [`GatewayProcess::start_with`].
pub(crate) async fn gateway(
    binaries: &Binaries,
    server: SocketAddr,
    more: &str,
) -> Result<GatewayProcess, String> {
    GatewayProcess::start_with(&binaries.gateway, server, more, START_LIMIT).await
}

/// Scrapes a gateway.
pub(crate) async fn scrape(gateway: &GatewayProcess) -> Result<Metrics, String> {
    let answer = http::get(gateway.metrics, "/metrics").await?;
    Metrics::parse(&answer.body)
}

/// The sum of the series with these labels; the name without `yuzu_gw_`.
pub(crate) fn value(metrics: &Metrics, name: &str, labels: &[(&str, &str)]) -> Result<u64, String> {
    let value = metrics.value(&format!("yuzu_gw_{name}"), labels);
    // Counts and sizes only, far below 2^53.
    value
        .map(|value| value as u64)
        .ok_or_else(|| format!("the gateway has no series {name} {labels:?}"))
}

/// The sum of the series with these labels, 0 when the first event has not come yet.
pub(crate) fn value_or_zero(metrics: &Metrics, name: &str, labels: &[(&str, &str)]) -> u64 {
    value(metrics, name, labels).unwrap_or(0)
}

/// Scrapes until `reached` says so.
pub(crate) async fn gateway_has(
    gateway: &GatewayProcess,
    what: &str,
    limit: Duration,
    mut reached: impl FnMut(&Metrics) -> bool,
) -> Result<Metrics, String> {
    let deadline = Instant::now() + limit;
    loop {
        let metrics = scrape(gateway).await?;
        if reached(&metrics) {
            return Ok(metrics);
        }
        if Instant::now() >= deadline {
            return Err(format!("waited for {what}\n{}", gateway.log_end()));
        }
        sleep(POLL).await;
    }
}

/// A time that is meant for `of` agents, for as many; never less than it.
pub(crate) fn scaled(time: Duration, agents: usize, of: usize) -> Duration {
    time.mul_f64((agents as f64 / of as f64).max(1.0))
}

/// Agents in this state at the server.
pub(crate) fn routes(state: &State, wanted: RouteState) -> u64 {
    state.routes().filter(|route| route.state == wanted).count() as u64
}

/// Notices with the time at which they came.
pub(crate) fn notices(state: &State) -> impl Iterator<Item = (Instant, StreamStatusNotification)> {
    let received = state.received(Rpc::NotifyStreamStatus);
    received.filter_map(|received| Some((received.at, received.stream_status()?)))
}

/// The one in the middle, and the largest; zero when there is none.
pub(crate) fn median_and_most(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    (median, times.last().copied().unwrap_or_default())
}

/// The most of something at once, of which each lasts this long at least and began at one of
/// these times, which are in order.
pub(crate) fn most_at_once(times: &[Instant], lasts: Duration) -> u64 {
    let mut oldest = 0;
    let mut most = 0;
    for (newest, at) in times.iter().enumerate() {
        while *at - times[oldest] >= lasts {
            oldest += 1;
        }
        most = most.max(newest - oldest + 1);
    }
    most as u64
}

/// The peak of the gateway's anonymous memory, from when it is watched.
#[derive(Debug)]
pub(crate) struct Peak {
    done: Arc<AtomicBool>,
    watch: JoinHandle<Result<u64, String>>,
}

impl Peak {
    pub(crate) fn watch(bed: &Arc<Bed>) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let (bed, ends) = (Arc::clone(bed), Arc::clone(&done));
        let watch = tokio::task::spawn_blocking(move || {
            let mut peak = 0;
            while !ends.load(Ordering::Relaxed) {
                peak = peak.max(bed.gateway.anonymous_memory()?);
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(peak)
        });
        Self { done, watch }
    }

    pub(crate) async fn end(self) -> Result<u64, String> {
        self.done.store(true, Ordering::Relaxed);
        self.watch.await.map_err(|e| e.to_string())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_agents_have_more_time_and_fewer_have_no_less() {
        let second = Duration::from_secs(1);
        assert_eq!(scaled(second, 5, 10), second);
        assert_eq!(scaled(second, 30, 10), second * 3);
    }

    #[test]
    fn counts_what_overlaps() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let most = |times: &[Instant]| most_at_once(times, Duration::from_millis(5));
        assert_eq!(most(&[]), 0);
        assert_eq!(most(&[at(0), at(5), at(10)]), 1);
        assert_eq!(most(&[at(0), at(4), at(5), at(8), at(20)]), 3);
    }
}
