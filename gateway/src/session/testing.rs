//! Sessions and callers for tests.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use super::arriving::Arriving;
use super::events::Events;
use super::kept::Kept;
use super::live::Session;
use super::owner::OwnerContext;
use super::recovery::Recovery;
use super::registry::Registry;
use super::replies::{Reply, ReplySink, Waiter};
use super::roster::Roster;
use super::supervisor::Supervisor;
use super::table::{Registration, TableLimits};
use crate::config::{self, Config};
use crate::edge::ConnectionKey;
use crate::notify::Notifier;
use crate::observe::metrics::Metrics;
use crate::supervise::NodeSupervisor;
use crate::upstream::Upstream;

pub(crate) fn registration(agent_id: &str) -> Registration {
    Registration {
        agent_id: Arc::from(agent_id),
        hostname: Arc::from("host"),
        plugins: Arc::from([]),
        request: Kept::from(&b"request"[..]),
        peer: None,
    }
}

pub(crate) fn registry() -> Registry {
    Registry::new(TableLimits {
        max_per_connection: 8,
        grace: Duration::from_secs(15),
    })
}

/// Registers and subscribes `agent_id` with `session_id` on `connection`.
pub(crate) fn connect(
    registry: &Registry,
    agent_id: &str,
    session_id: &str,
    connection: ConnectionKey,
) -> Arc<Session> {
    let slot = registry.reserve(connection, &Arc::from(agent_id)).unwrap();
    slot.commit(&Arc::from(session_id), registration(agent_id))
        .unwrap();
    registry
        .subscribe(session_id, connection, format!("home-{session_id}").into())
        .unwrap()
}

/// A caller that writes down what it gets.
#[derive(Default)]
pub(crate) struct Caller {
    /// No room for answers.
    pub(crate) full: AtomicBool,
    /// The caller has left.
    pub(crate) over: AtomicBool,
    pub(crate) replies: Mutex<Vec<(u32, Bytes)>>,
    pub(crate) lost: Mutex<Vec<u32>>,
}

impl Caller {
    pub(crate) fn waiter(self: &Arc<Self>, target: u32) -> Waiter {
        Waiter {
            sink: Arc::clone(self) as Arc<dyn ReplySink>,
            target,
        }
    }
}

impl ReplySink for Caller {
    fn give(&self, target: u32, reply: Reply) -> Result<(), Reply> {
        if self.full.load(Ordering::Relaxed) {
            return Err(reply);
        }
        self.replies.lock().unwrap().push((target, reply.frame));
        Ok(())
    }

    fn reply_when_room<'a>(
        &'a self,
        _: u32,
        _: &'a Reply,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(std::future::pending())
    }

    fn lost(&self, target: u32, _: &Arc<str>) {
        self.lost.lock().unwrap().push(target);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// What owners of a node without a server work with: its notices stay held.
pub(crate) fn context() -> Arc<OwnerContext> {
    let config = Config::default();
    let metrics = Arc::new(Metrics::new(&config.node.name).unwrap());
    let alone = config::Upstream {
        endpoints: Vec::new(),
        ..config.upstream
    };
    let upstream = Upstream::start(&alone, Arc::clone(&metrics));
    let notifier = Notifier::start(
        upstream.clone(),
        &config.node,
        &config.notify,
        Arc::clone(&metrics),
        |_| true,
    );
    Arc::new(OwnerContext {
        registry: Arc::new(registry()),
        roster: Roster::default(),
        events: Arc::new(Events::new()),
        notifier,
        upstream,
        arriving: Arriving::new(&metrics),
        metrics,
        supervisor: Supervisor::new(&config.session, NodeSupervisor::new()),
        recovery: Recovery::new(&alone),
    })
}
