//! What can be wrong with a configuration, and how it is told.
//!
//! Responsible for the wording: every problem names the key, the place, the shape of the value,
//! what is allowed and the fix. Must never carry a string value: only numbers and booleans are
//! shown as they are, anything else by type and size (BOOT-11, BOOT-20).

use std::fmt;
use std::sync::Arc;

use super::refusal::Refusal;

/// What a problem does to the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// The gateway refuses to start; the defect term goes into the CRITICAL line (BOOT-1 to -24).
    Refuses(Refusal),
    /// The gateway starts with the value that the problem names (BOOT-20).
    Warns,
    /// The gateway starts, and logs a warning of its own about the state that it finds then.
    SaidAtStart,
}

/// Where a problem was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In the file; line and column count from 1, the column in bytes.
    At {
        /// The path as it was given.
        path: Arc<str>,
        /// Line.
        line: usize,
        /// Column.
        column: usize,
    },
    /// In the file as a whole.
    File(Arc<str>),
    /// In an environment variable.
    Variable(&'static str),
    /// Nowhere in particular: there is no file, or the key itself is the place.
    Nowhere,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At { path, line, column } => write!(f, "{path}:{line}:{column}: "),
            Self::File(path) => write!(f, "{path}: "),
            Self::Variable(name) => write!(f, "{name}: "),
            Self::Nowhere => Ok(()),
        }
    }
}

/// One thing that is wrong. `Display` is one line without a level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What it does to the start.
    pub effect: Effect,
    /// Where it is.
    pub place: Place,
    /// Full path of the key, `listener[1].limits.max_connections`; listeners count from 0. The
    /// variable's name when it stands for no key.
    pub key: String,
    /// The value's shape and what is allowed, `is 0, not an integer from 1 to 1000`.
    pub fault: String,
    /// What happens instead, or what to do; may be empty.
    pub fix: String,
}

impl Problem {
    pub(super) fn refuses(
        why: Refusal,
        place: Place,
        key: impl Into<String>,
        fault: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (key, fault, fix) = (key.into(), fault.into(), fix.into());
        Self {
            effect: Effect::Refuses(why),
            place,
            key,
            fault,
            fix,
        }
    }

    pub(super) fn warns(
        place: Place,
        key: impl Into<String>,
        fault: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (key, fault, fix) = (key.into(), fault.into(), fix.into());
        Self {
            effect: Effect::Warns,
            place,
            key,
            fault,
            fix,
        }
    }

    /// A warning that a start words itself.
    pub(super) fn said_at_start(
        place: Place,
        key: impl Into<String>,
        fault: impl Into<String>,
    ) -> Self {
        Self {
            effect: Effect::SaidAtStart,
            ..Self::warns(place, key, fault, "")
        }
    }

    /// Whether the gateway can't start with it.
    pub fn is_refusal(&self) -> bool {
        matches!(self.effect, Effect::Refuses(_))
    }

    /// The CRITICAL line of a refusal, without the level (BOOT-19); `None` for a warning.
    pub fn critical_line(&self) -> Option<String> {
        match self.effect {
            Effect::Refuses(why) => Some(format!("Refusing to start: {why}: {self}")),
            Effect::Warns | Effect::SaidAtStart => None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{} {}", self.place, self.key, self.fault)?;
        if self.fix.is_empty() {
            Ok(())
        } else {
            write!(f, "; {}", self.fix)
        }
    }
}

/// A configuration that the gateway refuses to start with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} problem(s) in the configuration", problems.len())]
pub struct Refused {
    /// Everything that was found, warnings too, in the order of the file. At least one refuses.
    pub problems: Vec<Problem>,
}

impl Refused {
    pub(super) fn because(problem: Problem) -> Self {
        Self {
            problems: vec![problem],
        }
    }

    /// The problems that refuse the start.
    pub fn refusals(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter().filter(|problem| problem.is_refusal())
    }
}
