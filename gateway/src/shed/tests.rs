use std::future::{Future, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::config::{LimitOrigin, Listener, MemoryLimit, Shedding};
use crate::edge::charge::NodeMemory;
use crate::edge::connection::{Connection, ConnectionKey};
use crate::edge::listener::BoundListener;
use crate::edge::terms::NodeParts;
use crate::edge::{Handler, Response, grpc};

/// Serves nothing.
struct Nobody;

impl Handler for Nobody {
    fn call(
        &self,
        _: http::Request<Incoming>,
        _: Arc<Connection>,
    ) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        Box::pin(ready(grpc::refuse(tonic::Status::unimplemented(""))))
    }

    fn authorizes(&self, _: &Connection) -> bool {
        true
    }

    fn connection_opened(&self, _: ConnectionKey, _: &crate::edge::tls::Transport) {}

    fn connection_closed(&self, _: ConnectionKey) {}
}

fn listener(services: &[Service]) -> (Listener, RunningListener) {
    let mut config = Listener::agent(SocketAddr::from(([127, 0, 0, 1], 0)));
    config.services = services.to_vec();
    let node = NodeParts {
        memory: NodeMemory::new(1 << 20),
        metrics: Arc::new(Metrics::new("test").unwrap()),
        supervisor: NodeSupervisor::new(),
    };
    let bound = BoundListener::bind(&config).unwrap();
    let running = bound.serve(Arc::new(Nobody), None, &node).unwrap();
    (config, running)
}

fn memory() -> Memory {
    Memory {
        max_unfinished_request_bytes: 1 << 20,
        shedding: Shedding {
            enabled: true,
            interval: Duration::from_millis(10),
            high_fraction: None,
            low_fraction: None,
            high_bytes: None,
            low_bytes: None,
        },
        limit: Some(MemoryLimit {
            bytes: 1_000,
            origin: LimitOrigin::Host,
        }),
    }
}

struct Bench {
    listeners: Listeners,
    metrics: Arc<Metrics>,
    used: Arc<AtomicU64>,
    _shedder: MemoryShedder,
}

impl Bench {
    fn new(memory: &Memory, listeners: Vec<(Listener, RunningListener)>) -> Self {
        let listeners = Arc::new(listeners);
        let metrics = Arc::new(Metrics::new("test").unwrap());
        let used = Arc::new(AtomicU64::new(0));
        let sampled = Arc::clone(&used);
        let sample = move || Some(sampled.load(Ordering::SeqCst));
        let shedder = MemoryShedder::start(memory, &listeners, &metrics, sample);
        Self {
            listeners,
            metrics,
            used,
            _shedder: shedder,
        }
    }

    fn one(memory: &Memory) -> Self {
        Self::new(memory, vec![listener(&[Service::Agent])])
    }

    fn first(&self) -> &RunningListener {
        &self.listeners[0].1
    }

    /// Sets what is used and lets two samples pass.
    async fn uses(&self, bytes: u64) {
        self.used.store(bytes, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(25)).await;
    }

    fn failing(&self) -> i64 {
        let failing = &self.metrics.memory_shedding_transition_failing;
        failing.with_label_values(&["resume"]).get()
    }
}

#[tokio::test(start_paused = true)]
async fn shed_1_2_3_the_socket_is_closed_above_the_high_mark_and_open_at_the_low_one() {
    let bench = Bench::one(&memory());
    let address = bench.first().address();
    let established = TcpStream::connect(address).await.unwrap();
    bench.uses(750).await;
    assert!(bench.first().is_running());
    bench.uses(751).await;
    assert!(!bench.first().is_running(), "READY-4");
    let refused = TcpStream::connect(address).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(bench.metrics.memory_shedding_active.get(), 1);
    bench.uses(651).await;
    assert!(!bench.first().is_running());
    bench.uses(650).await;
    assert!(bench.first().is_running());
    TcpStream::connect(address).await.unwrap();
    assert_eq!(bench.metrics.memory_shedding_active.get(), 0);
    assert_eq!(bench.metrics.memory_shedding_suspensions_total.get(), 1);
    // The server's preface is there, and no end.
    let mut bytes = [0; 1024];
    let mut read = || established.try_read(&mut bytes);
    assert_ne!(read().unwrap(), 0);
    assert_eq!(read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[tokio::test(start_paused = true)]
async fn shed_9_a_resume_that_fails_is_tried_at_every_tick() {
    let bench = Bench::one(&memory());
    let address = bench.first().address();
    bench.uses(900).await;
    let thief = TcpListener::bind(address).await.unwrap();
    bench.uses(100).await;
    assert_eq!(bench.failing(), 1);
    assert!(!bench.first().is_running(), "READY-4");
    assert_eq!(bench.metrics.memory_shedding_active.get(), 0);
    let failures = &bench.metrics.memory_shedding_transition_failures_total;
    let failures = || failures.with_label_values(&["resume"]).get();
    assert!((1..=3).contains(&failures()), "{}", failures());
    drop(thief);
    bench.uses(100).await;
    assert_eq!(bench.failing(), 0);
    assert!(bench.first().is_running());
    let before = failures();
    bench.uses(100).await;
    assert_eq!(failures(), before);
}

#[tokio::test(start_paused = true)]
async fn shed_1_lsn_15_a_listener_that_serves_management_is_never_closed() {
    let bench = Bench::new(
        &memory(),
        vec![
            listener(&[Service::Agent]),
            listener(&[Service::Management]),
            listener(&[Service::Agent, Service::Management]),
        ],
    );
    bench.uses(999).await;
    let running: Vec<_> = bench
        .listeners
        .iter()
        .map(|(_, l)| l.is_running())
        .collect();
    assert_eq!(running, [false, true, true]);
}

#[tokio::test(start_paused = true)]
async fn shed_10_a_shedder_that_finds_a_closed_listener_opens_it_at_the_low_mark() {
    let listener = listener(&[Service::Agent]);
    listener.1.suspend().await;
    let bench = Bench::new(&memory(), vec![listener]);
    bench.uses(700).await;
    assert!(!bench.first().is_running());
    bench.uses(650).await;
    assert!(bench.first().is_running());
}

#[tokio::test(start_paused = true)]
async fn shed_8_without_a_limit_it_is_inactive_and_without_an_agent_listener_it_is_not() {
    let unknown = Memory {
        limit: None,
        ..memory()
    };
    let bench = Bench::one(&unknown);
    assert_eq!(bench.metrics.memory_shedding_inactive.get(), 1);
    bench.uses(u64::MAX).await;
    assert!(bench.first().is_running());

    let bench = Bench::new(&unknown, vec![listener(&[Service::Management])]);
    assert_eq!(bench.metrics.memory_shedding_inactive.get(), 0);

    let mut disabled = unknown;
    disabled.shedding.enabled = false;
    let bench = Bench::one(&disabled);
    assert_eq!(bench.metrics.memory_shedding_inactive.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn shed_11_the_marks_in_force_are_shown() {
    let bench = Bench::one(&memory());
    assert_eq!(bench.metrics.memory_shedding_high_water_bytes.get(), 750);
    assert_eq!(bench.metrics.memory_shedding_low_water_bytes.get(), 650);
}

#[tokio::test(start_paused = true)]
async fn stop_3_a_listener_that_was_stopped_is_not_opened_again() {
    let bench = Bench::one(&memory());
    bench.uses(900).await;
    bench.first().stop_accepting();
    bench.uses(100).await;
    assert!(!bench.first().is_running());
    assert_eq!(bench.failing(), 0);
}
