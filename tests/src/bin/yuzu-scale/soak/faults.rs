//! What goes wrong at the server, at random.

use crate::server::Server;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::Code;
use yuzu_server_stub::{Action, Fault, Rpc};
use yuzu_tests::random::Random;

const PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(20));
const LENGTH: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
const DELAY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
const CALLS: [Rpc; 3] = [
    Rpc::ProxyRegister,
    Rpc::NotifyStreamStatus,
    Rpc::BatchHeartbeat,
];

/// Faults so far, by kind.
#[derive(Debug, Default)]
pub(super) struct Count {
    pub(super) delays: AtomicU64,
    pub(super) refusals: AtomicU64,
    pub(super) cuts: AtomicU64,
}

impl Count {
    pub(super) fn all(&self) -> u64 {
        [&self.delays, &self.refusals, &self.cuts]
            .map(|kind| kind.load(Relaxed))
            .iter()
            .sum()
    }
}

/// One fault after the other until `over`; none is left then.
pub(super) async fn happen(
    server: Arc<Server>,
    mut random: Random,
    mut over: watch::Receiver<bool>,
    count: Arc<Count>,
) -> Result<(), String> {
    loop {
        let pause = random.between(PAUSE.0, PAUSE.1);
        if timeout(pause, over.wait_for(|over| *over)).await.is_ok() {
            return Ok(());
        }
        let Some(fault) = next(&mut random, &count) else {
            server.drop_connections();
            continue;
        };
        let id = server.fault(fault).map_err(|e| e.to_string())?;
        sleep(random.between(LENGTH.0, LENGTH.1)).await;
        // It may be gone by itself.
        server.remove_fault(id);
    }
}

/// The next fault; `None` cuts every connection to the server.
fn next(random: &mut Random, count: &Count) -> Option<Fault> {
    let rpc = CALLS[random.below(CALLS.len())];
    let (kind, fault) = match random.below(6) {
        0 | 1 => {
            let delay = random.between(DELAY.0, DELAY.1);
            (&count.delays, Some(Fault::new(rpc, Action::Delay(delay))))
        }
        2 => {
            let unavailable = Action::Status(Code::Unavailable, "soak".into());
            (&count.refusals, Some(Fault::new(rpc, unavailable).every(2)))
        }
        3 => {
            // A Register that is refused in the message sends its agent away for good; a refused
            // batch of heartbeats has every session of it registered once more.
            let refused = match rpc {
                Rpc::BatchHeartbeat => Fault::new(rpc, Action::Refuse).times(1),
                _ => Fault::new(Rpc::NotifyStreamStatus, Action::Refuse),
            };
            (&count.refusals, Some(refused))
        }
        4 => {
            let cut = Fault::new(rpc, Action::DropConnection);
            (&count.cuts, Some(cut.times(1)))
        }
        _ => (&count.cuts, None),
    };
    kind.fetch_add(1, Relaxed);
    fault
}
