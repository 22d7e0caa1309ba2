//! Where a configuration comes from: a file and the environment, as plain values.
//!
//! Responsible for the only reads of the outside world in this room. Must never interpret what
//! it read: that is [`super::load`], which tests call without a file or a process environment.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::document::Lines;
use super::memory_limit::Machine;
use super::problem::{Place, Problem, Refused};
use super::refusal::Refusal;

/// Largest file that is read, in bytes. A real one has about 8 KiB.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What a configuration is made from.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// The file; without one the defaults are in force.
    pub file: Option<SourceFile>,
    /// The environment. Only names that begin with `YUZU_GW_` are looked at.
    pub environment: BTreeMap<OsString, OsString>,
    /// This host's name, for an empty `node.name`.
    pub host_name: Option<String>,
    /// What the machine gives this process.
    pub machine: Machine,
}

/// A configuration file that was read.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// Its path as it was given, for messages.
    pub path: Arc<str>,
    /// Its text.
    pub text: String,
}

impl Source {
    /// Reads the file, the process's environment and the host's name.
    ///
    /// # Errors
    ///
    /// The file can't be read, has more than 1 MiB or is not UTF-8.
    pub fn read(path: Option<&Path>) -> Result<Self, Refused> {
        Ok(Self {
            file: path.map(read_file).transpose()?,
            environment: std::env::vars_os()
                .filter(|(name, _)| is_ours(name))
                .collect(),
            host_name: host_name(),
            machine: Machine::read(Path::new("/")),
        })
    }
}

/// Whether a variable's name begins with `YUZU_GW_`.
pub(super) fn is_ours(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"YUZU_GW_")
}

fn read_file(path: &Path) -> Result<SourceFile, Refused> {
    let shown: Arc<str> = path.display().to_string().into();
    let unreadable = |fault: String| {
        let place = Place::Nowhere;
        Problem::refuses(
            Refusal::UnreadableFile,
            place,
            shown.to_string(),
            fault,
            "name a readable file",
        )
    };
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| Refused::because(unreadable(format!("can't be read: {error}"))))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let fault = format!("has more than {MAX_FILE_BYTES} bytes");
        return Err(Refused::because(unreadable(fault)));
    }
    String::from_utf8(bytes)
        .map(|text| SourceFile {
            path: shown.clone(),
            text,
        })
        .map_err(|error| {
            let place =
                Lines::new(&shown, error.as_bytes()).place(error.utf8_error().valid_up_to());
            let fault = "is not UTF-8 here";
            Refused::because(Problem::refuses(
                Refusal::NotText,
                place,
                "the file",
                fault,
                "save it as UTF-8",
            ))
        })
}

fn host_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_str().ok()?.to_owned();
    (!name.is_empty()).then_some(name)
}
