//! The certificates of the listeners, from their files into force.
//!
//! Responsible for reading them before anything is bound (BOOT-24). Must never serve a connection.

use std::collections::HashMap;
use std::sync::Arc;

use super::start::StartError;
use crate::config::{ClientAuth, Config, Listener, ListenerTls, Scheme, Upstream};
use crate::edge::tls::ServerTls;
use crate::observe::metrics::Metrics;
use crate::pki::{Credentials, Snapshot};

/// The TLS of every listener that has it, by the listener's name.
#[derive(Debug)]
pub(super) struct Certificates {
    listeners: HashMap<String, Arc<ServerTls>>,
}

impl Certificates {
    /// Reads the files of every listener.
    ///
    /// # Errors
    /// [`StartError::Credentials`] with everything that is wrong with them.
    pub(super) async fn load(config: &Config, metrics: &Arc<Metrics>) -> Result<Self, StartError> {
        let files = read(config).await;
        let mut listeners = HashMap::new();
        let mut faults = Vec::new();
        for (index, listener) in config.listeners.iter().enumerate() {
            let Some(tls) = &listener.tls else { continue };
            match serve(listener, tls, &files, metrics) {
                Ok(served) => {
                    listeners.insert(listener.name.clone(), Arc::new(served));
                }
                Err(found) => {
                    let shown = found
                        .iter()
                        .map(|fault| format!("listener[{index}].tls.{fault}"));
                    faults.extend(shown);
                }
            }
        }
        match faults.is_empty() {
            true => Ok(Self { listeners }),
            false => Err(StartError::Credentials(faults.join("; "))),
        }
    }

    /// The TLS of a listener; `None` is plaintext.
    pub(super) fn of(&self, listener: &str) -> Option<Arc<ServerTls>> {
        self.listeners.get(listener).cloned()
    }
}

async fn read(config: &Config) -> Snapshot {
    let tls = config.listeners.iter().filter_map(|l| l.tls.as_ref());
    let paths: Vec<_> = tls
        .flat_map(|tls| tls.paths().iter())
        .map(ToOwned::to_owned)
        .collect();
    let read = move || Snapshot::read(paths.iter().map(AsRef::as_ref));
    // A panic there reads as missing files.
    tokio::task::spawn_blocking(read).await.unwrap_or_default()
}

fn serve(
    listener: &Listener,
    tls: &ListenerTls,
    files: &Snapshot,
    metrics: &Arc<Metrics>,
) -> Result<ServerTls, Vec<String>> {
    let credentials = Credentials::of(tls.paths(), files)
        .map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    let timeout = listener.limits.handshake_timeout;
    ServerTls::new(
        &listener.name,
        tls,
        timeout,
        &credentials,
        Arc::clone(metrics),
    )
    .map_err(|error| vec![error.to_string()])
}

/// How a listener is secured, for its boot line.
pub(super) fn posture(listener: &Listener) -> &'static str {
    match listener.tls.as_ref().map(|tls| tls.client_auth) {
        None => "plaintext",
        Some(ClientAuth::None) => "one-way TLS (no client certificate is asked for)",
        Some(ClientAuth::Request) => "TLS, client certificate requested",
        Some(ClientAuth::Require) => "mutual TLS",
    }
}

/// How the server is spoken to, for the boot line (BOOT-22).
pub(super) fn upstream_posture(upstream: &Upstream) -> &'static str {
    let named = |path: &std::path::Path| !path.as_os_str().is_empty();
    let tls = &upstream.tls;
    match upstream.scheme {
        Scheme::Http => "plaintext",
        Scheme::Https if !named(&tls.ca_file) => "unverified TLS (lab)",
        Scheme::Https if named(&tls.cert_file) => "mutual TLS",
        Scheme::Https => "server-authenticated TLS (no client certificate)",
    }
}
