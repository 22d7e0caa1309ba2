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
            // One that is stopping would only refuse.
            let staying = view.reachable().filter(|member| !member.labels.draining);
            let staying = staying.map(|member| (&member.name, member.incarnation));
            let wanted = self.mesh.due(staying);
            let address = |name: &Arc<str>, incarnation: u64| {
                let mut live = view.reachable();
                let found = live.find(|m| m.name == *name && m.incarnation == incarnation);
                found.and_then(|member| labels::endpoint(&member.address()))
            };
            let target = |(name, incarnation)| Target {
                address: address(&name, incarnation),
                name,
                incarnation,
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
