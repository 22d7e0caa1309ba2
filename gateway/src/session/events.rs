//! Sessions coming and going, for WatchEvents.
//!
//! Responsible for a bounded ring that every watcher reads at its own pace (MGMT-4). Must never
//! wait for a watcher or grow with one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::broadcast;

/// Events a watcher may fall behind.
const RING: usize = 16_384;

/// What happened to a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// The agent connected with this session.
    Connected(Arc<str>),
    /// The agent's session ended.
    Disconnected,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// Whose session.
    pub(crate) agent_id: Arc<str>,
    /// Wall clock of the gateway, Unix milliseconds.
    pub(crate) at_ms: i64,
    /// What happened.
    pub(crate) change: Change,
}

/// The ring.
#[derive(Debug)]
pub(crate) struct Events(Mutex<Option<broadcast::Sender<Event>>>);

/// Reads the ring from the moment it was made.
#[derive(Debug)]
pub(crate) struct Watcher(broadcast::Receiver<Event>);

/// The watcher fell behind by this many events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MissedEvents(pub(crate) u64);

impl Events {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Some(broadcast::channel(RING).0)))
    }

    /// Publishes an event to whoever watches.
    pub(crate) fn publish(&self, event: Event) {
        if let Some(ring) = &*self.ring() {
            // An error says that nobody watches.
            drop(ring.send(event));
        }
    }

    /// A watcher of everything from now on.
    pub(crate) fn watch(&self) -> Watcher {
        Watcher(match &*self.ring() {
            Some(ring) => ring.subscribe(),
            // Ends at once.
            None => broadcast::channel(1).1,
        })
    }

    /// The node stops: every watcher ends when it has read what there is.
    pub(crate) fn close(&self) {
        self.ring().take();
    }

    fn ring(&self) -> MutexGuard<'_, Option<broadcast::Sender<Event>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    /// The next event; `Ok(None)` when the node stops.
    ///
    /// # Errors
    /// When events were overwritten before this watcher read them.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, MissedEvents> {
        match self.0.recv().await {
            Ok(event) => Ok(Some(event)),
            Err(broadcast::error::RecvError::Closed) => Ok(None),
            Err(broadcast::error::RecvError::Lagged(missed)) => Err(MissedEvents(missed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(n: usize) -> Event {
        Event {
            agent_id: Arc::from(n.to_string()),
            at_ms: n as i64,
            change: Change::Disconnected,
        }
    }

    #[tokio::test]
    async fn mgmt_4_a_watcher_sees_what_happens_from_now_on_in_order() {
        let events = Events::new();
        events.publish(event(0));
        let mut watcher = events.watch();
        events.publish(event(1));
        events.publish(event(2));
        for n in [1, 2] {
            assert_eq!(watcher.next().await, Ok(Some(event(n))));
        }
        drop(events);
        assert_eq!(watcher.next().await, Ok(None));
    }

    #[tokio::test]
    async fn mgmt_4_a_watcher_that_falls_behind_learns_how_many_it_missed() {
        let events = Events::new();
        let (mut slow, mut quick) = (events.watch(), events.watch());
        for n in 0..RING + 3 {
            events.publish(event(n));
            assert_eq!(quick.next().await, Ok(Some(event(n))));
        }
        assert_eq!(slow.next().await, Err(MissedEvents(3)));
    }
}
