//! Certificates, keys and revocation lists, as files and as facts.
//!
//! Responsible for reading PEM files, for naming what is wrong with one (UPCH-4), and for what the
//! gateway wants to know of a certificate. Must never print the path or a byte of a key, and never
//! decide who is admitted.

mod alert;
mod certificate;
mod credentials;
mod file;
mod names;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;

pub(crate) use alert::alert_name;
pub(crate) use certificate::{
    BadCertificate, PeerCertificate, earliest_end, earliest_update, key_pin,
};
pub(crate) use credentials::{Credentials, Paths, certified_key, roots};
pub(crate) use file::{FileFault, Snapshot, certificates, private_key, revocation_lists};
pub use names::{KeyPin, Serial};
pub(crate) use names::{agent_identity_prefix, is_server_identity, server_identity};

/// ring, because it builds with a C compiler alone. Named at every use: a default for the whole
/// process could be set by a library.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static RING: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));
    Arc::clone(&RING)
}

/// The one protocol that is spoken inside TLS.
pub(crate) const ALPN_H2: &[u8] = b"h2";

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let mut out = [0; 32];
    out.copy_from_slice(digest.as_ref());
    out
}
