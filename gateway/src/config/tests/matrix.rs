//! The matrix of refusals, against the lists of what can refuse.

#[path = "../../../tests/refusals/matrix/mod.rs"]
mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::super::keys::{KEYS, LISTENER_KEYS};
use super::super::slot::Bad;
use super::super::{Effect, Problem, Refusal, Source, load};
use crate::pki::testing::Directory;

/// What each row is refused for, and the line that it wants.
fn found() -> BTreeMap<&'static str, (Vec<Problem>, String)> {
    let directory = Directory::new();
    rows::certificates(directory.path("").as_path());
    let refuse = |row: &rows::Row| {
        let ready = row.prepare(directory.path("").as_path());
        let mut source = match Source::read(Some(&ready.path)) {
            Ok(source) => source,
            Err(refused) => return (refused, ready.line),
        };
        let variables = row.variables.iter();
        source.environment = variables
            .map(|(name, value)| ((*name).into(), OsString::from_vec(value.clone())))
            .collect();
        let refused = load(&source).map(|_| row.name);
        (refused.expect_err(row.name), ready.line)
    };
    let rows = rows::rows();
    let found = rows.iter().map(|row| (row.name, refuse(row)));
    found
        .map(|(name, (refused, line))| (name, (refused.refusals().cloned().collect(), line)))
        .collect()
}

fn refusal(problem: &Problem) -> Refusal {
    match problem.effect {
        Effect::Refuses(why) => why,
        Effect::Warns | Effect::SaidAtStart => unreachable!("only refusals are kept"),
    }
}

/// The path of a key as the tables have it.
fn plain(key: &str) -> String {
    let mut plain = String::new();
    let mut inside = false;
    for c in key.chars() {
        inside = (inside || c == '[') && c != ']';
        if !inside && c != ']' {
            plain.push(c);
        }
    }
    plain
}

#[test]
fn boot_19_each_row_is_refused_for_one_thing() {
    let found = found();
    assert_eq!(found.len(), rows::rows().len(), "names are used once");
    for (name, (problems, line)) in found {
        let lines: Vec<_> = problems.iter().filter_map(Problem::critical_line).collect();
        assert_eq!(lines, [format!("Refusing to start: {line}")], "{name}");
    }
}

#[test]
fn boot_19_every_refusal_has_a_row() {
    let found: BTreeSet<_> = found()
        .values()
        .flat_map(|(problems, _)| problems)
        .map(refusal)
        .collect();
    let missing: Vec<_> = Refusal::ALL
        .iter()
        .filter(|why| !found.contains(why))
        .collect();
    assert_eq!(missing, [&Refusal::NoListeners; 0]);
}

#[test]
fn boot_19_every_key_that_refuses_a_bad_value_has_a_row() {
    let found = found();
    let rows: BTreeSet<_> = found
        .values()
        .flat_map(|(problems, _)| problems)
        .map(|problem| (plain(&problem.key), refusal(problem)))
        .collect();
    let of = |path: &'static str, bad: Bad| match bad {
        Bad::Refuse(why) => Some((path.to_owned(), why)),
        Bad::DefaultPort => Some((path.to_owned(), Refusal::BadAddress)),
        Bad::Default => None,
    };
    let keys = KEYS.iter().filter_map(|key| of(key.path, key.bad));
    let listener = LISTENER_KEYS.iter().filter_map(|key| of(key.path, key.bad));
    for wanted in keys.chain(listener) {
        assert!(rows.contains(&wanted), "{wanted:?} has no row");
    }
}
