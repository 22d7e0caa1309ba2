//! One key: where its value lives in the configuration, what fits there, what a bad value does.
//!
//! Responsible for moving one value in and out, typed. Must never know which keys there are: that
//! is [`super::keys`].

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::document::{Node, Raw};
use super::origin::{self, OriginMode};
use super::peer_addresses::{self, Port};
use super::peer_values;
use super::print;
use super::refusal::Refusal;
use super::schema::{Endpoint, PeerPin, Scheme, Serial, Service, Upstream};
use super::shedding::Fraction;
use super::values::{self, Between, Misfit, Range, TextRule};
use super::words::{self, Word};

/// What a value that does not fit does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bad {
    /// The default is used, with a warning (BOOT-20).
    Default,
    /// As `Default` for a bad port of a readable address; anything else refuses, since the default
    /// could open to everybody what was meant for one interface.
    DefaultPort,
    /// The gateway refuses to start.
    Refuse(Refusal),
}

/// What a reload does with a changed value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reload {
    /// It is in force at once.
    Live,
    /// The running node keeps the old one until it is started again.
    Restart,
}

pub(super) type At<T, F> = fn(&mut T) -> &mut F;
/// A value that is one of these words.
pub(super) type WordAt<T> = fn(&mut T) -> &mut (dyn Word + 'static);

/// Where a value lives and what fits there.
pub(super) enum Slot<T> {
    Millis(At<T, Duration>, Range),
    Seconds(At<T, Duration>, Range),
    Size(At<T, usize>, Range),
    Count(At<T, u32>, Range),
    Flag(At<T, bool>),
    Text(At<T, String>, &'static TextRule),
    Address(At<T, SocketAddr>),
    Word(WordAt<T>, &'static [&'static str]),
    Services(At<T, Vec<Service>>),
    /// Any number between two.
    Real(At<T, f64>, Between),
    /// Above 0 and below 1; may be left out.
    Fraction(At<T, Option<Fraction>>),
    /// May be left out.
    Bytes(At<T, Option<u64>>, Range),
    OriginMode(At<T, OriginMode>),
    Sources(At<T, Vec<origin::Source>>),
    /// `upstream.endpoints`, with their scheme.
    Endpoints(At<T, Upstream>),
    /// Of a gateway; empty is none.
    Peer(At<T, Option<Endpoint>>, Port),
    Peers(At<T, Vec<Endpoint>>, Port),
    File(At<T, PathBuf>),
    Files(At<T, Vec<PathBuf>>),
    Pins(At<T, Vec<PeerPin>>),
    Serials(At<T, Vec<Serial>>),
}

/// One key of `T`: of the file's root tables ([`Config`]) or of one listener.
pub(super) struct Key<T> {
    /// `notify.pending_max`, `listener.limits.max_connections`.
    pub(super) path: &'static str,
    pub(super) slot: Slot<T>,
    pub(super) bad: Bad,
    pub(super) reload: Reload,
    /// The variable that replaces it. For an address it replaces the port.
    pub(super) env: Option<&'static str>,
    /// How the default is told when it depends on other keys.
    pub(super) derived: Option<&'static str>,
    /// Whether the table that it stands in is there.
    pub(super) present: fn(&T) -> bool,
}

impl<T> Key<T> {
    pub(super) const fn new(path: &'static str, slot: Slot<T>) -> Self {
        Self {
            path,
            slot,
            bad: Bad::Default,
            reload: Reload::Live,
            env: None,
            derived: None,
            present: |_| true,
        }
    }
}

impl<T> Slot<T> {
    /// Puts a value in its place, if it fits.
    pub(super) fn put(&self, target: &mut T, node: &Node) -> Result<(), Vec<Misfit>> {
        let raw = &node.raw;
        let put = match self {
            Self::Millis(at, range) => range
                .accept(raw)
                .map(|value| *at(target) = Duration::from_millis(value)),
            Self::Seconds(at, range) => range
                .accept(raw)
                .map(|value| *at(target) = Duration::from_secs(value)),
            Self::Size(at, range) => range
                .accept(raw)
                .and_then(|value| usize::try_from(value).ok())
                .map(|value| *at(target) = value),
            Self::Count(at, range) => range
                .accept(raw)
                .and_then(|value| u32::try_from(value).ok())
                .map(|value| *at(target) = value),
            Self::Flag(at) => raw.flag().map(|flag| *at(target) = flag),
            Self::Text(at, rule) => raw
                .text()
                .filter(|text| (rule.fits)(text))
                .map(|text| text.clone_into(at(target))),
            Self::Address(at) => values::address(raw).map(|address| *at(target) = address),
            Self::Word(at, words) => raw.text().filter(|text| words.contains(text)).map(|text| {
                at(target).set(text);
            }),
            Self::Real(at, between) => between.accept(raw).map(|value| *at(target) = value),
            Self::Fraction(at) => match raw {
                Raw::Float(value) => Fraction::new(*value).map(|value| *at(target) = Some(value)),
                _ => None,
            },
            Self::Bytes(at, range) => range.accept(raw).map(|value| *at(target) = Some(value)),
            Self::OriginMode(at) => origin::mode(raw).map(|mode| *at(target) = mode),
            Self::Sources(at) => return origin::sources(node).map(|list| *at(target) = list),
            Self::Services(at) => return values::services(node).map(|list| *at(target) = list),
            Self::Endpoints(at) => {
                return values::endpoints(node).map(|(scheme, endpoints)| {
                    let upstream = at(target);
                    upstream.scheme = scheme;
                    upstream.endpoints = endpoints;
                });
            }
            Self::Peer(at, port) => {
                return peer_addresses::one(node, *port).map(|one| *at(target) = one);
            }
            Self::Peers(at, port) => {
                return peer_addresses::list(node, *port).map(|list| *at(target) = list);
            }
            Self::File(at) => raw
                .text()
                .filter(|text| values::is_path(text))
                .map(|text| *at(target) = PathBuf::from(text)),
            Self::Files(at) => return values::files(node).map(|list| *at(target) = list),
            Self::Pins(at) => return peer_values::pins(node).map(|list| *at(target) = list),
            Self::Serials(at) => return peer_values::serials(node).map(|list| *at(target) = list),
        };
        put.ok_or_else(|| vec![Misfit::new(node, self.allowed())])
    }

    /// The value in force, as TOML; empty when it is left out.
    pub(super) fn show(&self, target: &mut T) -> String {
        match self {
            Self::Millis(at, _) => at(target).as_millis().to_string(),
            Self::Seconds(at, _) => at(target).as_secs().to_string(),
            Self::Size(at, _) => at(target).to_string(),
            Self::Count(at, _) => at(target).to_string(),
            Self::Flag(at) => at(target).to_string(),
            Self::Text(at, _) => print::quoted(at(target)),
            Self::Address(at) => print::quoted(&at(target).to_string()),
            Self::Word(at, _) => print::quoted(at(target).word()),
            Self::Real(at, _) => at(target).to_string(),
            Self::Fraction(at) => shown(at(target).map(Fraction::get)),
            Self::Bytes(at, _) => shown(*at(target)),
            Self::OriginMode(at) => print::quoted(at(target).name()),
            Self::Sources(at) => print::list(at(target).iter().map(ToString::to_string)),
            Self::Services(at) => print::list(at(target).iter().map(|service| match service {
                Service::Agent => "agent".to_owned(),
                Service::Management => "management".to_owned(),
                Service::Node => "node".to_owned(),
            })),
            Self::Endpoints(at) => {
                let Upstream {
                    endpoints, scheme, ..
                } = at(target);
                let scheme = match scheme {
                    Scheme::Http => "http",
                    Scheme::Https => "https",
                };
                print::list(endpoints.iter().map(|e| format!("{scheme}://{e}")))
            }
            Self::Peer(at, _) => peer_addresses::show_one(at(target).as_ref()),
            Self::Peers(at, _) => peer_addresses::show_list(at(target)),
            Self::File(at) => print::quoted(&at(target).to_string_lossy()),
            Self::Files(at) => print::list(
                at(target)
                    .iter()
                    .map(|path| path.to_string_lossy().into_owned()),
            ),
            Self::Pins(at) => peer_values::show_pins(at(target)),
            Self::Serials(at) => print::list(at(target).iter().map(ToString::to_string)),
        }
    }

    /// Gives `target` the value of `from`.
    pub(super) fn copy(&self, target: &mut T, from: &mut T) {
        match self {
            Self::Millis(at, _) | Self::Seconds(at, _) => *at(target) = *at(from),
            Self::Size(at, _) => *at(target) = *at(from),
            Self::Count(at, _) => *at(target) = *at(from),
            Self::Flag(at) => *at(target) = *at(from),
            Self::Text(at, _) => at(target).clone_from(at(from)),
            Self::Address(at) => *at(target) = *at(from),
            Self::Word(at, _) => {
                at(target).set(at(from).word());
            }
            Self::Services(at) => at(target).clone_from(at(from)),
            Self::Real(at, _) => *at(target) = *at(from),
            Self::Fraction(at) => *at(target) = *at(from),
            Self::Bytes(at, _) => *at(target) = *at(from),
            Self::OriginMode(at) => *at(target) = *at(from),
            Self::Sources(at) => at(target).clone_from(at(from)),
            Self::Endpoints(at) => {
                let (scheme, endpoints) = (at(from).scheme, at(from).endpoints.clone());
                let upstream = at(target);
                upstream.scheme = scheme;
                upstream.endpoints = endpoints;
            }
            Self::Peer(at, _) => at(target).clone_from(at(from)),
            Self::Peers(at, _) => at(target).clone_from(at(from)),
            Self::File(at) => at(target).clone_from(at(from)),
            Self::Files(at) => at(target).clone_from(at(from)),
            Self::Pins(at) => at(target).clone_from(at(from)),
            Self::Serials(at) => at(target).clone_from(at(from)),
        }
    }

    /// What fits, for a message.
    pub(super) fn allowed(&self) -> String {
        match self {
            Self::Millis(_, range)
            | Self::Seconds(_, range)
            | Self::Size(_, range)
            | Self::Count(_, range)
            | Self::Bytes(_, range) => range.to_string(),
            Self::Real(_, between) => between.to_string(),
            Self::Fraction(_) => "a fraction between 0 and 1".into(),
            Self::OriginMode(_) => origin::MODE_ALLOWED.into(),
            Self::Sources(_) => origin::SOURCES_ALLOWED.into(),
            Self::Flag(_) => "true or false".into(),
            Self::Text(_, rule) => rule.allowed.into(),
            Self::Address(_) => values::ADDRESS_ALLOWED.into(),
            Self::Word(_, words) => words::alternatives(words),
            Self::Services(_) => values::SERVICES_ALLOWED.into(),
            Self::Endpoints(_) => values::ENDPOINTS_ALLOWED.into(),
            Self::Peer(_, port) => port.one().into(),
            Self::Peers(_, port) => port.list().into(),
            Self::File(_) => values::PATH_ALLOWED.into(),
            Self::Files(_) => values::FILES_ALLOWED.into(),
            Self::Pins(_) => peer_values::PINS_ALLOWED.into(),
            Self::Serials(_) => peer_values::SERIALS_ALLOWED.into(),
        }
    }

    /// The value of a variable, in the type that fits here; `None` when it can't be one.
    pub(super) fn parse_variable(&self, text: &str) -> Option<Raw> {
        match self {
            Self::Millis(..)
            | Self::Seconds(..)
            | Self::Size(..)
            | Self::Count(..)
            | Self::Bytes(..) => text.parse().ok().map(Raw::Integer),
            Self::Real(..) | Self::Fraction(_) => text.parse().ok().map(Raw::Float),
            Self::Flag(_) => match text {
                "1" => Some(Raw::Flag(true)),
                "" | "0" => Some(Raw::Flag(false)),
                _ => None,
            },
            Self::Address(_) => text
                .parse::<u16>()
                .ok()
                .map(|port| Raw::Integer(port.into())),
            Self::Text(..)
            | Self::Word(..)
            | Self::File(_)
            | Self::OriginMode(_)
            | Self::Peer(..) => Some(Raw::Text(text.to_owned())),
            Self::Peers(..) => peer_addresses::list_variable(text),
            Self::Services(_)
            | Self::Endpoints(_)
            | Self::Sources(_)
            | Self::Files(_)
            | Self::Pins(_)
            | Self::Serials(_) => None,
        }
    }
}

fn shown<V: ToString>(value: Option<V>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}
