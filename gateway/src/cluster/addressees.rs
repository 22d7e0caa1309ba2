//! Which life of a node is spoken to at an address (MESH-2).
//!
//! Responsible for what is known of it, for noticing that it answers no more, and for what waits until
//! it is known. Pure. Must never take an address for a node: what stands in a datagram is a life that
//! has said so itself. Nor take where a datagram came from for where its sender is: anybody can send one
//! on that he has caught, from any address, and an answer may be many times as large.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::secret::SenderId;

/// Rounds of gossip that a node may leave unanswered before it is asked who it is, since it may have
/// been restarted.
const MAX_UNANSWERED: u8 = 3;
/// Bytes that wait for answers.
const MAX_WAITING: usize = 4 << 20;

/// Tells to which of the greetings an answer belongs.
pub(crate) type Token = u64;

/// The addresses that were spoken to.
#[derive(Debug)]
pub(crate) struct Addressees {
    known: HashMap<SocketAddr, Known>,
    greeted: HashMap<SocketAddr, Greeted>,
    next: Token,
    max: usize,
}

#[derive(Debug)]
struct Known {
    life: SenderId,
    /// It has answered what was sent there, so it gets that.
    is_reached: bool,
    unanswered: u8,
    /// Unix milliseconds.
    heard_ms: u64,
}

#[derive(Debug)]
struct Greeted {
    token: Token,
    /// For whom alone that is, if it answers somebody.
    asker: Option<SenderId>,
    /// What is to be said, without what found no room.
    waits: Option<Vec<u8>>,
}

/// How to say something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Say {
    /// To this life.
    To(SenderId),
    /// Nobody is known to be there: greet whoever it is. What was to be said waits, if there is room.
    Greet(Token),
}

impl Addressees {
    /// At most `max` addresses are remembered, and as many greetings.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            known: HashMap::new(),
            greeted: HashMap::new(),
            next: 0,
            max,
        }
    }

    /// `payload` is to be sent to `to`.
    pub(crate) fn say(&mut self, to: SocketAddr, payload: &[u8]) -> Say {
        let known = self.known.get_mut(&to);
        if let Some(known) = known.filter(|known| known.unanswered < MAX_UNANSWERED) {
            known.unanswered += 1;
            return Say::To(known.life);
        }
        self.greet(to, None, payload)
    }

    /// `payload` answers what `asker` said, which came from `to`.
    pub(crate) fn reply(&mut self, to: SocketAddr, asker: SenderId, payload: &[u8]) -> Say {
        let known = self.known.get(&to);
        match known.is_some_and(|known| known.is_reached && known.life == asker) {
            true => Say::To(asker),
            false => self.greet(to, Some(asker), payload),
        }
    }

    fn greet(&mut self, to: SocketAddr, asker: Option<SenderId>, payload: &[u8]) -> Say {
        // Another greeting of the same address: the first answer to any of them will do.
        let before = self.greeted.remove(&to).map(|greeted| greeted.token);
        if self.greeted.len() >= self.max {
            let oldest = self.greeted.iter().min_by_key(|(_, greeted)| greeted.token);
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                self.greeted.remove(&oldest);
            }
        }
        let token = before.unwrap_or(self.next);
        self.next = self.next.max(token + 1);
        let waiting: usize = self.greeted.values().map(Greeted::len).sum();
        let fits = waiting + payload.len() <= MAX_WAITING;
        let waits = fits.then(|| payload.to_vec());
        let greeted = Greeted {
            token,
            asker,
            waits,
        };
        self.greeted.insert(to, greeted);
        Say::Greet(token)
    }

    /// Something authentic came from an address.
    pub(crate) fn heard(&mut self, from: SocketAddr, life: SenderId, now_ms: u64) {
        if !self.known.contains_key(&from) && self.known.len() >= self.max {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.heard_ms);
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                self.known.remove(&oldest);
            }
        }
        let before = self.known.get(&from).filter(|known| known.life == life);
        let known = Known {
            life,
            is_reached: before.is_some_and(|known| known.is_reached),
            unanswered: 0,
            heard_ms: now_ms,
        };
        self.known.insert(from, known);
    }

    /// A greeting was answered by `life`, from wherever. The address that was greeted, and what is to
    /// be said there now.
    pub(crate) fn answered(
        &mut self,
        token: Token,
        life: SenderId,
        now_ms: u64,
    ) -> Option<(SocketAddr, Option<Vec<u8>>)> {
        let mut greeted = self.greeted.iter();
        let (address, _) = greeted.find(|(_, greeted)| greeted.token == token)?;
        let address = *address;
        let Greeted { asker, waits, .. } = self.greeted.remove(&address)?;
        self.heard(address, life, now_ms);
        if let Some(known) = self.known.get_mut(&address) {
            known.is_reached = true;
        }
        let is_for = asker.is_none_or(|asker| asker == life);
        Some((address, waits.filter(|_| is_for)))
    }
}

impl Greeted {
    fn len(&self) -> usize {
        self.waits.as_ref().map_or(0, Vec::len)
    }
}

#[cfg(test)]
mod tests;
