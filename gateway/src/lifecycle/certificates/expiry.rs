//! When certificates end, as gauges.
//!
//! Responsible for one series for each role and name, from the latest good look at its files
//! (CERT-1, CERT-5). Must never parse a file again that has not changed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tracing::warn;

use crate::config::{Config, PeerPin, UpstreamFile};
use crate::observe::metrics::Metrics;
use crate::pki::{self, FileFault, Snapshot};

/// The name of the way to the server.
const CHANNEL: &str = "default_channel";

/// What is known of every file that has an end.
#[derive(Debug)]
pub(super) struct Expiry {
    files: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    role: &'static str,
    name: String,
    path: PathBuf,
    seen: Option<[u8; 32]>,
    readable: bool,
    end: End,
}

/// When a file's certificates end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The file could never be read.
    NeverRead,
    /// Unix seconds.
    At(i64),
    /// A date in it can't be read.
    Unknown,
}

impl Expiry {
    /// Every file of a configuration that has an end.
    pub(super) fn of(config: &Config) -> Self {
        let mut files = Vec::new();
        let mut watch = |role, name: &str, path: &std::path::Path| {
            files.push(Watched {
                role,
                name: name.to_owned(),
                path: path.to_owned(),
                seen: None,
                readable: false,
                end: End::NeverRead,
            });
        };
        for listener in &config.listeners {
            let Some(tls) = &listener.tls else { continue };
            watch("listener", &listener.name, &tls.cert_file);
            watch("listener_ca", &listener.name, &tls.ca_file);
            for list in &tls.crl_files {
                watch(LISTS, &listener.name, list);
            }
        }
        for (file, path) in config.upstream.certificate_files() {
            let role = match file {
                UpstreamFile::Authorities => "upstream_ca",
                UpstreamFile::Certificate | UpstreamFile::Key => "upstream_client",
            };
            watch(role, CHANNEL, path);
        }
        for (index, pin) in config.management.peer_pins.iter().enumerate() {
            if let PeerPin::CertFile(path) = pin {
                watch("mgmt_peer_pin", &format!("pin{index}"), path);
            }
        }
        Self { files }
    }

    /// Other files are configured: what is known of those that stay is kept, the series of those
    /// that go are removed.
    pub(super) fn reconfigure(&mut self, config: &Config, metrics: &Metrics) {
        let mut files = Self::of(config).files;
        for watched in &mut files {
            let same = |other: &&Watched| {
                let name = |watched: &Watched| (watched.role, watched.name.clone());
                name(other) == name(watched) && other.path == watched.path
            };
            if let Some(before) = self.files.iter().find(same) {
                (watched.seen, watched.readable, watched.end) =
                    (before.seen, before.readable, before.end);
            }
        }
        for gone in &self.files {
            let labels = [gone.role, &*gone.name];
            if !files
                .iter()
                .any(|watched| [watched.role, &*watched.name] == labels)
            {
                let _ = metrics.cert_file_readable.remove_label_values(&labels);
                let ends = &metrics.cert_expiry_timestamp_seconds;
                let _ = ends.remove_label_values(&labels);
            }
        }
        self.files = files;
    }

    /// Looks at the files and shows what they say.
    pub(super) fn look(&mut self, files: &Snapshot, metrics: &Metrics) {
        for watched in &mut self.files {
            watched.look(files);
        }
        let mut series: BTreeMap<(&str, &str), Vec<&Watched>> = BTreeMap::new();
        for watched in &self.files {
            let key = (watched.role, &*watched.name);
            series.entry(key).or_default().push(watched);
        }
        for ((role, name), watched) in series {
            let labels = [role, name];
            let readable = watched.iter().all(|watched| watched.readable);
            metrics
                .cert_file_readable
                .with_label_values(&labels)
                .set(readable.into());
            let ends = || watched.iter().map(|watched| watched.end);
            let earliest = ends().filter_map(End::seconds).min();
            match earliest.filter(|_| ends().all(|end| end != End::Unknown)) {
                Some(end) => {
                    let gauge = &metrics.cert_expiry_timestamp_seconds;
                    gauge.with_label_values(&labels).set(end);
                }
                // There may have been none.
                None => {
                    let _ = metrics
                        .cert_expiry_timestamp_seconds
                        .remove_label_values(&labels);
                }
            }
        }
    }
}

impl End {
    fn seconds(self) -> Option<i64> {
        match self {
            Self::At(seconds) => Some(seconds),
            Self::NeverRead | Self::Unknown => None,
        }
    }
}

/// The role of revocation lists: their end is when the next one is due.
const LISTS: &str = "listener_crl";

impl Watched {
    fn look(&mut self, files: &Snapshot) {
        let seen = files.digest([self.path.as_path()]);
        if self.seen == Some(seen) {
            return;
        }
        self.seen = Some(seen);
        match self.end_of(files) {
            Ok(Some(end)) => (self.readable, self.end) = (true, End::At(end)),
            Ok(None) => {
                (self.readable, self.end) = (true, End::Unknown);
                warn!(
                    role = self.role,
                    name = %self.name,
                    "the end of a certificate cannot be read: check it by hand"
                );
            }
            // What was known stays: an end that comes near must go on alerting.
            Err(_) => self.readable = false,
        }
    }

    fn end_of(&self, files: &Snapshot) -> Result<Option<i64>, FileFault> {
        let pem = files.bytes(&self.path)?;
        match self.role {
            LISTS => pki::revocation_lists(pem).map(|lists| pki::earliest_update(&lists)),
            _ => pki::certificates(pem).map(|found| pki::earliest_end(&found)),
        }
    }
}
