//! Datagrams that only nodes with the secret can write or read (MESH-2).
//!
//! Responsible for sealing a payload into one or two datagrams and for opening them again, each of
//! them once. Pure: the time is an argument. Must never know what a payload says, nor keep anything
//! of a datagram that does not open.
//!
//! A datagram is `version, kind, sender, addressee, counter, sent at, part, parts` and the sealed
//! bytes; what stands in front is authenticated with them. A sender is one life of one process, and so
//! is an addressee: nobody else takes it. Who does not know who is at an address greets whoever it is,
//! which says nothing else, and learns the addressee from the answer, which is as large as the
//! greeting. Of each sender the counters that were seen are remembered, in a window; what is older than
//! that or than [`MAX_AGE`] is refused.

use std::collections::HashMap;
use std::time::Duration;

use ring::aead::{Aad, LessSafeKey, Nonce};

use super::addressees::Token;
use super::secret::{Keys, SenderId};

/// Version 1 had neither kind nor addressee. No node speaks both.
const VERSION: u8 = 2;
/// Of other versions, so that a stray datagram is not taken for one.
const OTHER_VERSIONS: std::ops::RangeInclusive<u8> = 1..=15;
/// In front of the sealed bytes.
const HEADER: usize = 1 + 1 + 16 + 16 + 8 + 8 + 1 + 1;
/// Who is greeted.
const ANYBODY: SenderId = [0; 16];
const TAG: usize = 16;
/// Payload of one datagram.
pub(crate) const PART: usize = 32 << 10;
/// Two parts hold whatever the engine fits into a datagram of its own.
const MAX_PARTS: usize = 2;
/// Largest datagram.
pub(crate) const MAX_DATAGRAM: usize = HEADER + PART + TAG;
/// How far the clocks of two nodes may differ, and how long a datagram may be on its way.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(60);
/// Counters behind the highest one that may still come.
const WINDOW: u64 = 128;

/// What a datagram is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A payload, or a part of one.
    Payload,
    /// Asks whoever gets it who he is.
    Greeting,
    /// Its sender is who was greeted.
    Answer,
}

/// What a peer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// A whole payload.
    Payload(Vec<u8>),
    /// It asks who is there; see [`Sealer::answer`].
    Greeting(Token),
    /// It is the one that was greeted so.
    Answer(Token),
}

/// Why a datagram was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// It is no datagram of this contract.
    Malformed,
    /// It is one of another version of the contract.
    Version,
    /// It was not sealed with this secret, or was changed on its way.
    Forged,
    /// It came before, or is too far behind those that did.
    Replayed,
    /// It was sent longer ago than [`MAX_AGE`], or is from the future.
    Stale,
    /// It was sealed for another node, or for an earlier life of this one.
    Misaddressed,
    /// It is good, but too many senders are remembered.
    TooManySenders,
}

impl Rejected {
    /// All of them, as labels.
    pub(crate) const LABELS: [&'static str; 7] = [
        "malformed",
        "version",
        "forged",
        "replayed",
        "stale",
        "misaddressed",
        "too_many_senders",
    ];

    pub(crate) fn label(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}

/// Seals the datagrams of one life of this node's membership.
pub(crate) struct Sealer {
    sender: SenderId,
    key: LessSafeKey,
    next: u64,
}

impl Sealer {
    /// `sender` must be fresh: a counter is never used twice under one key.
    pub(crate) fn new(keys: &Keys, sender: SenderId) -> Self {
        Self {
            key: keys.of_sender(&sender),
            sender,
            next: 0,
        }
    }

    /// Who it is to others.
    pub(crate) fn sender(&self) -> SenderId {
        self.sender
    }

    /// Asks whoever gets it who he is.
    pub(crate) fn greet(&mut self, token: Token, now_ms: u64) -> Vec<u8> {
        self.seal_part(
            (Kind::Greeting, &ANYBODY),
            &token.to_be_bytes(),
            (0, 1),
            now_ms,
        )
    }

    /// Answers a greeting of `to`.
    pub(crate) fn answer(&mut self, to: &SenderId, token: Token, now_ms: u64) -> Vec<u8> {
        self.seal_part((Kind::Answer, to), &token.to_be_bytes(), (0, 1), now_ms)
    }

    /// The datagrams of `payload` for `to`, in the order in which they are to be sent; `None` when it
    /// is too large.
    pub(crate) fn seal(
        &mut self,
        to: &SenderId,
        payload: &[u8],
        now_ms: u64,
    ) -> Option<Vec<Vec<u8>>> {
        let parts = payload.len().div_ceil(PART).max(1);
        if parts > MAX_PARTS {
            return None;
        }
        let mut chunks = payload.chunks(PART);
        let sealed = (0..parts).map(|part| {
            let chunk = chunks.next().unwrap_or_default();
            self.seal_part(
                (Kind::Payload, to),
                chunk,
                (part as u8, parts as u8),
                now_ms,
            )
        });
        Some(sealed.collect())
    }

    fn seal_part(
        &mut self,
        (kind, to): (Kind, &SenderId),
        chunk: &[u8],
        (part, parts): (u8, u8),
        now_ms: u64,
    ) -> Vec<u8> {
        let counter = self.next;
        self.next += 1;
        let mut datagram = Vec::with_capacity(HEADER + chunk.len() + TAG);
        datagram.extend_from_slice(&[VERSION, kind as u8]);
        datagram.extend_from_slice(&self.sender);
        datagram.extend_from_slice(to);
        datagram.extend_from_slice(&counter.to_be_bytes());
        datagram.extend_from_slice(&now_ms.to_be_bytes());
        datagram.extend_from_slice(&[part, parts]);
        let header = Aad::from(<[u8; HEADER]>::try_from(&datagram[..]).expect("a header"));
        datagram.extend_from_slice(chunk);
        let sealed =
            self.key
                .seal_in_place_separate_tag(nonce(counter), header, &mut datagram[HEADER..]);
        let tag = sealed.expect("a part is far below what the cipher takes");
        datagram.extend_from_slice(tag.as_ref());
        datagram
    }
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Opens the datagrams of all peers.
pub(crate) struct Opener {
    keys: Keys,
    senders: HashMap<SenderId, Sender>,
    max_senders: usize,
}

struct Sender {
    key: LessSafeKey,
    highest: u64,
    /// Bit n: `highest - n` was seen.
    seen: u128,
    /// When the latest of its datagrams was sent, by its own clock.
    sent_ms: u64,
    /// The first part of a payload whose second one has not come.
    first: Option<(u64, Vec<u8>)>,
}

/// What stands in front of a datagram.
struct Header {
    kind: Kind,
    sender: SenderId,
    addressee: SenderId,
    counter: u64,
    sent_ms: u64,
    part: u8,
    parts: u8,
}

impl Header {
    /// `None`: it is no datagram of this version.
    fn read(datagram: &[u8]) -> Option<Self> {
        if datagram.len() < HEADER + TAG || datagram.len() > MAX_DATAGRAM {
            return None;
        }
        let ([version, kind], rest) = datagram.split_first_chunk()?;
        let (sender, rest) = rest.split_first_chunk()?;
        let (addressee, rest) = rest.split_first_chunk()?;
        let (counter, rest) = rest.split_first_chunk()?;
        let (sent_ms, rest) = rest.split_first_chunk()?;
        let ([part, parts], _) = rest.split_first_chunk()?;
        let fits = *version == VERSION && part < parts && usize::from(*parts) <= MAX_PARTS;
        let kind = match (fits, kind) {
            (true, 0) => Kind::Payload,
            (true, 1) => Kind::Greeting,
            (true, 2) => Kind::Answer,
            _ => return None,
        };
        Some(Self {
            kind,
            sender: *sender,
            addressee: *addressee,
            counter: u64::from_be_bytes(*counter),
            sent_ms: u64::from_be_bytes(*sent_ms),
            part: *part,
            parts: *parts,
        })
    }
}

impl Opener {
    /// At most `max_senders` are remembered at once.
    pub(crate) fn new(keys: Keys, max_senders: usize) -> Self {
        Self {
            keys,
            senders: HashMap::new(),
            max_senders,
        }
    }

    /// What this datagram says to `own`, and who says it; `None`: it is the first part of a payload. The
    /// buffer is overwritten.
    ///
    /// # Errors
    /// It must not be believed; nothing of it is kept.
    pub(crate) fn open(
        &mut self,
        datagram: &mut [u8],
        own: &SenderId,
        now_ms: u64,
    ) -> Result<Option<(SenderId, Said)>, Rejected> {
        let header = Header::read(datagram).ok_or_else(|| foreign(datagram))?;
        let known = self.senders.get(&header.sender);
        if known.is_some_and(|sender| !sender.is_fresh(header.counter)) {
            return Err(Rejected::Replayed);
        }
        let made = known.is_none().then(|| self.keys.of_sender(&header.sender));
        let key = known.map(|sender| &sender.key).or(made.as_ref());
        let plain = decrypt(key.ok_or(Rejected::Forged)?, header.counter, datagram)?;
        // Only what is authentic says anything about its time.
        if header.sent_ms.abs_diff(now_ms) > MAX_AGE.as_millis() as u64 {
            return Err(Rejected::Stale);
        }
        let addressee = match header.kind {
            Kind::Greeting => &ANYBODY,
            Kind::Payload | Kind::Answer => own,
        };
        if header.addressee != *addressee {
            return Err(Rejected::Misaddressed);
        }
        if let Some(key) = made {
            self.make_room(now_ms)?;
            self.senders
                .insert(header.sender, Sender::new(key, &header));
        }
        let sender = self.senders.get_mut(&header.sender);
        let Some(plain) = sender.and_then(|sender| sender.take(&header, plain)) else {
            return Ok(None);
        };
        let said = match header.kind {
            Kind::Payload => Said::Payload(plain),
            Kind::Greeting => Said::Greeting(token(&plain)?),
            Kind::Answer => Said::Answer(token(&plain)?),
        };
        Ok(Some((header.sender, said)))
    }

    /// Forgets senders none of whose datagrams would pass any more. Others must stay: a forgotten
    /// window would let all of its datagrams in again.
    fn make_room(&mut self, now_ms: u64) -> Result<(), Rejected> {
        if self.senders.len() >= self.max_senders {
            let horizon = now_ms.saturating_sub(MAX_AGE.as_millis() as u64);
            self.senders.retain(|_, sender| sender.sent_ms >= horizon);
        }
        match self.senders.len() < self.max_senders {
            true => Ok(()),
            false => Err(Rejected::TooManySenders),
        }
    }
}

/// What is no datagram of this version.
fn foreign(datagram: &[u8]) -> Rejected {
    let first = datagram.first();
    match first.is_some_and(|first| *first != VERSION && OTHER_VERSIONS.contains(first)) {
        true => Rejected::Version,
        false => Rejected::Malformed,
    }
}

fn token(plain: &[u8]) -> Result<Token, Rejected> {
    let bytes = plain.try_into().map_err(|_| Rejected::Malformed)?;
    Ok(Token::from_be_bytes(bytes))
}

fn decrypt<'d>(
    key: &LessSafeKey,
    counter: u64,
    datagram: &'d mut [u8],
) -> Result<&'d [u8], Rejected> {
    let (header, sealed) = datagram.split_at_mut(HEADER);
    let opened = key.open_in_place(nonce(counter), Aad::from(header), sealed);
    opened.map(|plain| &*plain).map_err(|_| Rejected::Forged)
}

impl Sender {
    /// Nothing of it was seen, the one at hand included.
    fn new(key: LessSafeKey, header: &Header) -> Self {
        Self {
            key,
            highest: header.counter,
            seen: 0,
            sent_ms: header.sent_ms,
            first: None,
        }
    }

    fn is_fresh(&self, counter: u64) -> bool {
        match self.highest.checked_sub(counter) {
            None => true,
            Some(behind) => behind < WINDOW && self.seen & (1 << behind) == 0,
        }
    }

    /// Notes an authentic datagram.
    fn take(&mut self, header: &Header, plain: &[u8]) -> Option<Vec<u8>> {
        self.note(header.counter);
        self.sent_ms = self.sent_ms.max(header.sent_ms);
        match (header.part, header.parts) {
            (_, 1) => Some(plain.to_vec()),
            (0, _) => {
                self.first = Some((header.counter, plain.to_vec()));
                None
            }
            // Gossip is repeated: parts that come in another order are let go.
            _ => match self.first.take() {
                Some((counter, mut whole)) if counter + 1 == header.counter => {
                    whole.extend_from_slice(plain);
                    Some(whole)
                }
                _ => None,
            },
        }
    }

    fn note(&mut self, counter: u64) {
        let ahead = counter.saturating_sub(self.highest);
        if ahead > 0 {
            let shift = u32::try_from(ahead).unwrap_or(u32::MAX);
            self.seen = self.seen.checked_shl(shift).unwrap_or(0);
            self.highest = counter;
        }
        self.seen |= 1 << (self.highest - counter);
    }
}

#[cfg(test)]
mod tests;
