//! Telling the server under which gateway's name the agents of this private node are now (VIS-5).
//!
//! Responsible for putting a set of public nodes in force, and for a walk over the sessions, page by
//! page, which has exactly those announced again whose gateway changed. Their owners announce them,
//! so that no CONNECTED overtakes the DISCONNECTED of its session. Must never hold the session table
//! for longer than a page, nor run ahead of the notices.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::gateways::{Names, PublicNodes, Renaming};
use crate::notify::Notifier;
use crate::session::Registry;

/// Sessions looked at in one step.
const PAGE: usize = 500;
/// Between two steps: the owners that were asked have their turn, and others theirs.
const TURN: Duration = Duration::from_millis(10);
/// The next step waits until fewer notices are held.
const NOTICES_AHEAD: usize = 1_000;

/// The walks of one private node.
pub(super) struct Announcer {
    names: Names,
    renaming: Mutex<Renaming>,
    wanted: watch::Receiver<PublicNodes>,
    registry: Arc<Registry>,
    notifier: Notifier,
}

impl Announcer {
    pub(super) fn new(
        names: &Names,
        wanted: watch::Receiver<PublicNodes>,
        registry: &Arc<Registry>,
        notifier: &Notifier,
    ) -> Arc<Self> {
        Arc::new(Self {
            names: names.clone(),
            renaming: Mutex::default(),
            wanted,
            registry: Arc::clone(registry),
            notifier: notifier.clone(),
        })
    }

    fn renaming(&self) -> MutexGuard<'_, Renaming> {
        self.renaming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the sets; never returns. Started again, it begins the walk that was under way anew.
    pub(super) async fn run(self: Arc<Self>) {
        let mut wanted = self.wanted.clone();
        wanted.mark_changed();
        let mut walk = Walk::default();
        loop {
            if self.follow(&mut wanted) {
                walk = Walk::default();
            }
            if !self.renaming().is_due() {
                if wanted.changed().await.is_err() {
                    // The node is gone.
                    return;
                }
                wanted.mark_changed();
                continue;
            }
            if self.step(&mut walk) {
                self.renaming().walked();
                continue;
            }
            tokio::time::sleep(TURN).await;
            let may_change = self.renaming().has_room();
            tokio::select! {
                () = self.notifier.fewer_than(NOTICES_AHEAD) => {}
                Ok(()) = wanted.changed(), if may_change => wanted.mark_changed(),
            }
        }
    }

    /// Puts the latest set in force, if it may be. Whether a walk has to begin.
    fn follow(&self, wanted: &mut watch::Receiver<PublicNodes>) -> bool {
        let mut renaming = self.renaming();
        if !renaming.has_room() || !wanted.has_changed().unwrap_or(false) {
            return false;
        }
        let nodes = wanted.borrow_and_update().clone();
        let begins = renaming.change(nodes.clone());
        // Before the walk: a session that comes behind it is told of under this set.
        self.names.put_in_force(nodes);
        begins
    }

    /// Looks at one page of sessions. Whether it was the last.
    fn step(&self, walk: &mut Walk) -> bool {
        let (page, more) = self.registry.page(&walk.behind, PAGE);
        let renaming = self.renaming();
        for session in &page {
            if renaming.concerns(session.agent_id()) {
                session.ask_to_announce();
            }
        }
        if let Some(last) = page.last() {
            walk.behind = Arc::clone(last.agent_id());
        }
        !more
    }
}

/// How far a walk has come.
struct Walk {
    /// The last agent that was looked at.
    behind: Arc<str>,
}

impl Default for Walk {
    fn default() -> Self {
        Self { behind: "".into() }
    }
}

#[cfg(test)]
mod tests;
