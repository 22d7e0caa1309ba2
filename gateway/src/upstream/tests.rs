//! Real sockets: a real client against scripted servers.

mod calls;
mod connection;
mod endpoints;
mod guardian;
mod limits;
pub(crate) mod peer;
mod permits;
pub(crate) mod server;
mod silence;

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use prometheus::TextEncoder;
use prost::Message;
use tokio::time::{Instant, sleep, timeout};
use yuzu_proto::agent::v1::RegisterResponse;

use super::*;
use crate::config::{Config, Endpoint};

/// Longer than anything takes.
pub(crate) const LONG: Duration = Duration::from_secs(20);

const SOCKET: dial::Options = dial::Options {
    nodelay: true,
    user_timeout: keeper::USER_TIMEOUT,
};

pub(crate) fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new("gw1").unwrap())
}

pub(crate) fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint {
        host: address.ip().to_string(),
        port: address.port(),
    }
}

/// Permits of the default configuration.
pub(crate) fn lanes() -> Arc<Lanes> {
    Lanes::new(&Config::default().upstream, RESERVED_STREAMS, &metrics())
}

/// An upstream to `address` with the default configuration, changed by `change`.
pub(crate) fn upstream(
    address: SocketAddr,
    metrics: &Arc<Metrics>,
    change: impl FnOnce(&mut config::Upstream),
) -> Upstream {
    let mut config = Config::default().upstream;
    config.endpoints = vec![endpoint(address)];
    change(&mut config);
    Upstream::start(&config, Arc::clone(metrics))
}

/// Settings of a channel to `address`, those of an upstream by default.
pub(crate) fn settings(address: SocketAddr) -> Settings {
    Settings {
        endpoints: vec![endpoint(address)],
        failback_after: Duration::ZERO,
        connect_timeout: LONG,
        socket: SOCKET,
        keep_alive: keeper::KEEP_ALIVE,
        max_streams: 117,
        tls: None,
    }
}

/// An answer that accepts.
pub(crate) fn accepted() -> Bytes {
    let answer = RegisterResponse {
        session_id: "gw-session-1".into(),
        accepted: true,
        ..RegisterResponse::default()
    };
    answer.encode_to_vec().into()
}

pub(crate) fn soon() -> Instant {
    Instant::now() + LONG
}

/// The value of a series in the rendered metrics, such as `foo_total{a="b"}` without the prefix.
pub(crate) fn metric(metrics: &Metrics, series: &str) -> Option<f64> {
    let text = TextEncoder::new()
        .encode_to_string(&metrics.registry.gather())
        .unwrap();
    let wanted = format!("yuzu_gw_{series} ");
    let line = text.lines().find(|line| line.starts_with(&wanted))?;
    line[wanted.len()..].parse().ok()
}

/// Waits until `condition` holds.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(LONG, wait)
        .await
        .unwrap_or_else(|_| panic!("never came: {what}"));
}

/// While there is one subscriber only, tracing asks the thread that first meets a line whether
/// anybody wants it, and a test without a log would answer for all. So there are two.
static SECOND: LazyLock<tracing::Dispatch> = LazyLock::new(|| {
    let everything = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE);
    tracing::Dispatch::new(everything.with_writer(std::io::sink).finish())
});

/// The lines that `work` writes, without times.
pub(crate) fn logged(work: impl FnOnce()) -> String {
    LazyLock::force(&SECOND);
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .without_time()
        .with_ansi(false)
        .with_target(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, work);
    let bytes = lines.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}
