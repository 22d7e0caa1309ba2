//! The TLS of the listeners, and the CA files of those that guard management.
//!
//! Responsible for taking new files as a whole or not at all: a set that would refuse the start
//! refuses itself, and the last good one stays (MGMT-AUTH-15). Must never touch a connection.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tracing::{error, info, warn};

use super::super::start::StartError;
use crate::config::{
    Config, Guarded, Listener, ListenerTls, Management, PeerRefusal, ResolvedPeer,
};
use crate::edge::tls::{Prepared, ServerTls};
use crate::observe::metrics::Metrics;
use crate::pki::{Credentials, Snapshot};

/// Every listener that speaks TLS.
#[derive(Debug)]
pub(super) struct Listeners {
    all: Vec<Secured>,
    management: Management,
    /// `lab.allow_insecure_management`.
    lab: bool,
}

#[derive(Debug)]
struct Secured {
    config: Listener,
    served: Arc<ServerTls>,
    authorities: Vec<CertificateDer<'static>>,
    /// The files that were looked at last, whether they could be used or not.
    seen: [u8; 32],
    /// They would be in force, but for other listeners' files.
    held_back: bool,
}

/// New files of one listener that can be served.
struct Candidate {
    at: usize,
    prepared: Prepared,
    authorities: Vec<CertificateDer<'static>>,
    /// Whether these files were not looked at before.
    fresh: bool,
}

impl Listeners {
    /// Serves what the files hold.
    ///
    /// # Errors
    /// Everything that is wrong with the files of all listeners.
    pub(super) fn load(
        config: &Config,
        files: &Snapshot,
        metrics: &Arc<Metrics>,
    ) -> Result<(Self, ResolvedPeer), StartError> {
        let (mut all, mut faults) = (Vec::new(), Vec::new());
        for (index, listener) in config.listeners.iter().enumerate() {
            let Some(tls) = &listener.tls else { continue };
            match Secured::load(listener, tls, files, metrics) {
                Ok(secured) => all.push(secured),
                Err(found) => {
                    let told = found
                        .iter()
                        .map(|fault| format!("listener[{index}].tls.{fault}"));
                    faults.extend(told);
                }
            }
        }
        if !faults.is_empty() {
            return Err(StartError::Credentials(faults.join("; ")));
        }
        let listeners = Self {
            all,
            management: config.management.clone(),
            lab: config.lab.allow_insecure_management,
        };
        let peer = listeners.judge(&[]).map_err(|refusals| {
            let told: Vec<_> = refusals.iter().map(ToString::to_string).collect();
            StartError::Peer(told.join("; "))
        })?;
        Ok((listeners, peer))
    }

    pub(super) fn of(&self, listener: &str) -> Option<Arc<ServerTls>> {
        let found = self.all.iter().find(|l| l.config.name == listener);
        found.map(|secured| Arc::clone(&secured.served))
    }

    pub(super) fn of_guarded(&self, listener: &str) -> Option<Arc<ServerTls>> {
        let mut guarded = self.all.iter().filter(|l| l.config.guards_management());
        let found = guarded.find(|l| l.config.name == listener);
        found.map(|secured| Arc::clone(&secured.served))
    }

    pub(super) fn guard_management(&self) -> bool {
        self.all.iter().any(|l| l.config.guards_management())
    }

    /// Puts changed files in force; what is known of the server then, if any were.
    pub(super) fn look(&mut self, files: &Snapshot) -> Option<ResolvedPeer> {
        let candidates: Vec<_> = (0..self.all.len())
            .filter_map(|at| self.candidate(at, files))
            .collect();
        let (guarding, others): (Vec<_>, Vec<_>) = candidates
            .into_iter()
            .partition(|candidate| self.all[candidate.at].config.guards_management());
        self.put(others);
        if guarding.is_empty() {
            return None;
        }
        // Judged together: listeners that share a CA file change together.
        match self.judge(&guarding) {
            Ok(peer) => {
                self.put(guarding);
                for warning in &peer.warnings {
                    warn!("{warning}");
                }
                Some(peer)
            }
            Err(refusals) => {
                self.hold_back(&guarding, &refusals);
                None
            }
        }
    }

    /// Judges another `[management]` together with the files, and puts changed ones in force with
    /// it (MGMT-AUTH-15).
    ///
    /// # Errors
    /// What would refuse the start; nothing has changed then.
    pub(super) fn renew(
        &mut self,
        management: &Management,
        files: &Snapshot,
    ) -> Result<ResolvedPeer, Vec<PeerRefusal>> {
        let candidates: Vec<_> = (0..self.all.len())
            .filter_map(|at| self.candidate(at, files))
            .collect();
        let before = std::mem::replace(&mut self.management, management.clone());
        match self.judge(&candidates) {
            Ok(peer) => {
                self.put(candidates);
                Ok(peer)
            }
            Err(refusals) => {
                self.management = before;
                for candidate in candidates {
                    self.all[candidate.at].held_back = true;
                }
                Err(refusals)
            }
        }
    }

    fn candidate(&mut self, at: usize, files: &Snapshot) -> Option<Candidate> {
        let secured = &mut self.all[at];
        let tls = secured.config.tls.as_ref()?;
        let seen = files.digest(tls.paths().iter());
        if seen == secured.seen && !secured.held_back {
            return None;
        }
        let fresh = seen != secured.seen;
        secured.seen = seen;
        secured.held_back = false;
        let judged = Credentials::of(tls.paths(), files)
            .map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>())
            .and_then(|credentials| {
                let prepared = secured.served.prepare(&credentials);
                let prepared = prepared.map_err(|error| vec![error.to_string()])?;
                Ok((prepared, credentials.authorities))
            });
        match judged {
            Ok((prepared, authorities)) => Some(Candidate {
                at,
                prepared,
                authorities,
                fresh,
            }),
            Err(faults) => {
                if fresh {
                    error!(
                        listener = %secured.config.name,
                        "certificate files changed and cannot be used, the last good ones stay in \
                         force: {}",
                        faults.join("; ")
                    );
                }
                None
            }
        }
    }

    /// Who would be admitted with these candidates in force.
    fn judge(&self, candidates: &[Candidate]) -> Result<ResolvedPeer, Vec<PeerRefusal>> {
        let guarded: Vec<_> = self
            .all
            .iter()
            .enumerate()
            .filter(|(_, secured)| secured.config.guards_management())
            .map(|(at, secured)| {
                let candidate = candidates.iter().find(|candidate| candidate.at == at);
                Guarded {
                    listener: &secured.config,
                    authorities: candidate
                        .map_or(&secured.authorities, |candidate| &candidate.authorities),
                }
            })
            .collect();
        ResolvedPeer::of(&self.management, &guarded, self.lab)
    }

    fn put(&mut self, candidates: Vec<Candidate>) {
        for Candidate {
            at,
            prepared,
            authorities,
            ..
        } in candidates
        {
            let secured = &mut self.all[at];
            secured.served.put(prepared);
            secured.authorities = authorities;
            info!(
                listener = %secured.config.name,
                "certificate files changed: new connections are served with them"
            );
        }
    }

    fn hold_back(&mut self, candidates: &[Candidate], refusals: &[PeerRefusal]) {
        let told: Vec<_> = refusals.iter().map(ToString::to_string).collect();
        for candidate in candidates {
            let secured = &mut self.all[candidate.at];
            secured.held_back = true;
            if !candidate.fresh {
                continue;
            }
            error!(
                listener = %secured.config.name,
                "certificate files changed and are refused, the last good ones stay in force: {}",
                told.join("; ")
            );
        }
    }
}

impl Secured {
    fn load(
        listener: &Listener,
        tls: &ListenerTls,
        files: &Snapshot,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, Vec<String>> {
        let credentials = Credentials::of(tls.paths(), files)
            .map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let metrics = Arc::clone(metrics);
        let served = ServerTls::new(&listener.name, tls, &credentials, metrics)
            .map_err(|error| vec![error.to_string()])?;
        Ok(Self {
            config: listener.clone(),
            served: Arc::new(served),
            authorities: credentials.authorities,
            seen: files.digest(tls.paths().iter()),
            held_back: false,
        })
    }
}
