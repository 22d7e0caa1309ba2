//! Whom a management listener may admit, given the CA files of those listeners.
//!
//! Responsible for resolving the server's identity and for what refuses a set of CA files
//! (MGMT-AUTH-8, MGMT-AUTH-9, MGMT-AUTH-13), at the start and again when the files change
//! (MGMT-AUTH-15). Must never see a peer: that is [`crate::management`].

use rustls::pki_types::CertificateDer;

use super::problem::{Place, Problem};
use super::refusal::Refusal;
use super::schema::{Listener, Management, PeerAuthMode, PeerPin};
use crate::pki;

/// A listener whose management calls are authorized.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guarded<'a> {
    pub(crate) listener: &'a Listener,
    /// What its CA file holds; empty when that can't be read.
    pub(crate) authorities: &'a [CertificateDer<'static>],
}

/// What is known of the server that will call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ResolvedPeer {
    /// The identity that admits; `None` is unresolved, or not used in mode pin.
    pub(crate) identity: Option<String>,
    /// What an operator should know (MGMT-AUTH-12).
    pub(crate) warnings: Vec<&'static str>,
}

/// Why a set of CA files is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}: {key} {fault}; {fix}")]
pub(crate) struct PeerRefusal {
    pub(crate) why: Refusal,
    pub(crate) key: &'static str,
    pub(crate) fault: &'static str,
    pub(crate) fix: &'static str,
}

impl From<PeerRefusal> for Problem {
    /// Found in files, so no line of the configuration is its place.
    fn from(refusal: PeerRefusal) -> Self {
        let PeerRefusal {
            why,
            key,
            fault,
            fix,
        } = refusal;
        Self::refuses(why, Place::Nowhere, key, fault, fix)
    }
}

const IGNORED: &str = "management.peer_identity is ignored: management.peer_auth_mode is pin";
const UNRESOLVED: &str = "the server's identity is unresolved (the CA file of a management listener \
     does not hold exactly one certificate): no peer is admitted by its identity";
const NOBODY: &str = "no management peer can be admitted: management.peer_auth_mode has neither the \
     pin nor the identity that it asks for";
const DIFFERS: &str = "management.peer_identity differs from the identity derived from the CA file of \
     a management listener";
const DIFFERS_IN_CASE: &str = "management.peer_identity differs from the identity derived from the CA \
     file of a management listener in letter case only: it is compared byte for byte, so that \
     nobody is admitted by it; write its digits in upper case";

impl ResolvedPeer {
    /// Judges the CA files of all guarded listeners together. `lab` excuses an exposed listener
    /// that can admit nobody.
    ///
    /// # Errors
    /// Everything that refuses the start, or the new files of a running node.
    pub(crate) fn of(
        management: &Management,
        guarded: &[Guarded<'_>],
        lab: bool,
    ) -> Result<Self, Vec<PeerRefusal>> {
        let mut refusals = Vec::new();
        let mut peer = Self::default();
        if management.peer_auth_mode == PeerAuthMode::Pin {
            if !management.peer_identity.is_empty() {
                peer.warnings.push(IGNORED);
            }
        } else if !guarded.is_empty() {
            peer.resolve(management, guarded, &mut refusals);
        }
        if refusals.is_empty() && !guarded.is_empty() {
            let exposed = guarded.iter().any(|guarded| guarded.listener.is_exposed());
            match nobody(management, peer.identity.is_some()) {
                Some(refusal) if exposed && !lab => refusals.push(refusal),
                Some(_) => peer.warnings.push(NOBODY),
                None => {}
            }
        }
        match refusals.is_empty() {
            true => Ok(peer),
            false => Err(refusals),
        }
    }

    fn resolve(
        &mut self,
        management: &Management,
        guarded: &[Guarded<'_>],
        refusals: &mut Vec<PeerRefusal>,
    ) {
        let derived: Vec<Option<String>> = guarded
            .iter()
            .map(|guarded| match guarded.authorities {
                [one] => Some(pki::server_identity(one)),
                _ => None,
            })
            .collect();
        let single = derived.iter().all(Option::is_some);
        let explicit = &management.peer_identity;
        if !explicit.is_empty() {
            let pinned =
                management.peer_auth_mode == PeerAuthMode::Identity && management.has_pins();
            if !single && !pinned {
                refusals.push(OVER_BUNDLE);
            }
            let others = || derived.iter().flatten().filter(|other| *other != explicit);
            if others().any(|other| other.eq_ignore_ascii_case(explicit)) {
                self.warnings.push(DIFFERS_IN_CASE);
            } else if others().next().is_some() {
                self.warnings.push(DIFFERS);
            }
            self.identity = Some(explicit.clone());
        } else if derived
            .iter()
            .flatten()
            .any(|one| Some(one) != derived.iter().flatten().next())
        {
            refusals.push(AMBIGUOUS);
        } else if single {
            self.identity = derived.into_iter().next().flatten();
        } else {
            // A listener with a bundle would believe the identity of any CA in it.
            self.warnings.push(UNRESOLVED);
        }
    }
}

const OVER_BUNDLE: PeerRefusal = PeerRefusal {
    why: Refusal::IdentityOverBundle,
    key: "management.peer_identity",
    fault: "stands over a CA file that is not exactly one readable certificate: any CA in it could \
            issue that identity",
    fix: "give the management listener a ca_file of one certificate, or use mode pin, or mode \
          identity with a pin",
};

const AMBIGUOUS: PeerRefusal = PeerRefusal {
    why: Refusal::IdentityAmbiguous,
    key: "management.peer_identity",
    fault: "is not given, and the CA files of the management listeners derive different ones",
    fix: "give it, or give these listeners the same CA",
};

impl Management {
    /// Whether a pin can ever admit: one that can't be read pins nothing (MGMT-AUTH-3), while the
    /// file of another may come later (CERT-4).
    fn has_pins(&self) -> bool {
        self.peer_pins.iter().any(|pin| *pin != PeerPin::Malformed)
    }
}

/// MGMT-AUTH-13.
fn nobody(management: &Management, resolved: bool) -> Option<PeerRefusal> {
    let pins = management.has_pins();
    let (admits, why, key, fix) = match management.peer_auth_mode {
        PeerAuthMode::Pin => (
            pins,
            Refusal::NoPeerPins,
            "management.peer_pins",
            "pin the server: peer_pins = [{ cert_file = \"...\" }]",
        ),
        // Pins that are configured must match as well (MGMT-AUTH-4).
        PeerAuthMode::Identity if !pins && !management.peer_pins.is_empty() => (
            false,
            Refusal::NoPeerPins,
            "management.peer_pins",
            "correct the entries that can't be read, or delete them",
        ),
        PeerAuthMode::Identity => (
            resolved,
            Refusal::NoPeerIdentity,
            "management.peer_identity",
            "give it, or give the management listener a ca_file of one certificate",
        ),
        PeerAuthMode::IdentityOrPin => (
            resolved || pins,
            Refusal::NoPeerPinsOrIdentity,
            "management.peer_pins",
            "pin the server, or give management.peer_identity",
        ),
    };
    (!admits).then_some(PeerRefusal {
        why,
        key,
        fault: "leaves no way to admit the server on a management listener beyond loopback",
        fix,
    })
}
