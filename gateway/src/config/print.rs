//! The configuration in force as TOML, each value with where it came from.
//!
//! Responsible for text that loads to the same configuration. Must never print a key that is not
//! in the tables of [`super::keys`].

use std::fmt::Write;

use super::document::numbered;
use super::effective::{Loaded, Origin};
use super::keys::{KEYS, LISTENER_KEYS};
use super::slot::Key;

/// Where the comments begin, in characters, if the value is not longer.
const COMMENT_COLUMN: usize = 48;

impl Loaded {
    /// The configuration in force as TOML; a comment behind each value names its origin.
    pub fn to_toml(&self) -> String {
        let mut config = self.config.clone();
        let mut out = String::from("# The effective configuration of yuzu-gateway.\n");
        let (node, rest): (Vec<_>, Vec<_>) = KEYS.iter().partition(|k| k.path.starts_with("node."));
        self.tables(&mut out, &node, &mut config, str::to_owned, "");
        for (index, listener) in self.config.listeners.iter().enumerate() {
            let keys: Vec<_> = LISTENER_KEYS.iter().collect();
            let path = |path: &str| numbered(path, index);
            self.tables(&mut out, &keys, &mut listener.clone(), path, "listener");
        }
        self.tables(&mut out, &rest, &mut config, str::to_owned, "");
        out
    }

    /// `list` is the table that is written as an item of a list.
    fn tables<T>(
        &self,
        out: &mut String,
        keys: &[&Key<T>],
        target: &mut T,
        path_of: impl Fn(&str) -> String,
        list: &str,
    ) {
        let mut table = "";
        for key in keys {
            if !(key.present)(target) {
                continue;
            }
            let (parent, name) = key.path.rsplit_once('.').unwrap_or(("", key.path));
            if parent != table {
                table = parent;
                let header = if parent == list {
                    format!("[[{parent}]]")
                } else {
                    format!("[{parent}]")
                };
                out.push_str(&format!("\n{header}\n"));
            }
            let line = match key.slot.show(target) {
                value if value.is_empty() => format!("# {name} is left out"),
                value => format!("{name} = {value}"),
            };
            let origin = self
                .origins
                .get(&path_of(key.path))
                .unwrap_or(&Origin::Default);
            let origin = one_line(&origin.to_string());
            writeln!(out, "{line:<COMMENT_COLUMN$} # {origin}").expect("a string takes it all");
        }
    }
}

/// A path in a comment must not end the comment.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// A TOML basic string.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                write!(out, "\\U{:08X}", u32::from(c)).expect("a string takes it all");
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A TOML array of basic strings.
pub(super) fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<_> = items.map(|item| quoted(&item)).collect();
    format!("[{}]", items.join(", "))
}
