//! Pins that follow their files.
//!
//! Responsible for the last good key of each pin (CERT-2 to CERT-4). Must never read a file or
//! forget a key because its file is gone: who can delete a file must not be able to lock the
//! server out, and a deleted file revokes nothing.

use std::path::Path;

use super::policy::PinnedKeys;
use crate::config::{KeyPin, PeerPin};
use crate::pki::{self, FileFault};

/// The configured pins with their keys.
#[derive(Debug)]
pub(crate) struct Pins {
    configured: Vec<PeerPin>,
    keys: Vec<Option<KeyPin>>,
    /// The fault of each file at the last look.
    faults: Vec<Option<FileFault>>,
}

/// What a look at the files found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PinChange {
    /// A pin that had no key has one.
    Resolved { pin: usize },
    /// A pin has another key.
    Rotated { pin: usize },
    /// A file can't be read any more, or still not after another fault.
    Unreadable {
        pin: usize,
        fault: FileFault,
        /// Whether a key read before stays pinned.
        kept: bool,
    },
}

impl Pins {
    /// No file is read yet.
    pub(crate) fn new(configured: &[PeerPin]) -> Self {
        let key = |pin: &PeerPin| match pin {
            PeerPin::Spki(key) => Some(*key),
            PeerPin::CertFile(_) | PeerPin::Malformed => None,
        };
        Self {
            keys: configured.iter().map(key).collect(),
            faults: vec![None; configured.len()],
            configured: configured.to_vec(),
        }
    }

    /// Other pins are configured. One that stays keeps the key that it has.
    pub(crate) fn reconfigure(&mut self, configured: &[PeerPin]) {
        let mut pins = Self::new(configured);
        for (at, pin) in configured.iter().enumerate() {
            if let Some(before) = self.configured.iter().position(|other| other == pin) {
                pins.keys[at] = self.keys[before];
                pins.faults[at].clone_from(&self.faults[before]);
            }
        }
        *self = pins;
    }

    /// The files to look at, with the numbers of their pins.
    pub(crate) fn files(&self) -> impl Iterator<Item = (usize, &Path)> {
        let pins = self.configured.iter().enumerate();
        pins.filter_map(|(pin, configured)| match configured {
            PeerPin::CertFile(path) => Some((pin, path.as_path())),
            PeerPin::Spki(_) | PeerPin::Malformed => None,
        })
    }

    /// Looks at what the files hold now.
    pub(crate) fn look<'a>(
        &mut self,
        read: impl Fn(&Path) -> Result<&'a [u8], FileFault>,
    ) -> Vec<PinChange> {
        let found: Vec<_> = self
            .files()
            .map(|(pin, path)| (pin, read(path).and_then(first_key)))
            .collect();
        let mut changes = Vec::new();
        for (pin, found) in found {
            let before = self.keys[pin];
            match found {
                Ok(key) => {
                    self.faults[pin] = None;
                    self.keys[pin] = Some(key);
                    match before {
                        None => changes.push(PinChange::Resolved { pin }),
                        Some(before) if before != key => changes.push(PinChange::Rotated { pin }),
                        Some(_) => {}
                    }
                }
                Err(fault) => {
                    if self.faults[pin].as_ref() != Some(&fault) {
                        changes.push(PinChange::Unreadable {
                            pin,
                            fault: fault.clone(),
                            kept: before.is_some(),
                        });
                    }
                    self.faults[pin] = Some(fault);
                }
            }
        }
        changes
    }

    /// What is pinned now.
    pub(crate) fn keys(&self) -> PinnedKeys {
        PinnedKeys::new(self.keys.clone())
    }
}

fn first_key(pem: &[u8]) -> Result<KeyPin, FileFault> {
    let certificates = pki::certificates(pem)?;
    pki::key_pin(&certificates[0]).map_err(|_| FileFault::Damaged)
}
