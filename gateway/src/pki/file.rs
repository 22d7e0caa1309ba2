//! PEM files: what they hold, or what is wrong with them.
//!
//! Responsible for bounded reading and for one reason in plain words per fault (UPCH-4, UPCH-5).
//! Must never carry a path or a byte of the file in a fault: some of these files are keys.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use super::sha256;

/// Largest file that is looked at, in bytes; a real one has a few thousand.
const MAX_BYTES: u64 = 4 << 20;

/// Why a file is of no use. `Display` completes "the file ...".
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileFault {
    Missing,
    Denied,
    Directory,
    Special,
    Empty,
    TooLarge,
    NoCertificate,
    NoKey,
    NoRevocationList,
    /// A PEM block that is cut off or does not decode, or holds something else than it says.
    Damaged,
    /// A key of a kind that can't sign here.
    UnusableKey,
    /// What else the system says, as its POSIX name.
    Os(String),
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "does not exist (yet)",
            Self::Denied => "cannot be read (permission denied)",
            Self::Directory => "is a directory, not a file",
            Self::Special => "is not a regular file",
            Self::Empty => "is empty",
            Self::TooLarge => "is larger than 4 MiB",
            Self::NoCertificate => "contains no PEM certificate",
            Self::NoKey => "contains no PEM private key",
            Self::NoRevocationList => "contains no PEM revocation list",
            Self::Damaged => "contains a PEM block that is damaged",
            Self::UnusableKey => "contains a private key of a kind that is not supported",
            Self::Os(name) => return write!(f, "cannot be read ({name})"),
        })
    }
}

impl FileFault {
    /// Whether waiting can't cure it (BOOT-14).
    pub(crate) fn is_no_file(&self) -> bool {
        matches!(self, Self::Directory | Self::Special)
    }

    fn io(error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(Errno::NOENT) => Self::Missing,
            Some(Errno::ACCESS | Errno::PERM) => Self::Denied,
            Some(Errno::ISDIR) => Self::Directory,
            Some(Errno::IO) => Self::Os("eio".into()),
            Some(Errno::LOOP) => Self::Os("eloop".into()),
            Some(Errno::NOTDIR) => Self::Os("enotdir".into()),
            Some(Errno::NAMETOOLONG) => Self::Os("enametoolong".into()),
            Some(Errno::MFILE) => Self::Os("emfile".into()),
            Some(Errno::NFILE) => Self::Os("enfile".into()),
            Some(Errno::STALE) => Self::Os("estale".into()),
            Some(errno) => Self::Os(format!("errno {}", errno.raw_os_error())),
            None => Self::Os("unknown".into()),
        }
    }
}

/// The bytes of a file. Blocks.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, FileFault> {
    let kind = std::fs::metadata(path)
        .map_err(|error| FileFault::io(&error))?
        .file_type();
    if kind.is_dir() {
        return Err(FileFault::Directory);
    }
    // Opening a pipe would wait for its writer.
    if !kind.is_file() {
        return Err(FileFault::Special);
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| FileFault::io(&error))?;
    match bytes.len() as u64 {
        0 => Err(FileFault::Empty),
        1..=MAX_BYTES => Ok(bytes),
        _ => Err(FileFault::TooLarge),
    }
}

/// The certificates of a PEM file, at least one.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileFault> {
    all(pem, FileFault::NoCertificate)
}

/// The revocation lists of a PEM file, at least one.
pub(crate) fn revocation_lists(
    pem: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, FileFault> {
    all(pem, FileFault::NoRevocationList)
}

fn all<T: PemObject>(pem: &[u8], none: FileFault) -> Result<Vec<T>, FileFault> {
    let found: Result<Vec<T>, _> = T::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(none),
        Ok(found) => Ok(found),
        Err(_) => Err(FileFault::Damaged),
    }
}

/// The first private key of a PEM file.
pub(crate) fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, FileFault> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        pem::Error::NoItemsFound => FileFault::NoKey,
        _ => FileFault::Damaged,
    })
}

/// Files as they were at one moment, each read once.
#[derive(Default)]
pub(crate) struct Snapshot {
    files: BTreeMap<PathBuf, Result<Vec<u8>, FileFault>>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({} files)", self.files.len())
    }
}

impl Snapshot {
    /// Reads every path. Blocks.
    pub(crate) fn read<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let mut files = BTreeMap::new();
        for path in paths {
            files.entry(path.to_owned()).or_insert_with(|| read(path));
        }
        Self { files }
    }

    /// The bytes of one of the files; one that was not asked for is missing.
    pub(crate) fn bytes(&self, path: &Path) -> Result<&[u8], FileFault> {
        match self.files.get(path) {
            Some(Ok(bytes)) => Ok(bytes),
            Some(Err(fault)) => Err(fault.clone()),
            None => Err(FileFault::Missing),
        }
    }

    /// What tells this state of some files from another: their contents and their faults.
    pub(crate) fn digest<'a>(&self, paths: impl IntoIterator<Item = &'a Path>) -> [u8; 32] {
        let mut parts = Vec::new();
        for path in paths {
            match self.bytes(path) {
                Ok(bytes) => parts.extend(sha256(bytes)),
                Err(fault) => parts.extend(sha256(fault.to_string().as_bytes())),
            }
        }
        sha256(&parts)
    }
}
