//! Whether a certificate admits its peer.
//!
//! Responsible for the order of the judgement and for its closed set of reasons (MGMT-AUTH-1 to
//! MGMT-AUTH-6, MGMT-AUTH-10). Pure: what it judges by is given.

use std::collections::HashSet;
use std::sync::Arc;

use crate::config::{KeyPin, Management, PeerAuthMode, Serial};
use crate::pki::{BadCertificate, PeerCertificate};

/// What admits, but for the pins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Policy {
    mode: PeerAuthMode,
    identity: Option<String>,
    denied: Arc<HashSet<Serial>>,
}

/// The keys that are pinned now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PinnedKeys {
    /// One entry for each configured pin; `None` has never been resolved.
    pins: Vec<Option<KeyPin>>,
}

impl PinnedKeys {
    pub(crate) fn new(pins: Vec<Option<KeyPin>>) -> Self {
        Self { pins }
    }

    /// Configured pins that never had a key (MGMT-AUTH-11).
    pub(crate) fn unresolved(&self) -> usize {
        self.pins.iter().filter(|pin| pin.is_none()).count()
    }

    fn judge(&self, key: &KeyPin) -> Result<(), Reason> {
        if self.pins.is_empty() {
            return Err(Reason::NoPinsConfigured);
        }
        let mut resolved = self.pins.iter().flatten().peekable();
        if resolved.peek().is_none() {
            return Err(Reason::NoPinsResolved);
        }
        match resolved.any(|pin| pin == key) {
            true => Ok(()),
            false => Err(Reason::PinMismatch),
        }
    }
}

/// By what a peer was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Identity,
    Pin,
}

impl Method {
    /// Value of the label `method`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Pin => "pin",
        }
    }
}

/// Why a peer was refused, in the order of [`REASONS`]. The three that a judgement can't come to
/// here keep their series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    NoPinsConfigured,
    NoPinsResolved,
    PinMismatch,
    MissingServerAuthEku,
    BadPeerCert,
    NoUriSan,
    IdentityMismatch,
    IdentityUnresolved,
    Revoked,
}

/// Every value of the label `reason` (MGMT-AUTH-6).
pub(crate) const REASONS: [&str; 11] = [
    "no_pins_configured",
    "no_pins_resolved",
    "pin_mismatch",
    "missing_server_auth_eku",
    "bad_peer_cert",
    "no_uri_san",
    "identity_mismatch",
    "identity_unresolved",
    "revoked",
    "internal_error",
    "bad_pin_config",
];

impl Reason {
    /// Value of the label `reason`.
    pub(crate) fn label(self) -> &'static str {
        REASONS[self as usize]
    }
}

impl Policy {
    pub(crate) fn new(management: &Management, identity: Option<String>) -> Self {
        Self {
            mode: management.peer_auth_mode,
            identity,
            denied: Arc::new(management.peer_denied.iter().cloned().collect()),
        }
    }

    /// The URI that admits.
    pub(crate) fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// The same with another identity.
    pub(crate) fn with_identity(&self, identity: Option<String>) -> Self {
        Self {
            identity,
            ..self.clone()
        }
    }

    /// Judges the certificate of a peer; without one there is nothing to admit.
    pub(crate) fn judge(
        &self,
        pins: &PinnedKeys,
        peer: Option<Result<&PeerCertificate, BadCertificate>>,
    ) -> Result<Method, Reason> {
        let Some(Ok(peer)) = peer else {
            return Err(Reason::BadPeerCert);
        };
        if !peer.server_auth {
            return Err(Reason::MissingServerAuthEku);
        }
        let method = match self.mode {
            PeerAuthMode::Pin => pins.judge(&peer.key).map(|()| Method::Pin)?,
            PeerAuthMode::Identity => {
                self.identify(peer)?;
                if !pins.pins.is_empty() {
                    pins.judge(&peer.key)?;
                }
                Method::Identity
            }
            PeerAuthMode::IdentityOrPin => self.either(pins, peer)?,
        };
        match self.is_denied(peer) {
            true => Err(Reason::Revoked),
            false => Ok(method),
        }
    }

    fn identify(&self, peer: &PeerCertificate) -> Result<(), Reason> {
        let wanted = self.identity.as_ref().ok_or(Reason::IdentityUnresolved)?;
        if peer.uris.is_empty() {
            return Err(Reason::NoUriSan);
        }
        match peer.uris.contains(wanted) {
            true => Ok(()),
            false => Err(Reason::IdentityMismatch),
        }
    }

    /// While there are pins, a peer that both refuse is told as one that the pins refuse: the
    /// alerts on them mean the same before, during and after a change of mode (MGMT-AUTH-5).
    fn either(&self, pins: &PinnedKeys, peer: &PeerCertificate) -> Result<Method, Reason> {
        let Err(unidentified) = self.identify(peer) else {
            return Ok(Method::Identity);
        };
        match pins.judge(&peer.key) {
            Ok(()) => Ok(Method::Pin),
            Err(Reason::NoPinsConfigured) => Err(unidentified),
            Err(_) if unidentified == Reason::IdentityUnresolved => Err(unidentified),
            Err(unpinned) => Err(unpinned),
        }
    }

    fn is_denied(&self, peer: &PeerCertificate) -> bool {
        if self.denied.is_empty() {
            return false;
        }
        match &peer.serial {
            Some(serial) => self.denied.contains(serial),
            None => true,
        }
    }
}
