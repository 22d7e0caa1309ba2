//! Keys of the file's shape that this version does not serve yet.
//!
//! Responsible for telling that such a key has no effect. None of them changes security or
//! reachability. Whoever builds the feature moves its lines to [`super::keys`]; when the table is
//! empty, this file goes.

use std::collections::BTreeMap;

use super::document::{Node, Raw};
use super::effective::Loader;
use super::problem::{Place, Problem};
use super::values::{Misfit, Range};

/// What fits a key. Checked today, so that a file does not break when the feature comes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Integer(Range),
    Flag,
}

/// A key that is known, checked and not served.
pub(super) struct Later {
    pub(super) path: &'static str,
    pub(super) kind: Kind,
}

/// The table whose unknown keys only warn.
pub(super) const LENIENT_TABLE: &str = "memory.reclaim.";

impl Kind {
    pub(super) fn judge(self, node: &Node) -> Result<(), Misfit> {
        let fits = match (self, &node.raw) {
            (Self::Integer(range), raw) => range.accept(raw).is_some(),
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
        }
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
            loader
                .problems
                .push(Problem::warns(place, path, fault, "it is ignored"));
        } else {
            let (table, key) = path.rsplit_once('.').unwrap_or(("", path));
            let row = idle.entry(table.to_owned());
            let (first, keys) = row.or_insert_with(|| (node.place.clone(), Vec::new()));
            *first = first.clone().min(node.place.clone());
            keys.push(key.to_owned());
        }
    }
}

const fn later(path: &'static str, kind: Kind) -> Later {
    Later { path, kind }
}

const fn integer(path: &'static str, min: u64, max: u64) -> Later {
    later(path, Kind::Integer(Range::new(min, max)))
}

const HOUR: u64 = 3_600_000;

/// The table. Listener keys have their path without a number.
pub(super) static LATER: &[Later] = &[
    later("memory.reclaim.enabled", Kind::Flag),
    integer("memory.reclaim.interval_ms", 100, HOUR),
    integer("memory.reclaim.followup_ms", 100, HOUR),
];
