//! What a reload changes: the configuration in force against the one that was loaded again.
//!
//! Responsible for the answer of each key, live or restart, and for the configuration that is in
//! force afterwards. Pure. Must never refuse anything: what is compared has been judged.

use super::document::numbered;
use super::keys::{KEYS, LISTENER_KEYS, ORIGIN_TABLE};
use super::schema::{ClientAuth, Config, Listener};
use super::slot::{Key, Reload};

/// The difference between two configurations, key by key.
#[derive(Debug, Clone, PartialEq)]
pub struct Changes {
    /// What is in force with them: live keys have the new value, all others the old one.
    pub config: Config,
    /// Paths of the keys that take effect now, in the order of the tables. Listeners count as in
    /// the new file.
    pub live: Vec<String>,
    /// Paths of the keys that stay as they are until a restart; `listener[2]` is a whole listener
    /// that came, `listener "name"` one that went.
    pub restart: Vec<String>,
}

/// Compares what is in force with what is wanted.
pub fn reload(in_force: &Config, wanted: &Config) -> Changes {
    let mut changes = Changes {
        config: in_force.clone(),
        live: Vec::new(),
        restart: Vec::new(),
    };
    let (mut merged, mut wanted) = (in_force.clone(), wanted.clone());
    for key in KEYS {
        let path = || key.path.to_owned();
        changes.compare(key, path, &mut merged, &mut wanted, key.reload);
    }
    // What the machine gives is no key; marks were judged against it.
    merged.memory.limit = wanted.memory.limit;
    changes.listeners(&mut merged.listeners, &wanted.listeners);
    changes.config = merged;
    changes
}

impl Changes {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty() && self.restart.is_empty()
    }

    fn compare<T>(
        &mut self,
        key: &Key<T>,
        path: impl FnOnce() -> String,
        merged: &mut T,
        wanted: &mut T,
        answer: Reload,
    ) {
        // Asking for a value makes its table.
        let same = match ((key.present)(merged), (key.present)(wanted)) {
            (false, false) => true,
            (true, true) => key.slot.show(merged) == key.slot.show(wanted),
            _ => false,
        };
        match answer {
            _ if same => {}
            Reload::Live => {
                key.slot.copy(merged, wanted);
                self.live.push(path());
            }
            Reload::Restart => self.restart.push(path()),
        }
    }

    /// Listeners are the same if their names are.
    fn listeners(&mut self, merged: &mut [Listener], wanted: &[Listener]) {
        for (index, wanted) in wanted.iter().enumerate() {
            match merged.iter_mut().find(|old| old.name == wanted.name) {
                Some(old) => self.listener(index, old, &mut wanted.clone()),
                None => self.restart.push(format!("listener[{index}]")),
            }
        }
        for old in merged.iter() {
            if !wanted.iter().any(|listener| listener.name == old.name) {
                self.restart.push(format!("listener \"{}\"", old.name));
            }
        }
    }

    fn listener(&mut self, index: usize, old: &mut Listener, wanted: &mut Listener) {
        // Which origins a listener may have follows from these (BOOT-8, LSN-11).
        let basis = |listener: &Listener| {
            let auth = listener.tls.as_ref().map(|tls| tls.client_auth);
            (listener.services.clone(), auth.unwrap_or(ClientAuth::None))
        };
        let moved = basis(old) != basis(wanted);
        for key in LISTENER_KEYS {
            let waits = moved && key.path.starts_with(ORIGIN_TABLE);
            let answer = if waits { Reload::Restart } else { key.reload };
            self.compare(key, || numbered(key.path, index), old, wanted, answer);
        }
    }
}
