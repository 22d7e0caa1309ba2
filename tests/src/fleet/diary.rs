//! What each agent of a fleet got and answered, and its newest session.
//!
//! Responsible for telling a command that came twice from one that came once, over all streams of an
//! agent. Grows with every command: a fleet keeps one when it is asked to.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// One page for each agent, by its index.
#[derive(Debug, Default)]
pub struct Diary {
    pages: Box<[Mutex<Page>]>,
}

#[derive(Debug, Default)]
struct Page {
    session: Option<Opened>,
    commands: HashMap<Box<str>, Fate>,
}

/// A Subscribe stream that was opened.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The session that the stream carries.
    pub session_id: String,
    /// The gateway that it was opened at.
    pub gateway: SocketAddr,
    /// When the answer's headers came.
    pub at: Instant,
}

/// What became of a command at an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fate {
    /// Times that it came.
    pub taken: u32,
    /// Terminal answers handed to a stream.
    pub answered: u32,
}

impl Diary {
    /// Nothing is kept of agents beyond these.
    pub(super) fn of(agents: usize) -> Self {
        Self {
            pages: (0..agents).map(|_| Mutex::default()).collect(),
        }
    }

    fn page(&self, index: usize) -> Option<MutexGuard<'_, Page>> {
        let page = self.pages.get(index)?;
        Some(page.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn opened(&self, index: usize, gateway: SocketAddr, session_id: &str) {
        if let Some(mut page) = self.page(index) {
            page.session = Some(Opened {
                session_id: session_id.to_owned(),
                gateway,
                at: Instant::now(),
            });
        }
    }

    pub(super) fn taken(&self, index: usize, command_id: &str) {
        self.note(index, command_id, |fate| fate.taken += 1);
    }

    pub(super) fn answered(&self, index: usize, command_id: &str) {
        self.note(index, command_id, |fate| fate.answered += 1);
    }

    fn note(&self, index: usize, command_id: &str, change: impl FnOnce(&mut Fate)) {
        if let Some(mut page) = self.page(index) {
            change(page.commands.entry(command_id.into()).or_default());
        }
    }

    /// The newest stream of an agent; `None`: it never had one.
    pub fn session(&self, index: usize) -> Option<Opened> {
        self.page(index)?.session.clone()
    }

    /// What became of a command at an agent.
    pub fn fate(&self, index: usize, command_id: &str) -> Fate {
        let page = self.page(index);
        let fate = page.and_then(|page| page.commands.get(command_id).copied());
        fate.unwrap_or_default()
    }

    /// Commands that came more than once to an agent, each agent's on its own.
    pub fn repeated(&self) -> u64 {
        let twice = |index| {
            let page = self.page(index);
            page.map_or(0, |page| {
                let fates = page.commands.values();
                fates.filter(|fate| fate.taken > 1).count() as u64
            })
        };
        (0..self.pages.len()).map(twice).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(number: u16) -> SocketAddr {
        ([127, 0, 0, 1], number).into()
    }

    #[test]
    fn a_command_that_comes_again_on_another_stream_is_repeated() {
        let diary = Diary::of(2);
        diary.opened(0, gateway(1), "first");
        diary.taken(0, "c");
        diary.opened(0, gateway(2), "second");
        diary.taken(1, "c");
        assert_eq!(diary.repeated(), 0);
        diary.taken(0, "c");
        diary.answered(0, "c");
        assert_eq!(diary.repeated(), 1);
        let (taken, answered) = (2, 1);
        assert_eq!(diary.fate(0, "c"), Fate { taken, answered });
        assert_eq!(diary.fate(1, "other"), Fate::default());
        let newest = diary.session(0).unwrap();
        assert_eq!(
            (&*newest.session_id, newest.gateway),
            ("second", gateway(2))
        );
        assert!(diary.session(1).is_none());
    }

    #[test]
    fn of_agents_without_a_page_nothing_is_kept() {
        let diary = Diary::default();
        diary.opened(0, gateway(1), "s");
        diary.taken(0, "c");
        assert_eq!(diary.fate(0, "c"), Fate::default());
        assert!(diary.session(0).is_none());
    }
}
