//! Sessions and callers for tests.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use super::live::Session;
use super::registry::Registry;
use super::replies::{Reply, ReplySink, Waiter};
use super::table::{Registration, TableLimits};
use crate::edge::ConnectionKey;

pub(crate) fn registration(agent_id: &str) -> Registration {
    Registration {
        agent_id: Arc::from(agent_id),
        hostname: Arc::from("host"),
        plugins: Arc::from([]),
        request: Bytes::from_static(b"request"),
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
    fn try_reply(&self, target: u32, reply: &Reply) -> bool {
        let room = !self.full.load(Ordering::Relaxed);
        if room {
            let mut replies = self.replies.lock().unwrap();
            replies.push((target, reply.frame.clone()));
        }
        room
    }

    fn reply_when_room<'a>(
        &'a self,
        _: u32,
        _: &'a Reply,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(std::future::pending())
    }

    fn lost(&self, target: u32) {
        self.lost.lock().unwrap().push(target);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}
