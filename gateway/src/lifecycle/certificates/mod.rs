//! Certificates from their files into force: of the listeners, of the pins, for the gauges.
//!
//! Responsible for reading the files before anything is bound (BOOT-24) and for following them
//! from then on, all by one reader (CERT-1). Must never serve a connection or judge a peer.

mod expiry;
mod listeners;
mod posture;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::{info, warn};

use super::start::StartError;
use crate::agent_service::IdentityGate;
use crate::config::{Config, Listener, Management, PeerRefusal};
use crate::edge::tls::ServerTls;
use crate::management::authorization::{Authorization, Gate, PinChange, Pins, Policy};
use crate::observe::metrics::Metrics;
use crate::pki::Snapshot;
use crate::supervise::{Kept, keep_running};
use crate::system::{since_epoch, spawn_blocking};
use crate::tuning::Pace;
use expiry::Expiry;
use listeners::Listeners;
use posture::say_authorization;
pub(super) use posture::{transport, upstream_transport};

/// All certificates of the node that are in force.
#[derive(Debug)]
pub(super) struct Certificates {
    /// Every file that is followed.
    paths: Arc<Vec<PathBuf>>,
    refresh: Duration,
    management: Management,
    listeners: Listeners,
    pins: Pins,
    expiry: Expiry,
    authorization: Arc<Authorization>,
    metrics: Arc<Metrics>,
}

impl Certificates {
    /// Reads every file and puts it in force.
    ///
    /// # Errors
    /// [`StartError::Credentials`] with everything that a listener can't be served with,
    /// [`StartError::Peer`] when the CA files leave nobody to admit.
    pub(super) async fn load(config: &Config, metrics: &Arc<Metrics>) -> Result<Self, StartError> {
        let mut pins = Pins::new(&config.management.peer_pins);
        let paths = paths(config, &pins);
        let files = read(&paths).await;
        let (listeners, peer) = Listeners::load(config, &files, metrics)?;
        say_authorization(&config.management, &listeners, &peer);
        let changes = pins.look(|path| files.bytes(path));
        let policy = Policy::new(&config.management, peer.identity);
        let authorization = Authorization::new(policy, pins.keys(), Arc::clone(metrics));
        let mut certificates = Self {
            paths: Arc::new(paths),
            refresh: config.management.pin_refresh,
            management: config.management.clone(),
            listeners,
            pins,
            expiry: Expiry::of(config),
            authorization: Arc::new(authorization),
            metrics: Arc::clone(metrics),
        };
        certificates.say_pins(&changes);
        certificates.expiry.look(&files, metrics);
        Ok(certificates)
    }

    /// The TLS of a listener; `None` is plaintext.
    pub(super) fn of(&self, listener: &str) -> Option<Arc<ServerTls>> {
        self.listeners.of(listener)
    }

    /// The gate before the management calls of a listener; `None` where nobody is asked who he is.
    pub(super) fn gate(&self, listener: &str) -> Option<Gate> {
        let tls = self.listeners.of_guarded(listener)?;
        Some(Gate::new(Arc::clone(&self.authorization), tls))
    }

    /// The gate before the agents' calls of a listener; `None` where identities are not enforced.
    pub(super) fn identity_gate(&self, listener: &Listener) -> Option<Arc<IdentityGate>> {
        let tls = listener
            .tls
            .as_ref()
            .filter(|tls| tls.enforce_agent_identity);
        let served = tls.and_then(|_| self.of(&listener.name))?;
        Some(Arc::new(IdentityGate::new(
            served,
            Arc::clone(&self.metrics),
        )))
    }

    /// Follows the files until the handle is dropped.
    pub(super) fn follow(self) -> Follower {
        let pace = Arc::new(Pace::new(self.refresh));
        let certificates = Arc::new(Mutex::new(self));
        let (followed, every) = (Arc::clone(&certificates), Arc::clone(&pace));
        let task = keep_running("certificate files", move || {
            let certificates = Arc::clone(&followed);
            let mut ticks = every.ticks();
            async move {
                // They have just been read.
                ticks.tick().await;
                loop {
                    ticks.tick().await;
                    let paths = Arc::clone(&lock(&certificates).paths);
                    let files = read(&paths).await;
                    let mut certificates = lock(&certificates);
                    // Others are followed since; their reader has looked at these too.
                    if Arc::ptr_eq(&paths, &certificates.paths) {
                        certificates.look(&files);
                    }
                }
            }
        });
        Follower {
            certificates,
            pace,
            task,
        }
    }

    /// Puts another `[management]` in force, and what has changed in the files.
    fn renew(&mut self, config: &Config, reading: Reading) -> Result<(), Vec<PeerRefusal>> {
        let Reading { paths, files } = reading;
        let peer = self.listeners.renew(&config.management, &files)?;
        self.paths = Arc::new(paths);
        self.pins.reconfigure(&config.management.peer_pins);
        let changes = self.pins.look(|path| files.bytes(path));
        if self.management != config.management {
            say_authorization(&config.management, &self.listeners, &peer);
            self.management = config.management.clone();
        }
        let policy = Policy::new(&config.management, peer.identity);
        self.authorization.replace(policy, self.pins.keys());
        self.say_pins(&changes);
        self.expiry.reconfigure(config, &self.metrics);
        self.expiry.look(&files, &self.metrics);
        Ok(())
    }

    /// Puts in force what has changed.
    fn look(&mut self, files: &Snapshot) {
        self.expiry.look(files, &self.metrics);
        let changes = self.pins.look(|path| files.bytes(path));
        if !changes.is_empty() {
            self.authorization.pin(self.pins.keys());
            self.say_pins(&changes);
        }
        if let Some(peer) = self.listeners.look(files) {
            self.authorization.identify(peer.identity);
        }
    }

    fn say_pins(&self, changes: &[PinChange]) {
        for change in changes {
            match change {
                PinChange::Resolved { pin } => info!(pin, "management pin file read"),
                PinChange::Rotated { pin } => {
                    self.metrics.mgmt_pin_rotated_timestamp_seconds.set(now());
                    info!(
                        pin,
                        "management pin file has another key, which is pinned now"
                    );
                }
                PinChange::Unreadable {
                    pin,
                    fault,
                    kept: true,
                } => warn!(
                    pin,
                    "management pin file {fault}; the key last read from it stays pinned and is \
                     still admitted"
                ),
                PinChange::Unreadable {
                    pin,
                    fault,
                    kept: false,
                } => warn!(
                    pin,
                    "management pin file {fault}; it pins nothing until it can be read"
                ),
            }
        }
    }
}

/// Certificates whose files are followed.
#[derive(Debug)]
pub(super) struct Follower {
    certificates: Arc<Mutex<Certificates>>,
    pace: Arc<Pace>,
    task: Kept,
}

/// All files of a configuration, as they are now.
pub(super) struct Reading {
    paths: Vec<PathBuf>,
    files: Snapshot,
}

impl Reading {
    /// Reads them.
    pub(super) async fn of(config: &Config) -> Self {
        let paths = paths(config, &Pins::new(&config.management.peer_pins));
        let files = read(&paths).await;
        Self { paths, files }
    }
}

impl Follower {
    /// The task behind it.
    pub(super) fn task(&self) -> &Kept {
        &self.task
    }

    /// Puts the `[management]` of `config` in force, and what has changed in the files of
    /// `reading`. Calls are judged by it from now on, those on open connections too.
    ///
    /// # Errors
    /// What would refuse the start; nothing has changed then.
    pub(super) fn renew(&self, config: &Config, reading: Reading) -> Result<(), Vec<PeerRefusal>> {
        lock(&self.certificates).renew(config, reading)?;
        self.pace.set(config.management.pin_refresh);
        Ok(())
    }
}

fn lock(certificates: &Mutex<Certificates>) -> MutexGuard<'_, Certificates> {
    certificates.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The gauges' time.
fn now() -> i64 {
    since_epoch().as_secs() as i64
}

/// Every file that is followed.
fn paths(config: &Config, pins: &Pins) -> Vec<PathBuf> {
    let listeners = config.listeners.iter().filter_map(|l| l.tls.as_ref());
    let listeners = listeners.flat_map(|tls| tls.paths().iter());
    let upstream = config.upstream.certificate_files();
    let pins = pins.files().map(|(_, path)| path);
    listeners
        .chain(upstream.map(|(_, path)| path))
        .chain(pins)
        .map(ToOwned::to_owned)
        .collect()
}

async fn read(paths: &[PathBuf]) -> Snapshot {
    let paths = paths.to_vec();
    let read = move || Snapshot::read(paths.iter().map(AsRef::as_ref));
    // A panic there reads as missing files.
    spawn_blocking(read).await.unwrap_or_default()
}
