//! From what was written to what is in force: defaults, file, variables, derived values.
//!
//! Responsible for the order: a default is replaced by the file, the file by the environment, and
//! values that depend on others come last. Must never refuse for more than one key at a time:
//! that is [`super::refusals`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::document::{self, Document, Node, Raw};
use super::keys::{self, KEYS, LISTENER_KEYS};
use super::problem::{Place, Problem, Refused};
use super::refusal::Refusal;
use super::schema::{AGENT_ADDRESS, Config, Listener, MANAGEMENT_ADDRESS, NODE_ADDRESS, Service};
use super::slot::{Bad, Key, Slot};
use super::source::Source;
use super::values::{self, Misfit};
use super::{environment, files, later, refusals};

/// Where a value in force came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it, or what was set did not fit.
    Default,
    /// The file.
    File {
        /// The path as it was given.
        path: Arc<str>,
        /// Line, from 1.
        line: usize,
    },
    /// An environment variable.
    Variable(&'static str),
    /// Worked out from something else.
    Derived(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{path}:{line}"),
            Self::Variable(name) => write!(f, "env {name}"),
            Self::Derived(from) => f.write_str(from),
        }
    }
}

/// A configuration that the gateway can start with.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// What is in force.
    pub config: Config,
    /// In the order of the file. Those that [`Effect::SaidAtStart`] are for whoever only looks.
    ///
    /// [`Effect::SaidAtStart`]: super::Effect::SaidAtStart
    pub warnings: Vec<Problem>,
    /// By full path; a key that is absent has its default.
    pub origins: BTreeMap<String, Origin>,
}

/// Turns a source into the configuration in force.
///
/// # Errors
///
/// The gateway must not start with it: everything that is wrong, warnings included.
pub fn load(source: &Source) -> Result<Loaded, Refused> {
    let (document, problems) = source.file.as_ref().map(document::read).unwrap_or_default();
    let mut loader = Loader {
        source,
        document,
        problems,
        origins: BTreeMap::new(),
    };
    let mut config = loader.config();
    loader.derive(&mut config);
    later::judge(&mut loader);
    environment::judge(&mut loader, &config);
    if !loader.document.broken {
        refusals::judge(&mut loader, &config);
        files::judge(&mut loader, &config);
    }

    let Loader {
        mut problems,
        origins,
        ..
    } = loader;
    problems.sort_by(|a, b| a.place.cmp(&b.place));
    if problems.iter().any(Problem::is_refusal) {
        return Err(Refused { problems });
    }
    Ok(Loaded {
        config,
        warnings: problems,
        origins,
    })
}

/// A configuration in the making.
pub(super) struct Loader<'a> {
    pub(super) source: &'a Source,
    pub(super) document: Document,
    pub(super) problems: Vec<Problem>,
    pub(super) origins: BTreeMap<String, Origin>,
}

impl Loader<'_> {
    fn config(&mut self) -> Config {
        let mut config = Config::default();
        config.node.name.clear();
        config.notify.pending_max = 0;
        config.upstream.replay_concurrency = 0;
        config.memory.limit = self.source.machine.memory;
        if self.source.file.is_some() {
            // A file says itself what listens and where the server is (BOOT-1, BOOT-12).
            config.upstream.endpoints.clear();
            config.listeners = (0..self.document.listeners)
                .map(|i| self.listener(i))
                .collect();
        }
        for key in KEYS {
            self.apply(key, key.path.to_owned(), &mut config);
        }
        environment::listener_ports(self, &mut config.listeners);
        config
    }

    fn listener(&mut self, index: usize) -> Listener {
        let services = self
            .document
            .values
            .get(&document::numbered("listener.services", index));
        let services = services
            .and_then(|node| values::services(node).ok())
            .unwrap_or_default();
        let mut listener = match services[..] {
            [Service::Management] => Listener::management(MANAGEMENT_ADDRESS),
            [Service::Node] => Listener::node(NODE_ADDRESS),
            _ => Listener::agent(AGENT_ADDRESS),
        };
        listener.services.clear();
        for key in LISTENER_KEYS {
            self.apply(key, document::numbered(key.path, index), &mut listener);
        }
        listener
    }

    /// Gives one key its value: from the file, then from the environment.
    fn apply<T: Clone>(&mut self, key: &Key<T>, path: String, target: &mut T) {
        let variable = key.env.and_then(|name| {
            let parse = |text: &str| key.slot.parse_variable(text);
            self.variable(name, &path, key.bad, parse, &key.slot.allowed())
        });
        let untouched = variable.is_some().then(|| target.clone());
        if let Some(node) = self.document.values.get(&path).cloned() {
            self.put(key, &path, target, &node);
        }
        let (Some(node), Some(untouched)) = (variable, untouched) else {
            return;
        };
        if let (Slot::Address(at), Raw::Integer(port)) = (&key.slot, &node.raw) {
            at(target).set_port(u16::try_from(*port).unwrap_or_default());
            self.originates(path, &node.place);
        } else {
            // A variable that does not fit leaves the default, as a bad value of the file does.
            *target = untouched;
            self.origins.remove(&path);
            self.put(key, &path, target, &node);
        }
    }

    fn put<T>(&mut self, key: &Key<T>, path: &str, target: &mut T, node: &Node) {
        match key.slot.put(target, node) {
            Ok(()) => self.originates(path.to_owned(), &node.place),
            Err(misfits) => {
                for misfit in misfits {
                    let problem = does_not_fit(key, path, target, node, misfit);
                    self.problems.push(problem);
                }
            }
        }
    }

    pub(super) fn originates(&mut self, path: String, place: &Place) {
        let origin = match place {
            Place::At { path, line, .. } => Origin::File {
                path: path.clone(),
                line: *line,
            },
            Place::Variable(name) => Origin::Variable(name),
            Place::File(_) | Place::Nowhere => Origin::Default,
        };
        self.origins.insert(path, origin);
    }

    /// The place of a key's value or of a table, else of the table that should have it, else the
    /// file.
    pub(super) fn place_of(&self, path: &str) -> Place {
        if let Some(Origin::Variable(name)) = self.origins.get(path) {
            return Place::Variable(name);
        }
        if let Some(node) = self.document.values.get(path) {
            return node.place.clone();
        }
        let mut table = Some(path);
        while let Some(path) = table {
            if let Some(place) = self.document.tables.get(path) {
                return place.clone();
            }
            table = path.rsplit_once('.').map(|(parent, _)| parent);
        }
        self.source
            .file
            .as_ref()
            .map_or(Place::Nowhere, |file| Place::File(file.path.clone()))
    }

    /// Values that depend on others.
    fn derive(&mut self, config: &mut Config) {
        if config.node.name.is_empty() {
            let host = self.source.host_name.as_deref().unwrap_or("127.0.0.1");
            config.node.name = format!("yuzu_gw@{host}");
            self.derived("node.name", "yuzu_gw@ and the host name");
        }
        if config.node_listener().is_some() {
            config.cluster.secret = Some(environment::secret(self.source));
        }
        self.derive_replay(config);
        let breaker = &mut config.upstream.breaker;
        self.raise(
            keys::BREAKER_MAX,
            &mut breaker.max_reset_timeout,
            breaker.reset_timeout,
        );
        let notify = &mut config.notify;
        self.raise(
            keys::UNACKED_MAX,
            &mut notify.unacked_retry_max,
            notify.unacked_retry_base,
        );
        if notify.pending_max == 0 {
            let agents = config.listeners.iter().filter(|l| l.serves(Service::Agent));
            let admitted: usize = agents.map(|listener| listener.limits.max_connections).sum();
            notify.pending_max = (3 * admitted).clamp(15_000, keys::MAX_PENDING as usize);
            self.derived(keys::PENDING_MAX, "three per admitted agent connection");
        }
    }

    fn derive_replay(&mut self, config: &mut Config) {
        let pool = config.upstream.register_concurrency;
        let replay = &mut config.upstream.replay_concurrency;
        if (1..=pool).contains(replay) {
            return;
        }
        let half = (pool / 2).max(1);
        if *replay > pool {
            let fault = format!(
                "is {replay}, not an integer from 1 to {pool} (upstream.register_concurrency)"
            );
            let place = self.place_of(keys::REPLAY_CONCURRENCY);
            let fix = format!("the default {half} is used instead");
            self.problems
                .push(Problem::warns(place, keys::REPLAY_CONCURRENCY, fault, fix));
        }
        *replay = half;
        self.derived(
            keys::REPLAY_CONCURRENCY,
            "half of upstream.register_concurrency",
        );
    }

    /// A maximum is never below its base.
    fn raise(&mut self, path: &'static str, maximum: &mut Duration, base: Duration) {
        if *maximum >= base {
            return;
        }
        if self.origins.contains_key(path) {
            let fault = format!("is {}, less than its base", maximum.as_millis());
            let fix = format!("the base {} is used instead", base.as_millis());
            self.problems
                .push(Problem::warns(self.place_of(path), path, fault, fix));
        }
        *maximum = base;
        self.derived(path, "raised to its base");
    }

    fn derived(&mut self, path: &str, from: &'static str) {
        self.origins.insert(path.to_owned(), Origin::Derived(from));
    }
}

/// What a value that does not fit does (BOOT-20), by the key's policy.
fn does_not_fit<T>(
    key: &Key<T>,
    path: &str,
    target: &mut T,
    node: &Node,
    misfit: Misfit,
) -> Problem {
    let Misfit {
        item,
        place,
        fault,
        fix,
        refusal,
    } = misfit;
    let path = item.map_or(path.to_owned(), |index| format!("{path}[{index}]"));
    let refusal = match key.bad {
        Bad::Refuse(general) => refusal.unwrap_or(general),
        Bad::Default => {
            let default = match key.derived {
                Some(from) => format!("({from})"),
                None => key.slot.show(target),
            };
            let fix = format!("the default {default} is used instead");
            return Problem::warns(place, path, fault, fix);
        }
        Bad::DefaultPort => match (&key.slot, values::ip_of_bad_address(&node.raw)) {
            (Slot::Address(at), Some(ip)) => {
                at(target).set_ip(ip);
                let fix = format!("{} is used instead", at(target));
                return Problem::warns(place, path, fault, fix);
            }
            _ => Refusal::BadAddress,
        },
    };
    Problem::refuses(
        refusal,
        place,
        path,
        fault,
        fix.unwrap_or_else(|| "correct it".into()),
    )
}
