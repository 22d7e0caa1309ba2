//! The certificate files that a configuration names, as they are at the start.
//!
//! Responsible for what refuses the start because of them (BOOT-14, BOOT-24, MGMT-AUTH-8,
//! MGMT-AUTH-9, MGMT-AUTH-13). Reads files, the only place besides [`super::source`] that does.

use std::path::Path;

use super::document::numbered;
use super::effective::Loader;
use super::peers::{Guarded, ResolvedPeer};
use super::problem::Problem;
use super::refusal::Refusal;
use super::schema::{ClusterTls, Config, Listener, ListenerTls, Scheme, Upstream, UpstreamTls};
use crate::pki::{self, Credentials, FileFault, Paths, Snapshot};

impl ListenerTls {
    /// Where its files are.
    pub(crate) fn paths(&self) -> Paths<'_> {
        Paths {
            certificate: &self.cert_file,
            key: &self.key_file,
            authorities: &self.ca_file,
            revocation_lists: &self.crl_files,
            single_authority: self.enforce_agent_identity,
        }
    }

    /// Whether the three files are named (BOOT-4).
    pub(super) fn is_complete(&self) -> bool {
        let named = |path: &Path| !path.as_os_str().is_empty();
        named(&self.cert_file) && named(&self.key_file) && named(&self.ca_file)
    }
}

/// A file of `[upstream.tls]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamFile {
    /// `ca_file`.
    Authorities,
    /// `cert_file`.
    Certificate,
    /// `key_file`.
    Key,
}

impl UpstreamFile {
    /// Its key.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Authorities => "upstream.tls.ca_file",
            Self::Certificate => "upstream.tls.cert_file",
            Self::Key => "upstream.tls.key_file",
        }
    }
}

impl UpstreamTls {
    /// The files that are named.
    pub(crate) fn files(&self) -> impl Iterator<Item = (UpstreamFile, &Path)> {
        let all = [
            (UpstreamFile::Authorities, self.ca_file.as_path()),
            (UpstreamFile::Certificate, self.cert_file.as_path()),
            (UpstreamFile::Key, self.key_file.as_path()),
        ];
        all.into_iter()
            .filter(|(_, path)| !path.as_os_str().is_empty())
    }

    /// All of them as they are now. Blocks.
    pub(crate) fn read(&self) -> Snapshot {
        Snapshot::read(self.files().map(|(_, path)| path))
    }

    /// What is wrong with each of them (UPCH-4).
    pub(crate) fn faults(&self, files: &Snapshot) -> Vec<(UpstreamFile, FileFault)> {
        let fault = |(file, path): (UpstreamFile, &Path)| {
            let pem = files.bytes(path);
            let judged = match file {
                UpstreamFile::Key => pem.and_then(pki::private_key).map(drop),
                UpstreamFile::Certificate => pem.and_then(pki::certificates).map(drop),
                UpstreamFile::Authorities => pem
                    .and_then(pki::certificates)
                    .and_then(|found| pki::roots(&found).map(drop)),
            };
            judged.err().map(|fault| (file, fault))
        };
        self.files().filter_map(fault).collect()
    }
}

impl Upstream {
    /// The files of `[upstream.tls]` that have an end, where TLS is spoken.
    pub(crate) fn certificate_files(&self) -> impl Iterator<Item = (UpstreamFile, &Path)> {
        let files = self.tls.files().filter(|_| self.scheme == Scheme::Https);
        files.filter(|(file, _)| *file != UpstreamFile::Key)
    }
}

/// Judges the files of what is in force and adds what it finds to the problems. Blocks.
pub(super) fn judge(loader: &mut Loader<'_>, config: &Config) {
    let complete: Vec<(usize, &Listener, &ListenerTls)> = config
        .listeners
        .iter()
        .enumerate()
        .filter_map(|(index, listener)| Some((index, listener, listener.tls.as_ref()?)))
        .filter(|(_, _, tls)| tls.is_complete())
        .collect();
    let paths = complete.iter().flat_map(|(_, _, tls)| tls.paths().iter());
    let files = Snapshot::read(paths);
    let mut guarded = Vec::new();
    for (index, listener, tls) in &complete {
        match Credentials::of(tls.paths(), &files) {
            Ok(credentials) => guarded.push((*listener, credentials.authorities)),
            Err(faults) => {
                for fault in faults {
                    let key = numbered(&format!("listener.tls.{}", fault.key), *index);
                    let fix = "the listener could not serve: correct the path or the file";
                    refuse(loader, Refusal::ListenerTlsFiles, key, fault.reason, fix);
                }
            }
        }
    }
    if guarded.len() == complete.len() {
        identity(loader, config, &guarded);
    }
    if config.upstream.scheme == Scheme::Https {
        upstream(loader, &config.upstream.tls);
    }
    if config.node_listener().is_some() && config.cluster.tls.is_complete() {
        cluster(loader, &config.cluster.tls);
    }
}

fn cluster(loader: &mut Loader<'_>, tls: &ClusterTls) {
    let files = Snapshot::read(tls.paths().iter());
    for fault in Credentials::of(tls.paths(), &files)
        .err()
        .unwrap_or_default()
    {
        let key = format!("cluster.tls.{}", fault.key);
        let fix = "no peer could be reached: correct the path or the file";
        refuse(loader, Refusal::ClusterTlsFiles, key, fault.reason, fix);
    }
}

fn refuse(loader: &mut Loader<'_>, why: Refusal, key: String, fault: String, fix: &str) {
    let place = loader.place_of(without_item(&key));
    loader
        .problems
        .push(Problem::refuses(why, place, key, fault, fix));
}

/// The key of a list for the key of an item of it.
fn without_item(key: &str) -> &str {
    match key.rsplit_once('[') {
        Some((list, item)) if item.ends_with(']') => list,
        _ => key,
    }
}

type WithAuthorities<'a> = (
    &'a Listener,
    Vec<rustls::pki_types::CertificateDer<'static>>,
);

fn identity(loader: &mut Loader<'_>, config: &Config, listeners: &[WithAuthorities<'_>]) {
    let guarded: Vec<_> = listeners
        .iter()
        .filter(|(listener, _)| listener.guards_management())
        .map(|(listener, authorities)| Guarded {
            listener,
            authorities,
        })
        .collect();
    let lab = config.lab.allow_insecure_management;
    match ResolvedPeer::of(&config.management, &guarded, lab) {
        Ok(peer) => {
            for warning in peer.warnings {
                let place = loader.place_of("management.peer_identity");
                loader.problems.push(Problem::said_at_start(
                    place,
                    "management.peer_identity",
                    warning,
                ));
            }
        }
        Err(refusals) => {
            for refusal in refusals {
                let (key, fault) = (refusal.key.to_owned(), refusal.fault.to_owned());
                refuse(loader, refusal.why, key, fault, refusal.fix);
            }
        }
    }
}

fn upstream(loader: &mut Loader<'_>, tls: &UpstreamTls) {
    for (file, fault) in tls.faults(&tls.read()) {
        let key = file.key();
        if fault.is_no_file() {
            let fault = format!("names a file that {fault}");
            let fix = "name a file: a container runtime makes a directory where a mounted file is missing";
            refuse(loader, Refusal::UpstreamTlsFile, key.into(), fault, fix);
        } else {
            let place = loader.place_of(key);
            let fault =
                format!("names a file that {fault}; calls to the server fail until it is right");
            loader
                .problems
                .push(Problem::said_at_start(place, key, fault));
        }
    }
}
