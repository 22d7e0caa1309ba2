//! Benchmarks of what runs for every command, answer, heartbeat and notice.
//!
//! `cargo bench -p yuzu-gateway --features bench`

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput};
use prost::Message;
use yuzu_gateway::bench::{Broadcast, Notices, Sessions, wrap};
use yuzu_gateway::config::Config;
use yuzu_gateway::heartbeat::Batcher;
use yuzu_gateway::observe::metrics::Metrics;
use yuzu_gateway::upstream::Upstream;
use yuzu_proto::agent::v1::{AgentInfo, CommandResponse, HeartbeatRequest, RegisterRequest};
use yuzu_proto::peek::{CommandResponsePeek, RegisterPeek};
use yuzu_proto::wire::replace_bytes_field;

const AGENT_ID: &str = "0000002a-0000-4000-8000-000000000000";
const FEW: usize = 1_000;
const MANY: usize = 20_000;
/// Goes through a table in an order that no cache foresees: prime, and no divisor of the counts.
const STRIDE: usize = 7_919;
/// Field `gateway_observed_peer` of a RegisterRequest.
const OBSERVED_PEER: u32 = 6;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    messages(&mut criterion);
    bare(&mut criterion);
    sessions(&mut criterion);
    heartbeats(&mut criterion);
    notices(&mut criterion);
    broadcast(&mut criterion);
    criterion.final_summary();
}

fn answer() -> Vec<u8> {
    let answer = CommandResponse {
        command_id: "command-1".into(),
        status: 1,
        output: "x".repeat(64),
        ..CommandResponse::default()
    };
    answer.encode_to_vec()
}

fn register(padding: usize) -> Vec<u8> {
    let info = AgentInfo {
        agent_id: AGENT_ID.into(),
        hostname: "host.example".into(),
        ..AgentInfo::default()
    };
    let register = RegisterRequest {
        info: Some(info),
        csr_pem: "p".repeat(padding),
        ..RegisterRequest::default()
    };
    register.encode_to_vec()
}

fn messages(criterion: &mut Criterion) {
    let answer = answer();
    criterion.bench_function("peek/answer", |bencher| {
        bencher.iter(|| CommandResponsePeek::peek(black_box(&answer)).is_ok());
    });
    criterion.bench_function("wrap/answer", |bencher| {
        bencher.iter(|| wrap(AGENT_ID, black_box(&answer)));
    });
    for padding in [100, 9_000] {
        let register = register(padding);
        let of = |name| format!("{name}/{}", register.len());
        criterion.bench_function(&of("peek/register"), |bencher| {
            bencher.iter(|| RegisterPeek::peek(black_box(&register)).is_ok());
        });
        criterion.bench_function(&of("edit/register"), |bencher| {
            bencher.iter(|| replace_bytes_field(black_box(&register), OBSERVED_PEER, b"192.0.2.7"));
        });
    }
}

/// The floor of what follows: the library's map, with keys and values of the same size. What it grows
/// by from few to many is what the caches of the machine hold of them.
fn bare(criterion: &mut Criterion) {
    for count in [FEW, MANY] {
        let row =
            |number: usize| Arc::<str>::from(format!("{number:08x}-0000-4000-8000-000000000000"));
        let rows: Vec<Arc<str>> = (0..count).map(row).collect();
        let fresh = || Arc::new([7_u8; 200]);
        let mut map: HashMap<Arc<str>, Arc<[u8; 200]>> =
            rows.iter().map(|row| (Arc::clone(row), fresh())).collect();
        let mut place = 0;
        let mut next = || {
            place = (place + STRIDE) % count;
            &rows[place]
        };
        criterion.bench_function(&format!("bare/find/{count}"), |bencher| {
            bencher.iter(|| map.get(&**next()).map(Arc::clone));
        });
        criterion.bench_function(&format!("bare/replace/{count}"), |bencher| {
            bencher.iter(|| map.insert(Arc::clone(next()), fresh()));
        });
    }
}

fn sessions(criterion: &mut Criterion) {
    for count in [FEW, MANY] {
        let sessions = Sessions::new(count);
        let mut place = 0;
        let mut next = || {
            place = (place + STRIDE) % count;
            place
        };
        criterion.bench_function(&format!("sessions/route/{count}"), |bencher| {
            bencher.iter(|| sessions.route(next()));
        });
        criterion.bench_function(&format!("sessions/admit/{count}"), |bencher| {
            bencher.iter(|| sessions.admit(next()));
        });
        criterion.bench_function(&format!("sessions/reconnect/{count}"), |bencher| {
            bencher.iter(|| sessions.reconnect(next()));
        });
    }
}

fn heartbeats(criterion: &mut Criterion) {
    // The flush task, which has nowhere to send, lives on it.
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    for count in [FEW, MANY] {
        let batcher = batcher(count);
        let beats: Vec<(String, Vec<u8>)> = (0..count).map(heartbeat).collect();
        let mut place = 0;
        criterion.bench_function(&format!("heartbeat/insert/{count}"), |bencher| {
            bencher.iter(|| {
                place = (place + STRIDE) % count;
                let (session_id, heartbeat) = &beats[place];
                batcher.push(session_id, heartbeat);
            });
        });
    }
}

fn batcher(sessions: usize) -> Batcher {
    let mut config = Config::default();
    config.upstream.endpoints.clear();
    config.heartbeat.batch_interval = Duration::from_secs(3_600);
    config.heartbeat.max_sessions = sessions;
    let metrics = Arc::new(Metrics::new("bench").expect("metrics"));
    let upstream = Upstream::start(&config.upstream, Arc::clone(&metrics));
    Batcher::start(upstream, "bench", &config.heartbeat, metrics, |_, _| {})
}

fn heartbeat(session: usize) -> (String, Vec<u8>) {
    let session_id = format!("gw-session-{session:032x}");
    let tag = |n: usize| (format!("status.tag.{n}"), format!("value of {n}"));
    let heartbeat = HeartbeatRequest {
        session_id: session_id.clone(),
        status_tags: (0..5).map(tag).collect(),
        ..HeartbeatRequest::default()
    };
    (session_id, heartbeat.encode_to_vec())
}

fn notices(criterion: &mut Criterion) {
    for count in [FEW, MANY] {
        let mut notices = Notices::new(count);
        let mut place = 0;
        criterion.bench_function(&format!("notices/coalesce/{count}"), |bencher| {
            bencher.iter(|| {
                place = (place + STRIDE) % count;
                notices.coalesce(place)
            });
        });
        criterion.bench_function(&format!("notices/turn/{count}"), |bencher| {
            bencher.iter(|| notices.turn());
        });
    }
}

/// Every target answers once; what waits is taken after every 64 answers.
fn broadcast(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let frame = wrap(AGENT_ID, &answer());
    let mut group = criterion.benchmark_group("broadcast/answers");
    for targets in [FEW, MANY] {
        let targets = u32::try_from(targets).expect("few enough");
        group.throughput(Throughput::Elements(targets.into()));
        group.bench_function(targets.to_string(), |bencher| {
            let whole = |mut broadcast: Broadcast| {
                for target in 0..targets {
                    assert!(broadcast.answer(target, &frame));
                    if target % 64 == 63 {
                        black_box(broadcast.take());
                    }
                }
                broadcast
            };
            bencher.iter_batched(|| Broadcast::new(targets), whole, BatchSize::LargeInput);
        });
    }
    group.finish();
}
