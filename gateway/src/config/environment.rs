//! Variables: the values they give to keys, the ports they replace, the ones that do nothing.
//!
//! Responsible for the rule that a variable which can't be read is told and ignored. Must never
//! read the process's environment: it comes with [`super::Source`].

use super::document::{self, Node, Raw};
use super::effective::Loader;
use super::keys;
use super::problem::{Place, Problem};
use super::schema::{Config, Listener, Secret, Service};
use super::slot::Bad;
use super::source::{self, Source};

/// Variables of older gateways that do nothing (BOOT-21).
const DEAD: &[&str] = &[
    "YUZU_GW_UPSTREAM_ADDR",
    "YUZU_GW_UPSTREAM_PORT",
    "YUZU_GW_TLS_ENABLED",
    "YUZU_GW_TLS_CERTFILE",
    "YUZU_GW_TLS_KEYFILE",
    "YUZU_GW_TLS_CACERTFILE",
];

/// What the nodes of a cluster share (BOOT-18).
pub(super) const SECRET: &str = "YUZU_GW_COOKIE";
/// Lets a secret pass that protects nothing.
const ALLOW_ANY_SECRET: &str = "YUZU_GW_ALLOW_DEFAULT_COOKIE";

const OF_CLUSTER: &[&str] = &[SECRET, ALLOW_ANY_SECRET];

const AGENT_PORT: &str = "YUZU_GW_AGENT_PORT";
const MANAGEMENT_PORT: &str = "YUZU_GW_MGMT_PORT";

const IGNORED: &str = "it is ignored";

/// The secret that the nodes of a cluster share, empty when it is not set.
pub(super) fn secret(source: &Source) -> Secret {
    let value = source.environment.get(std::ffi::OsStr::new(SECRET));
    Secret::new(value.map_or(&[][..], |value| value.as_encoded_bytes()))
}

/// Whether a secret that protects nothing is let pass.
pub(super) fn allows_any_secret(source: &Source) -> bool {
    let value = source
        .environment
        .get(std::ffi::OsStr::new(ALLOW_ANY_SECRET));
    value.is_some_and(|value| value == "1")
}

impl Loader<'_> {
    /// The value of the variable that replaces `key`, as `parse` reads it. One that can't be read
    /// is told and ignored; one that is not UTF-8 refuses where a bad value does (BOOT-16).
    pub(super) fn variable(
        &mut self,
        name: &'static str,
        key: &str,
        bad: Bad,
        parse: impl Fn(&str) -> Option<Raw>,
        allowed: &str,
    ) -> Option<Node> {
        let value = self.source.environment.get(std::ffi::OsStr::new(name))?;
        let place = Place::Variable(name);
        let problem = match (value.to_str(), bad) {
            (None, Bad::Refuse(why)) => {
                let fault = format!("is {} bytes that are not UTF-8", value.len());
                Problem::refuses(why, place, key, fault, "correct it or unset the variable")
            }
            (None, _) => {
                let fault = format!("is {} bytes that are not UTF-8", value.len());
                Problem::warns(place, key, fault, IGNORED)
            }
            (Some(text), _) => match parse(text) {
                Some(raw) => return Some(Node { raw, place }),
                None => {
                    let shape = Raw::Text(text.to_owned()).shape();
                    Problem::warns(place, key, format!("is {shape}, not {allowed}"), IGNORED)
                }
            },
        };
        self.problems.push(problem);
        None
    }
}

/// Rewrites the port of the one listener that serves agents, and of the one that serves management
/// (BOOT-23).
pub(super) fn listener_ports(loader: &mut Loader<'_>, listeners: &mut [Listener]) {
    for (name, service) in [
        (AGENT_PORT, Service::Agent),
        (MANAGEMENT_PORT, Service::Management),
    ] {
        let parse = |text: &str| {
            text.parse::<u16>()
                .ok()
                .map(|port| Raw::Integer(port.into()))
        };
        let allowed = "an integer from 0 to 65535";
        let variable = loader.variable(name, "listener.address", Bad::Default, parse, allowed);
        let Some(Node {
            raw: Raw::Integer(port),
            place,
        }) = variable
        else {
            continue;
        };
        match one_serving(listeners, service) {
            // Nobody knows what that listener serves: it is refused anyway.
            _ if listeners
                .iter()
                .any(|listener| listener.services.is_empty()) => {}
            Ok(index) => {
                let port = u16::try_from(port).unwrap_or_default();
                listeners[index].address.set_port(port);
                let path = document::numbered("listener.address", index);
                loader.originates(path, &place);
            }
            Err(fault) => {
                loader
                    .problems
                    .push(Problem::warns(Place::Nowhere, name, fault, IGNORED));
            }
        }
    }
}

fn one_serving(listeners: &[Listener], service: Service) -> Result<usize, &'static str> {
    let mut serving = (0..listeners.len()).filter(|index| listeners[*index].serves(service));
    match (serving.next(), serving.next()) {
        (Some(index), None)
            if service == Service::Management && listeners[index].serves(Service::Agent) =>
        {
            Err(
                "is set, but the listener that serves management serves agents too and takes its \
                 port from YUZU_GW_AGENT_PORT",
            )
        }
        (Some(index), None) => Ok(index),
        (None, _) => Err("is set, but no listener serves what it is for"),
        (Some(_), Some(_)) => Err("is set, but several listeners serve what it is for"),
    }
}

/// Tells the variables that do nothing, and the ones that are probably misspelt.
pub(super) fn judge(loader: &mut Loader<'_>, config: &Config) {
    let idle = [(DEAD, ""), (OF_CLUSTER, ": no listener serves nodes")];
    let clustered = config.node_listener().is_some();
    let known: Vec<&str> = keys::variables()
        .chain([AGENT_PORT, MANAGEMENT_PORT])
        .chain(idle.iter().flat_map(|(names, _)| names.iter().copied()))
        .collect();
    for name in loader
        .source
        .environment
        .keys()
        .filter(|name| source::is_ours(name))
    {
        let Some(name) = name.to_str() else { continue };
        let warning = |fault: String, fix: String| Problem::warns(Place::Nowhere, name, fault, fix);
        if clustered && OF_CLUSTER.contains(&name) {
            continue;
        }
        if let Some((_, why)) = idle.iter().find(|(names, _)| names.contains(&name)) {
            let fault = format!("is set but has no effect{why}");
            loader.problems.push(warning(fault, String::new()));
        } else if !known.contains(&name) {
            let near = known
                .iter()
                .min_by_key(|near| strsim::osa_distance(near, name));
            let near = near.filter(|near| strsim::osa_distance(near, name) <= 2);
            let fix = near.map_or_else(
                || "remove it, or set the key in the file".to_owned(),
                |near| format!("did you mean {near}?"),
            );
            loader
                .problems
                .push(warning("is not a variable of the gateway".into(), fix));
        }
    }
}
