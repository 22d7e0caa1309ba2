//! A bound on the values of the label `plugin` (CMD-23).
//!
//! Responsible for mapping what a caller wrote to a label value. Must never let a caller make more
//! than [`MAX_PLUGINS`] series, nor put text of its choice into the exposition beyond a plain name.

use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::ArcSwap;

/// Distinct plugin names that get a label value of their own.
pub const MAX_PLUGINS: usize = 64;
/// The label value of every other plugin name.
pub const OTHER: &str = "other";
const MAX_NAME_BYTES: usize = 64;

/// The plugin names that have a label value, first come, first served, for the life of the
/// process.
#[derive(Debug)]
pub struct PluginLabels {
    known: ArcSwap<HashSet<Arc<str>>>,
    other: Arc<str>,
}

impl PluginLabels {
    /// No name is known yet.
    pub fn new() -> Self {
        Self {
            known: ArcSwap::default(),
            other: OTHER.into(),
        }
    }

    /// The label value for `plugin`: the name itself for the first 64 names, else [`OTHER`], as
    /// for a name that is empty, longer than 64 bytes or not made of ASCII letters, digits and
    /// `_-.:/`.
    ///
    /// Ask once per SendCommand and keep the answer: a known name costs one hash, no lock.
    pub fn label(&self, plugin: &str) -> Arc<str> {
        if !is_plain(plugin) || plugin == OTHER {
            return self.other.clone();
        }
        if let Some(label) = self.find(plugin) {
            return label;
        }
        if self.known.load().len() < MAX_PLUGINS {
            self.admit(plugin);
        }
        self.find(plugin).unwrap_or_else(|| self.other.clone())
    }

    fn find(&self, plugin: &str) -> Option<Arc<str>> {
        self.known.load().get(plugin).cloned()
    }

    fn admit(&self, plugin: &str) {
        let name: Arc<str> = plugin.into();
        self.known.rcu(|known| {
            let mut next = HashSet::clone(known);
            if next.len() < MAX_PLUGINS {
                next.insert(name.clone());
            }
            next
        });
    }
}

impl Default for PluginLabels {
    fn default() -> Self {
        Self::new()
    }
}

fn is_plain(plugin: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&plugin.len()) && plugin.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn cmd_23_the_first_64_names_have_their_own_label_and_further_ones_are_other() {
        let labels = PluginLabels::new();
        for n in 0..64 {
            assert_eq!(
                &*labels.label(&format!("plugin-{n}")),
                format!("plugin-{n}")
            );
        }
        assert_eq!(&*labels.label("plugin-64"), "other");
        assert_eq!(&*labels.label("plugin-65"), "other");
        assert_eq!(&*labels.label("plugin-0"), "plugin-0");
        assert_eq!(&*labels.label("plugin-63"), "plugin-63");
    }

    #[test]
    fn cmd_23_a_name_that_is_no_plain_label_is_other_and_takes_no_place() {
        let labels = PluginLabels::new();
        let long = "x".repeat(65);
        for name in [
            "",
            "two words",
            "quo\"te",
            "new\nline",
            "nul\0",
            "\u{fc}mlaut",
            &long,
            "other",
        ] {
            assert_eq!(&*labels.label(name), "other", "{name:?}");
        }
        assert_eq!(labels.known.load().len(), 0);
        let longest = "x".repeat(64);
        assert_eq!(*labels.label(&longest), *longest);
        assert_eq!(
            &*labels.label("vendor/os.info_v2:x-1"),
            "vendor/os.info_v2:x-1"
        );
    }

    #[test]
    fn cmd_23_callers_that_race_for_the_last_place_never_pass_the_bound() {
        for _ in 0..200 {
            let labels = PluginLabels::new();
            for n in 0..63 {
                labels.label(&format!("plugin-{n}"));
            }
            let start = Barrier::new(4);
            thread::scope(|scope| {
                for caller in 0..4 {
                    let (labels, start) = (&labels, &start);
                    scope.spawn(move || {
                        start.wait();
                        labels.label(&format!("late-{caller}"));
                    });
                }
            });
            assert_eq!(labels.known.load().len(), 64);
        }
    }
}
