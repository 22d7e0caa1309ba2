//! Keys of the file's shape that this version does not serve yet.
//!
//! Responsible for one promise: nothing that changes security or reachability is ignored. Such a
//! key refuses the start; one that only tunes a missing feature warns. Whoever builds the feature
//! moves its lines to [`super::keys`]; when the table is empty, this file goes.

use std::collections::BTreeMap;

use super::document::{Node, Raw};
use super::effective::Loader;
use super::problem::{Place, Problem};
use super::refusal::Refusal;
use super::slot::Bad;
use super::values::{Misfit, Range};

/// How a refusal names the lack.
pub(super) const NOT_SERVED: &str = "not served by this version yet";

/// What fits a key. Checked today, so that a file does not break when the feature comes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Integer(Range),
    Flag,
    /// Above 0, below 1.
    Fraction,
    /// Above 0.
    Ratio,
    Words(&'static [&'static str]),
}

/// What a value that fits does.
#[derive(Debug, Clone, Copy)]
pub(super) enum Say {
    /// Nothing when it is this word: that is what the gateway does anyway. Anything else refuses
    /// the start.
    RefuseUnless(&'static str),
    /// One warning per table, whatever the value.
    NoEffect,
}

/// A key that is known, checked and not served.
pub(super) struct Later {
    pub(super) path: &'static str,
    pub(super) kind: Kind,
    pub(super) say: Say,
    pub(super) bad: Bad,
    pub(super) env: Option<&'static str>,
}

/// The table whose unknown keys only warn.
pub(super) const LENIENT_TABLE: &str = "memory.reclaim.";

impl Kind {
    pub(super) fn judge(self, node: &Node) -> Result<(), Misfit> {
        let fits = match (self, &node.raw) {
            (Self::Integer(range), raw) => range.accept(raw).is_some(),
            (Self::Fraction, Raw::Float(value)) => *value > 0.0 && *value < 1.0,
            (Self::Ratio, Raw::Float(value)) => *value > 0.0 && value.is_finite(),
            (Self::Ratio, Raw::Integer(value)) => *value > 0,
            (Self::Words(words), Raw::Text(text)) => words.contains(&text.as_str()),
            (Self::Flag, Raw::Flag(_)) => true,
            _ => false,
        };
        if fits {
            Ok(())
        } else {
            Err(Misfit::new(node, self.allowed()))
        }
    }

    fn allowed(self) -> String {
        match self {
            Self::Integer(range) => range.to_string(),
            Self::Flag => "true or false".into(),
            Self::Fraction => "a fraction between 0 and 1".into(),
            Self::Ratio => "a number above 0".into(),
            Self::Words(words) => {
                let quoted: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
                quoted.join(" or ")
            }
        }
    }

    /// The value of a variable, in the type that fits here.
    pub(super) fn parse_variable(self, text: &str) -> Option<Raw> {
        match self {
            Self::Integer(_) => text.parse().ok().map(Raw::Integer),
            _ => Some(Raw::Text(text.to_owned())),
        }
    }
}

impl Say {
    /// Whether this value refuses the start.
    pub(super) fn refuses(self, raw: &Raw) -> bool {
        match self {
            Self::RefuseUnless(word) => raw.text() != Some(word),
            Self::NoEffect => false,
        }
    }

    /// Whether a value is told to have no effect.
    pub(super) fn is_idle(self) -> bool {
        matches!(self, Self::NoEffect)
    }
}

/// Judges every key of the table that is set.
pub(super) fn judge(loader: &mut Loader<'_>) {
    let mut idle = Idle::new();
    for entry in LATER {
        for path in loader.document.paths(entry.path) {
            if let Some(node) = loader.document.values.get(&path).cloned() {
                entry.judge(loader, &path, &node, &mut idle);
            }
        }
        let variable = entry.env.and_then(|name| {
            let (parse, allowed) = (|text: &str| entry.kind.parse_variable(text), entry.kind);
            loader.variable(name, entry.path, entry.bad, parse, &allowed.allowed())
        });
        if let Some(node) = variable {
            entry.judge(loader, entry.path, &node, &mut idle);
        }
    }
    for (table, (place, keys)) in idle {
        let fault = format!("has no effect in this version ({})", keys.join(", "));
        loader
            .problems
            .push(Problem::warns(place, table, fault, ""));
    }
}

/// Tables with keys that have no effect: where the first one is, and their names.
type Idle = BTreeMap<String, (Place, Vec<String>)>;

impl Later {
    fn judge(&self, loader: &mut Loader<'_>, path: &str, node: &Node, idle: &mut Idle) {
        if let Err(misfit) = self.kind.judge(node) {
            let Misfit { place, fault, .. } = misfit;
            loader.problems.push(match self.bad {
                Bad::Refuse(why) => Problem::refuses(why, place, path, fault, "correct it"),
                _ => Problem::warns(place, path, fault, "it is ignored"),
            });
        } else if self.say.refuses(&node.raw) {
            let fault = format!("has a value that is {NOT_SERVED}");
            loader.problems.push(Problem::refuses(
                Refusal::NotServedYet,
                node.place.clone(),
                path,
                fault,
                "delete it",
            ));
        } else if self.say.is_idle() {
            let (table, key) = path.rsplit_once('.').unwrap_or(("", path));
            let row = idle.entry(table.to_owned());
            let (first, keys) = row.or_insert_with(|| (node.place.clone(), Vec::new()));
            *first = first.clone().min(node.place.clone());
            keys.push(key.to_owned());
        }
    }
}

const fn later(path: &'static str, kind: Kind, say: Say) -> Later {
    Later {
        path,
        kind,
        say,
        bad: Bad::Default,
        env: None,
    }
}

impl Later {
    const fn env(mut self, name: &'static str) -> Self {
        self.env = Some(name);
        self
    }

    const fn bad(mut self, why: Refusal) -> Self {
        self.bad = Bad::Refuse(why);
        self
    }
}

const fn integer(path: &'static str, min: u64, max: u64) -> Later {
    later(path, Kind::Integer(Range::new(min, max)), Say::NoEffect)
}

const HOUR: u64 = 3_600_000;

/// The table. Listener keys have their path without a number.
pub(super) static LATER: &[Later] = &[
    later(
        "node.visibility",
        Kind::Words(&["public", "private"]),
        Say::RefuseUnless("public"),
    )
    .env("YUZU_GW_VISIBILITY")
    .bad(Refusal::BadVisibility),
    later("memory.reclaim.enabled", Kind::Flag, Say::NoEffect),
    integer("memory.reclaim.interval_ms", 100, HOUR),
    integer("memory.reclaim.followup_ms", 100, HOUR),
    integer("shift.grace_ms", 0, HOUR),
    integer("shift.max_per_second", 1, 1_000_000),
    later("shift.cpu_high", Kind::Fraction, Say::NoEffect),
    later("shift.imbalance", Kind::Ratio, Say::NoEffect),
    integer("shift.min_sessions", 0, 10_000_000),
];
