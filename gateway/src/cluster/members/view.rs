//! Who is in the cluster, as this node sees it (MESH-5, MESH-6).
//!
//! Responsible for one row per name, whatever lives of it the engine believes in, and for what has
//! changed. A node is a member when the engine believes in it and it has a proven link: one whose
//! certificate is foreign may gossip and is never listed (MESH-2). While this node has just stood
//! still, whoever was there stays. Pure. Must never ask the engine.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::labels::Labels;
use super::patience::Patience;
use crate::cluster::link::table::MAX_PEERS;

/// A node that the engine says is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: Arc<str>,
    pub(crate) incarnation: u64,
    /// Of the engine: it is started again without a new life of its node.
    pub(crate) generation: u64,
    /// Where it gossips; nodes listen on the same port for links.
    pub(crate) gossip: SocketAddr,
    pub(crate) labels: Labels,
}

impl Member {
    fn is_in(&self, linked: &HashMap<Arc<str>, u64>) -> bool {
        linked.get(&self.name) == Some(&self.incarnation)
    }

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

/// All other nodes.
#[derive(Debug)]
pub(crate) struct View {
    own: (Arc<str>, u64),
    /// In which the engine believes. They know the secret, and nothing else is proven of them.
    heard: BTreeMap<Arc<str>, Member>,
    /// Other lives of this node's name.
    namesakes: Vec<Member>,
    /// Those of `heard` that are linked: the nodes of the cluster.
    members: BTreeMap<Arc<str>, u64>,
    patience: Patience,
    /// Those of `heard` that the engine has given up, and since when they stay by patience alone.
    kept: HashMap<Arc<str>, Instant>,
}

impl View {
    /// `own` is this node's name and incarnation; who is silent for `dead_after` is dead.
    pub(crate) fn new(own: (Arc<str>, u64), dead_after: Duration) -> Self {
        Self {
            own,
            heard: BTreeMap::new(),
            namesakes: Vec::new(),
            members: BTreeMap::new(),
            patience: Patience::new(dead_after),
            kept: HashMap::new(),
        }
    }

    /// See [`Patience::beat`].
    pub(crate) fn beat(&mut self, now: Instant, wall: Duration) -> Option<Duration> {
        self.patience.beat(now, wall)
    }

    /// Whether nobody is taken for dead, since this node has just stood still. It ends with the first
    /// [`Self::hear`] after its term.
    pub(crate) fn is_patient(&self) -> bool {
        self.patience.is_on()
    }

    /// Takes what the engine believes in at `now`. Of two lives of one name the linked one counts: it
    /// has proven that it lives; without a link the later one does. Whether somebody is new.
    pub(crate) fn hear(
        &mut self,
        now: Instant,
        live: impl Iterator<Item = Member>,
        linked: &HashMap<Arc<str>, u64>,
    ) -> bool {
        let mut next: BTreeMap<Arc<str>, Member> = BTreeMap::new();
        let namesakes = self.namesakes.len();
        self.namesakes.clear();
        for member in live {
            if member.name == self.own.0 {
                self.namesakes.push(member);
                continue;
            }
            let rank = |member: &Member| {
                let life = (member.incarnation, member.generation);
                (member.is_in(linked), life)
            };
            match next.get(&member.name) {
                Some(other) if rank(other) >= rank(&member) => {}
                _ => drop(next.insert(Arc::clone(&member.name), member)),
            }
        }
        self.namesakes.truncate(MAX_PEERS);
        self.patience.expire(now);
        self.keep(now, &mut next);
        self.bound(&mut next);
        let life = |name: &str| self.heard.get(name).map(|member| member.incarnation);
        let mut found = next.values();
        let is_new = found.any(|member| life(&member.name) != Some(member.incarnation));
        self.heard = next;
        is_new || self.namesakes.len() > namesakes
    }

    /// While this node has just stood still, those that the engine has given up stay as well.
    fn keep(&mut self, now: Instant, next: &mut BTreeMap<Arc<str>, Member>) {
        let before = std::mem::take(&mut self.kept);
        if !self.patience.is_on() {
            return;
        }
        for (name, member) in &self.heard {
            let since = before.get(name).copied().unwrap_or(now);
            let kept_for = now.saturating_duration_since(since);
            if !next.contains_key(name) && kept_for < self.patience.longest() {
                self.kept.insert(Arc::clone(name), since);
                next.insert(Arc::clone(name), member.clone());
            }
        }
    }

    /// Whoever is here stays; newcomers find room or not.
    fn bound(&self, next: &mut BTreeMap<Arc<str>, Member>) {
        let mut over = next.len().saturating_sub(MAX_PEERS);
        next.retain(|name, _| {
            let goes = over > 0 && !self.heard.contains_key(name);
            over -= usize::from(goes);
            !goes
        });
    }

    /// Takes which nodes are linked now.
    pub(crate) fn settle(&mut self, linked: &HashMap<Arc<str>, u64>) -> Vec<Change> {
        let members = self.heard.values().filter(|member| member.is_in(linked));
        let mut now: BTreeMap<_, _> = members
            .map(|member| (Arc::clone(&member.name), member.incarnation))
            .collect();
        if self.patience.is_on() {
            let stays = |(name, life): &(&Arc<str>, &u64)| self.hears(name, **life);
            for (name, life) in self.members.iter().filter(stays) {
                now.entry(Arc::clone(name)).or_insert(*life);
            }
        }
        let before = std::mem::replace(&mut self.members, now);
        let gone = before
            .iter()
            .filter(|(name, life)| self.members.get(*name) != Some(life));
        let come = self
            .members
            .iter()
            .filter(|(name, life)| before.get(*name) != Some(life));
        let gone = gone.map(|(name, life)| Change::Down(Arc::clone(name), *life));
        gone.chain(come.map(|(name, _)| Change::Up(Arc::clone(name))))
            .collect()
    }

    /// Whether the engine believes in this life of a node.
    pub(crate) fn hears(&self, name: &str, incarnation: u64) -> bool {
        let heard = self.heard.get(name);
        heard.is_some_and(|member| member.incarnation == incarnation)
    }

    /// How many others the engine believes in.
    pub(crate) fn heard(&self) -> usize {
        self.heard.len()
    }

    /// Nobody is there.
    pub(crate) fn clear(&mut self) -> Vec<Change> {
        self.heard.clear();
        self.namesakes.clear();
        self.kept.clear();
        self.patience.rest();
        self.settle(&HashMap::new())
    }

    /// The nodes of the cluster, by name.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.keys().filter_map(|name| self.heard.get(name))
    }

    /// Whom a link may be made to: everybody that was heard of, and namesakes of this node.
    pub(crate) fn reachable(&self) -> impl Iterator<Item = &Member> {
        self.heard.values().chain(&self.namesakes)
    }
}

#[cfg(test)]
mod tests;
