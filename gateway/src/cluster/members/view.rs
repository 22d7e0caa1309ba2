//! Who is in the cluster, as this node sees it (MESH-5, MESH-6).
//!
//! Responsible for one row per name, whatever lives of it the engine believes in, and for what has
//! changed. Pure. Must never ask the engine.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::labels::Labels;
use crate::cluster::link::table::MAX_PEERS;

/// A node that the engine says is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: Arc<str>,
    pub(crate) incarnation: u64,
    /// Where it gossips; nodes listen on the same port for links.
    pub(crate) gossip: SocketAddr,
    pub(crate) labels: Labels,
}

impl Member {
    /// Where to dial it.
    pub(crate) fn address(&self) -> String {
        let told = self.labels.peer.clone();
        told.unwrap_or_else(|| self.gossip.to_string())
    }
}

/// What became of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Up(Arc<str>),
    /// Gone, with the life that is gone.
    Down(Arc<str>, u64),
}

/// All live nodes but this one.
#[derive(Debug)]
pub(crate) struct View {
    own: (Arc<str>, u64),
    members: BTreeMap<Arc<str>, Member>,
    /// Other lives of this node's name.
    namesakes: Vec<Member>,
}

impl View {
    /// `own` is this node's name and incarnation.
    pub(crate) fn new(own: (Arc<str>, u64)) -> Self {
        Self {
            own,
            members: BTreeMap::new(),
            namesakes: Vec::new(),
        }
    }

    /// Takes what the engine believes in now. Of two lives of one name the linked one counts: it
    /// has proven that it lives; without a link the later one does.
    pub(crate) fn update(
        &mut self,
        live: impl Iterator<Item = Member>,
        linked: impl Fn(&str) -> Option<u64>,
    ) -> Vec<Change> {
        let mut next: BTreeMap<Arc<str>, Member> = BTreeMap::new();
        self.namesakes.clear();
        for member in live {
            if member.name == self.own.0 {
                self.namesakes.push(member);
                continue;
            }
            let rank = |member: &Member| {
                let is_linked = linked(&member.name) == Some(member.incarnation);
                (is_linked, member.incarnation)
            };
            match next.get(&member.name) {
                Some(other) if rank(other) >= rank(&member) => {}
                _ => drop(next.insert(Arc::clone(&member.name), member)),
            }
        }
        self.namesakes.truncate(MAX_PEERS);
        self.bound(&mut next);
        let changes = changes(&self.members, &next);
        self.members = next;
        changes
    }

    /// Whoever is here stays; newcomers find room or not.
    fn bound(&self, next: &mut BTreeMap<Arc<str>, Member>) {
        let mut over = next.len().saturating_sub(MAX_PEERS);
        next.retain(|name, _| {
            let goes = over > 0 && !self.members.contains_key(name);
            over -= usize::from(goes);
            !goes
        });
    }

    /// By name.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// Members and namesakes of this node: whom a link may be made to.
    pub(crate) fn reachable(&self) -> impl Iterator<Item = &Member> {
        self.members.values().chain(&self.namesakes)
    }

    /// Nobody is there.
    pub(crate) fn clear(&mut self) -> Vec<Change> {
        self.update(std::iter::empty(), |_| None)
    }
}

fn changes(before: &BTreeMap<Arc<str>, Member>, now: &BTreeMap<Arc<str>, Member>) -> Vec<Change> {
    let life = |of: &BTreeMap<Arc<str>, Member>, name: &str| of.get(name).map(|m| m.incarnation);
    let gone = before
        .values()
        .filter(|member| life(now, &member.name) != Some(member.incarnation));
    let come = now
        .values()
        .filter(|member| life(before, &member.name) != Some(member.incarnation));
    let gone = gone.map(|member| Change::Down(Arc::clone(&member.name), member.incarnation));
    gone.chain(come.map(|member| Change::Up(Arc::clone(&member.name))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, incarnation: u64) -> Member {
        Member {
            name: name.into(),
            incarnation,
            gossip: ([192, 0, 2, 1], 9100).into(),
            labels: Labels::default(),
        }
    }

    fn view() -> View {
        View::new(("m".into(), 5))
    }

    fn listed(view: &View) -> Vec<(String, u64)> {
        let rows = view.members().map(|m| (m.name.to_string(), m.incarnation));
        rows.collect()
    }

    fn up(name: &str) -> Change {
        Change::Up(name.into())
    }

    #[test]
    fn mesh_5_nodes_come_and_go() {
        let mut view = view();
        let live = || [member("b", 1), member("a", 1)].into_iter();
        assert_eq!(view.update(live(), |_| None), [up("a"), up("b")]);
        assert_eq!(view.update(live(), |_| None), []);
        let changes = view.update(live().take(1), |_| None);
        assert_eq!(changes, [Change::Down("a".into(), 1)]);
        assert_eq!(view.clear(), [Change::Down("b".into(), 1)]);
        assert_eq!(listed(&view), []);
    }

    #[test]
    fn mesh_5_a_restarted_node_takes_the_place_of_its_old_life() {
        let mut view = view();
        view.update([member("a", 1)].into_iter(), |_| None);
        // The engine still believes in the old one.
        let changes = view.update([member("a", 2), member("a", 1)].into_iter(), |_| None);
        assert_eq!(changes, [Change::Down("a".into(), 1), up("a")]);
        assert_eq!(listed(&view), [("a".into(), 2)]);
    }

    #[test]
    fn mesh_6_a_namesake_does_not_push_out_the_node_that_is_linked() {
        let mut view = view();
        let both = || [member("a", 1), member("a", 2)].into_iter();
        assert_eq!(view.update(both(), |_| Some(1)), [up("a")]);
        assert_eq!(listed(&view), [("a".into(), 1)]);
    }

    #[test]
    fn mesh_6_a_namesake_of_this_node_is_no_member_and_can_be_reached() {
        let mut view = view();
        let changes = view.update([member("m", 4), member("a", 1)].into_iter(), |_| None);
        assert_eq!(changes, [up("a")]);
        assert_eq!(listed(&view), [("a".into(), 1)]);
        let reachable: Vec<_> = view.reachable().map(|m| &*m.name).collect();
        assert_eq!(reachable, ["a", "m"]);
    }

    #[test]
    fn mesh_1_members_are_bounded_and_whoever_is_here_stays() {
        let mut view = view();
        let here = (0..MAX_PEERS).map(|n| member(&format!("z-{n}"), 1));
        view.update(here.clone(), |_| None);
        let more = [member("a", 1), member("b", 1)].into_iter().chain(here);
        assert_eq!(view.update(more, |_| None), []);
        assert_eq!(view.members().count(), MAX_PEERS);
    }

    #[test]
    fn mesh_3_a_node_is_dialled_at_its_peer_address() {
        let mut told = member("a", 1);
        assert_eq!(told.address(), "192.0.2.1:9100");
        told.labels.peer = Some("gw-a.internal:9200".into());
        assert_eq!(told.address(), "gw-a.internal:9200");
    }
}
