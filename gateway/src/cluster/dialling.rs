//! Dialling peers: whom, and where.
//!
//! Responsible for one attempt at a time for each. Must never decide who is a member.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::Parts;
use super::link::Mesh;
use super::link::dial::Target;
use super::members::labels;

impl Parts {
    /// Dials whoever is to be dialled.
    pub(super) fn dial(self: &Arc<Self>, links: &mut JoinSet<bool>) {
        let targets: Vec<_> = {
            let view = self.view();
            let lives = view.reachable();
            // One that is stopping forwards until it has stopped (FWD-10).
            let lives = lives.map(|member| (&member.name, member.incarnation));
            let wanted = self.mesh.due(lives);
            let target = |(name, incarnation)| {
                let mut lives = view.reachable();
                let found = lives.find(|m| m.name == name && m.incarnation == incarnation);
                Target {
                    address: found.and_then(|member| labels::endpoint(&member.address())),
                    is_stopping: found.is_some_and(|member| member.labels.draining),
                    name,
                    incarnation,
                }
            };
            wanted.into_iter().map(target).collect()
        };
        for target in targets {
            let parts = Arc::clone(self);
            links.spawn(async move {
                let _dialled = Dialled(&parts.mesh, &target.name);
                parts.dialler.link(&target).await
            });
        }
    }
}

/// Ends an attempt, however it ends.
struct Dialled<'a>(&'a Mesh, &'a str);

impl Drop for Dialled<'_> {
    fn drop(&mut self) {
        self.0.dialled(self.1);
    }
}
