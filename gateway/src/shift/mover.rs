//! Asking agents to move, and ending the streams of those that were (SHIFT-1).
//!
//! Responsible for who is asked: all sessions in turn, by agent id, from round to round, each once. A
//! connection moves as one, whatever it carries. Must never decide how many.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::session::{Control, Registry, Session};

/// Sessions taken from the table at once.
const PAGE: usize = 500;

/// Those who are asked.
#[derive(Debug)]
pub(super) struct Mover {
    registry: Arc<Registry>,
    /// The agent that was looked at last.
    behind: Arc<str>,
    /// Sessions that end at these times, each as long as it is held at the most.
    leaving: VecDeque<(Instant, Arc<Session>)>,
}

/// Who was asked in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Asked {
    pub(super) connections: usize,
    pub(super) sessions: usize,
}

impl Mover {
    pub(super) fn new(registry: &Arc<Registry>) -> Self {
        Self {
            registry: Arc::clone(registry),
            behind: "".into(),
            leaving: VecDeque::new(),
        }
    }

    /// Sessions that were asked and have not been ended from here.
    pub(super) fn leaving(&self) -> usize {
        self.leaving.len()
    }

    /// Asks `most` agents to leave within `grace`, and those that share the last one's connection;
    /// fewer when there are no more.
    pub(super) fn ask(&mut self, now: Instant, grace: Duration, most: usize) -> Asked {
        let mut asked = Asked::default();
        let mut has_turned = false;
        while asked.sessions < most {
            let wanted = (most - asked.sessions).min(PAGE);
            let (page, more) = self.registry.page(&self.behind, wanted);
            for session in page {
                self.behind = Arc::clone(session.agent_id());
                let sessions = self.ask_connection(now + grace, &session);
                asked.connections += usize::from(sessions > 0);
                asked.sessions += sessions;
                if asked.sessions >= most {
                    break;
                }
            }
            if !more && asked.sessions < most {
                if std::mem::replace(&mut has_turned, true) {
                    break;
                }
                self.behind = "".into();
            }
        }
        asked
    }

    /// How many sessions that concerns.
    fn ask_connection(&mut self, until: Instant, session: &Arc<Session>) -> usize {
        let mut sessions = self.registry.on_connection(session.connection);
        sessions.retain(|session| session.mark_leaving());
        if let Some(first) = sessions.first() {
            first.ask(Control::LetGo);
        }
        let count = sessions.len();
        let leaving = sessions.into_iter().map(|session| (until, session));
        self.leaving.extend(leaving);
        count
    }

    /// Ends the streams of those whose time is over.
    pub(super) fn end_due(&mut self, now: Instant) {
        let is_due = |(until, _): &mut (Instant, Arc<Session>)| *until <= now;
        while let Some((_, session)) = self.leaving.pop_front_if(is_due) {
            session.ask(Control::End);
        }
        if self.leaving.len() < self.leaving.capacity() / 4 {
            self.leaving.shrink_to_fit();
        }
    }

    /// When the next one's time is over.
    pub(super) fn next_time(&self) -> Option<Instant> {
        self.leaving.front().map(|(until, _)| *until)
    }
}

#[cfg(test)]
mod tests;
