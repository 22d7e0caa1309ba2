//! The certificate, key, CA and revocation lists of one side of a TLS connection.
//!
//! Responsible for finding every fault at once, each by the key that names the file. Must never
//! read a file itself: it judges a [`Snapshot`].

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::sign::CertifiedKey;
use webpki::{CertRevocationList, OwnedCertRevocationList};

use super::file::{self, FileFault, Snapshot};
use super::provider;

/// Where the files of a listener are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paths<'a> {
    pub(crate) certificate: &'a Path,
    pub(crate) key: &'a Path,
    pub(crate) authorities: &'a Path,
    pub(crate) revocation_lists: &'a [PathBuf],
    /// Whether more than one CA is a fault: each of them could issue any identity.
    pub(crate) single_authority: bool,
}

impl<'a> Paths<'a> {
    /// All of them.
    pub(crate) fn iter(self) -> impl Iterator<Item = &'a Path> {
        [self.certificate, self.key, self.authorities]
            .into_iter()
            .chain(self.revocation_lists.iter().map(PathBuf::as_path))
    }
}

/// What a listener serves TLS with.
#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    /// The own certificate with its key.
    pub(crate) own: Arc<CertifiedKey>,
    /// The CA certificates as they stand in the file.
    pub(crate) authorities: Vec<CertificateDer<'static>>,
    /// The same, as clients are verified by.
    pub(crate) roots: Arc<RootCertStore>,
    /// As the handshake takes them.
    pub(crate) revocation_lists: Vec<CertificateRevocationListDer<'static>>,
    /// The same, to be asked for a serial.
    pub(crate) revoked: Arc<[CertRevocationList<'static>]>,
}

/// What is wrong with one of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CredentialFault {
    /// The last part of the configuration key, `cert_file` or `crl_files[1]`.
    pub(crate) key: String,
    /// The reason, a clause behind the key.
    pub(crate) reason: String,
}

impl CredentialFault {
    fn file(key: impl Into<String>, fault: &FileFault) -> Self {
        Self {
            key: key.into(),
            reason: format!("names a file that {fault}"),
        }
    }
}

impl fmt::Display for CredentialFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key, self.reason)
    }
}

impl Credentials {
    /// Everything that the files hold.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub(crate) fn of(paths: Paths<'_>, files: &Snapshot) -> Result<Self, Vec<CredentialFault>> {
        let mut faults = Vec::new();
        let own = own(paths, files).map_err(|found| faults.extend(found));
        let authorities = files
            .bytes(paths.authorities)
            .and_then(file::certificates)
            .and_then(|found| Ok((roots(&found)?, found)))
            .map_err(|fault| faults.push(CredentialFault::file("ca_file", &fault)));
        if let Ok((_, found)) = &authorities
            && paths.single_authority
            && found.len() != 1
        {
            let count = found.len();
            faults.push(CredentialFault {
                key: "ca_file".into(),
                reason: format!("names a file of {count} certificates, and an identity needs one"),
            });
        }
        let lists = revocation_lists(paths, files).map_err(|found| faults.extend(found));
        match (own, authorities, lists) {
            (Ok(own), Ok((roots, authorities)), Ok((revocation_lists, revoked)))
                if faults.is_empty() =>
            {
                Ok(Self {
                    own,
                    authorities,
                    roots: Arc::new(roots),
                    revocation_lists,
                    revoked: revoked.into(),
                })
            }
            _ => Err(faults),
        }
    }
}

fn own(paths: Paths<'_>, files: &Snapshot) -> Result<Arc<CertifiedKey>, Vec<CredentialFault>> {
    let certificate = files
        .bytes(paths.certificate)
        .and_then(|pem| file::certificates(pem).map(|_| pem));
    let key = files
        .bytes(paths.key)
        .and_then(|pem| file::private_key(pem).map(|_| pem));
    match (certificate, key) {
        (Ok(certificate), Ok(key)) => certified_key(certificate, key).map_err(|fault| vec![fault]),
        (certificate, key) => {
            let faults = [("cert_file", certificate.err()), ("key_file", key.err())];
            let faults = faults
                .into_iter()
                .filter_map(|(key, fault)| fault.map(|fault| CredentialFault::file(key, &fault)));
            Err(faults.collect())
        }
    }
}

/// A certificate chain with its key.
///
/// # Errors
/// The file that is at fault; a key of another certificate is the key's fault.
pub(crate) fn certified_key(
    certificate_pem: &[u8],
    key_pem: &[u8],
) -> Result<Arc<CertifiedKey>, CredentialFault> {
    let chain = file::certificates(certificate_pem)
        .map_err(|fault| CredentialFault::file("cert_file", &fault))?;
    let at_key = |fault: FileFault| CredentialFault::file("key_file", &fault);
    let key = file::private_key(key_pem).map_err(at_key)?;
    let key = provider()
        .key_provider
        .load_private_key(key)
        .map_err(|_| at_key(FileFault::UnusableKey))?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            Ok(Arc::new(certified))
        }
        Err(rustls::Error::InconsistentKeys(_)) => Err(CredentialFault {
            key: "key_file".into(),
            reason: "names a key that does not belong to the certificate of cert_file".into(),
        }),
        Err(_) => Err(CredentialFault::file("cert_file", &FileFault::Damaged)),
    }
}

/// A set of trusted CA certificates.
pub(crate) fn roots(certificates: &[CertificateDer<'static>]) -> Result<RootCertStore, FileFault> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots
            .add(certificate.clone())
            .map_err(|_| FileFault::Damaged)?;
    }
    Ok(roots)
}

type RevocationLists = (
    Vec<CertificateRevocationListDer<'static>>,
    Vec<CertRevocationList<'static>>,
);

fn revocation_lists(
    paths: Paths<'_>,
    files: &Snapshot,
) -> Result<RevocationLists, Vec<CredentialFault>> {
    let (mut lists, mut parsed, mut faults) = (Vec::new(), Vec::new(), Vec::new());
    for (index, path) in paths.revocation_lists.iter().enumerate() {
        let found = files.bytes(path).and_then(file::revocation_lists);
        let read = found.and_then(|found| {
            let each = found
                .iter()
                .map(|list| OwnedCertRevocationList::from_der(list));
            let each: Result<Vec<_>, _> = each.collect();
            Ok((each.map_err(|_| FileFault::Damaged)?, found))
        });
        match read {
            Ok((each, found)) => {
                parsed.extend(each.into_iter().map(CertRevocationList::Owned));
                lists.extend(found);
            }
            Err(fault) => {
                let key = format!("crl_files[{index}]");
                faults.push(CredentialFault::file(key, &fault));
            }
        }
    }
    match faults.is_empty() {
        true => Ok((lists, parsed)),
        false => Err(faults),
    }
}
