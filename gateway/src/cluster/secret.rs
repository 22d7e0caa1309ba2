//! Keys derived from the secret that the nodes of a cluster share.
//!
//! Responsible for one key per purpose, each under a label of its own, so that what is made with
//! one says nothing about another (MESH-2). Must never print a key, nor keep the secret itself.

use std::fmt;

use ring::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Okm, Prk, Salt};
use ring::hmac;

use crate::config::Secret;

const SALT: &[u8] = b"yuzu.node.v1";
const LINK: &[u8] = b"link proof";
const GOSSIP: &[u8] = b"gossip seal";

/// Identifies one life of a sender of datagrams: random, and never used by another.
pub(crate) type SenderId = [u8; 16];

/// What of the secret is kept.
#[derive(Clone)]
pub(crate) struct Keys {
    root: Prk,
    link: hmac::Key,
}

impl Keys {
    pub(crate) fn derive(secret: &Secret) -> Self {
        let root = Salt::new(HKDF_SHA256, SALT).extract(secret.bytes());
        let link = hmac::Key::from(expand(&root, &[LINK], hmac::HMAC_SHA256));
        Self { root, link }
    }

    /// Proves the secret on a connection.
    pub(super) fn of_links(&self) -> &hmac::Key {
        &self.link
    }

    /// Seals what one sender sends. Each has its own, so that counters of two never meet.
    pub(super) fn of_sender(&self, sender: &SenderId) -> LessSafeKey {
        LessSafeKey::new(UnboundKey::from(expand(
            &self.root,
            &[GOSSIP, sender],
            &AES_256_GCM,
        )))
    }
}

fn expand<'a, L: KeyType>(root: &'a Prk, label: &'a [&'a [u8]], kind: L) -> Okm<'a, L> {
    let made = root.expand(label, kind);
    made.expect("a key is shorter than 255 hashes")
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// Fresh random bytes: nonces, the names of instances and of senders.
///
/// # Panics
/// When the system has no randomness; nothing could be kept secret then.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes
}
