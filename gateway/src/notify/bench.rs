//! The store of notices, filled, for benchmarks.

use super::notice::{Event, Notice};
use super::store::{Offered, Store};

/// Held notices of `count` sessions.
pub struct Notices {
    store: Store,
    count: usize,
}

impl Notices {
    /// One CONNECTED of each session.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let mut store = Store::new(count * 2);
        for session in 0..count {
            store.offer(notice(session, Event::Connected));
        }
        Self { store, count }
    }

    /// A newer notice of a session that has one held. Whether it took that one's place.
    #[must_use]
    pub fn coalesce(&mut self, session: usize) -> bool {
        let newer = notice(session % self.count, Event::Disconnected);
        self.store.offer(newer) == Offered::Coalesced
    }

    /// The oldest is sent and recorded, and comes again at the end.
    #[must_use]
    pub fn turn(&mut self) -> bool {
        let Some(oldest) = self.store.take() else {
            return false;
        };
        self.store.land(&oldest.key());
        self.store.offer(oldest) == Offered::Held
    }
}

fn notice(session: usize, event: Event) -> Notice {
    Notice {
        agent_id: format!("{session:08x}-0000-4000-8000-000000000000").into(),
        session_id: format!("gw-session-{session:032x}").into(),
        stream_home_id: format!("{session:032x}").into(),
        event,
        peer: Some([192, 0, 2, 7].into()),
    }
}
