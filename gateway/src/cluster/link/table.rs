//! Which peers are linked: at most one connection for each (MESH-2, MESH-6).
//!
//! Responsible for admitting a proven peer, for the rule that the smaller name dials, and for whom
//! to dial next. Pure. Must never know what a connection is.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::failure::Failure;
use super::handshake::Identity;

/// Nodes that may be linked. The engine tells all of them in one datagram, which holds about so
/// many.
pub(crate) const MAX_PEERS: usize = 500;

/// The connections of this process, counted.
pub(crate) type LinkId = u64;

/// The links of one node.
#[derive(Debug)]
pub(crate) struct Links {
    own: Identity,
    up: BTreeMap<Arc<str>, Link>,
    dialling: HashSet<Arc<str>>,
}

/// A proven connection.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Link {
    id: LinkId,
    peer: Identity,
}

/// Which side of a connection this node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// This node dialled.
    Dialler,
    /// The peer did.
    Dialled,
}

impl Links {
    pub(crate) fn new(own: Identity) -> Self {
        Self {
            own,
            up: BTreeMap::new(),
            dialling: HashSet::new(),
        }
    }

    /// Takes a peer that has proven the secret. A connection that it replaces is returned, to be
    /// closed: the peer has lost it, though this side has not noticed.
    ///
    /// # Errors
    /// It is not to be linked.
    pub(crate) fn admit(
        &mut self,
        peer: &Identity,
        side: Side,
        id: LinkId,
    ) -> Result<Option<LinkId>, Failure> {
        let dials = match side {
            Side::Dialler => self.own.name < peer.name,
            Side::Dialled => peer.name < self.own.name,
        };
        if peer.name == self.own.name {
            return Err(Failure::NameTaken);
        }
        if !dials {
            return Err(Failure::Direction);
        }
        let replaced = match self.up.get(&peer.name) {
            Some(link) if link.peer == *peer => Some(link.id),
            // Whether the other one has died or has the name: its link tells, by ending or not.
            Some(_) => return Err(Failure::NameTaken),
            None if self.up.len() >= MAX_PEERS => return Err(Failure::TooMany),
            None => None,
        };
        let peer = peer.clone();
        self.up.insert(Arc::clone(&peer.name), Link { id, peer });
        Ok(replaced)
    }

    /// A connection ended. Whether it was the link of a peer.
    pub(crate) fn ended(&mut self, name: &str, id: LinkId) -> bool {
        let is_link = self.up.get(name).is_some_and(|link| link.id == id);
        if is_link {
            self.up.remove(name);
        }
        is_link
    }

    /// Whom to dial of these live nodes; each of them is being dialled from now on, until
    /// [`Self::dialled`]. A namesake is dialled by the younger of the two, which learns of the elder
    /// so (MESH-6).
    pub(crate) fn due<'a>(
        &mut self,
        live: impl Iterator<Item = (&'a Arc<str>, u64)>,
    ) -> Vec<(Arc<str>, u64)> {
        let own = &self.own;
        let wanted = live.filter(|(name, incarnation)| match own.name.cmp(name) {
            std::cmp::Ordering::Less => !self.up.contains_key(*name),
            std::cmp::Ordering::Equal => own.incarnation >= *incarnation,
            std::cmp::Ordering::Greater => false,
        });
        let wanted: Vec<_> = wanted
            .filter(|(name, _)| !self.dialling.contains(*name))
            .map(|(name, incarnation)| (Arc::clone(name), incarnation))
            .take(MAX_PEERS.saturating_sub(self.dialling.len()))
            .collect();
        self.dialling
            .extend(wanted.iter().map(|(name, _)| Arc::clone(name)));
        wanted
    }

    /// An attempt to reach this peer is over, or its link has ended.
    pub(crate) fn dialled(&mut self, name: &str) {
        self.dialling.remove(name);
    }

    /// The peers that are linked.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &Identity> {
        self.up.values().map(|link| &link.peer)
    }

    /// The life of this name that is linked, and its connection.
    pub(crate) fn of(&self, name: &str) -> Option<(&Identity, LinkId)> {
        self.up.get(name).map(|link| (&link.peer, link.id))
    }

    pub(crate) fn len(&self) -> usize {
        self.up.len()
    }
}

#[cfg(test)]
mod tests;
