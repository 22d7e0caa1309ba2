//! Single values: which of them fit, and how one that does not is described.
//!
//! Responsible for ranges, words, addresses, endpoints. Must never know a key's name.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use rustls::pki_types::ServerName;

use super::document::{Node, Raw};
use super::problem::Place;
use super::refusal::Refusal;
use super::schema::{Endpoint, Scheme, Service};
use crate::pki;

/// Inclusive bounds of an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) min: u64,
    pub(super) max: u64,
    /// 0 fits besides.
    pub(super) or_zero: bool,
}

impl Range {
    pub(super) const fn new(min: u64, max: u64) -> Self {
        Self {
            min,
            max,
            or_zero: false,
        }
    }

    pub(super) const fn zero_or(min: u64, max: u64) -> Self {
        Self {
            min,
            max,
            or_zero: true,
        }
    }

    pub(super) fn accept(self, raw: &Raw) -> Option<u64> {
        let Raw::Integer(value) = raw else {
            return None;
        };
        let value = u64::try_from(*value).ok()?;
        let fits = (self.min..=self.max).contains(&value) || (self.or_zero && value == 0);
        fits.then_some(value)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zero = if self.or_zero { "0 or " } else { "" };
        write!(f, "{zero}an integer from {} to {}", self.min, self.max)
    }
}

/// Exclusive bounds of any number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Between {
    pub(super) above: f64,
    pub(super) below: f64,
}

impl Between {
    pub(super) fn accept(self, raw: &Raw) -> Option<f64> {
        let value = match raw {
            Raw::Float(value) => *value,
            Raw::Integer(value) => *value as f64,
            _ => return None,
        };
        (value > self.above && value < self.below).then_some(value)
    }
}

impl fmt::Display for Between {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number above {} and below {}", self.above, self.below)
    }
}

/// A string with a form of its own.
pub(super) struct TextRule {
    pub(super) allowed: &'static str,
    pub(super) fits: fn(&str) -> bool,
}

pub(super) static NODE_NAME: TextRule = TextRule {
    allowed: "a string of at most 255 bytes without control characters",
    fits: |text| text.len() <= 255 && !text.chars().any(char::is_control),
};

pub(super) static SERVER_NAME: TextRule = TextRule {
    allowed: "a host name or an IP address",
    fits: |text| text.is_empty() || ServerName::try_from(text).is_ok(),
};

/// A lower-case copy fits and matches nothing, which [`super::refusals`] tells.
pub(super) static PEER_IDENTITY: TextRule = TextRule {
    allowed: "\"yuzu://\", 64 hex digits and \"/server\"",
    fits: |text| text.is_empty() || pki::is_server_identity(text),
};

/// The server keeps 64 bytes; a longer one is told by [`super::refusals`] (BOOT-16).
pub(super) static CLUSTER_ID: TextRule = TextRule {
    allowed: "a UTF-8 string of at most 1024 bytes",
    fits: |text| text.len() <= 1024,
};

/// A metric label and a log field, so kept short and plain.
pub(super) static LISTENER_NAME: TextRule = TextRule {
    allowed: "1 to 64 letters, digits, '-', '_' or '.'",
    fits: |text| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        (1..=64).contains(&text.len()) && text.chars().all(plain)
    },
};

pub(super) static LOG_LEVEL: TextRule = TextRule {
    allowed: "off, error, warn, info, debug or trace, or a list like \"info,yuzu_gateway=debug\"",
    fits: is_log_level,
};

/// A bare word would pass the log library as the name of a module, and switch all else off.
fn is_log_level(text: &str) -> bool {
    let is_level = |text: &str| {
        ["off", "error", "warn", "info", "debug", "trace"].contains(&text.to_lowercase().as_str())
    };
    let is_module = |text: &str| {
        !text.is_empty()
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_:-".contains(c))
    };
    text.len() <= 1024
        && text.split(',').all(|part| match part.split_once('=') {
            Some((module, level)) => is_module(module) && is_level(level),
            None => is_level(part),
        })
}

/// A value that does not fit: the whole one, or one item of a list.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Misfit {
    /// Which item of a list; `None` for the whole value.
    pub(super) item: Option<usize>,
    pub(super) place: Place,
    /// The clause behind the key.
    pub(super) fault: String,
    /// What to do, when there is something better to say than "correct it".
    pub(super) fix: Option<String>,
    /// When this defect is another one than a bad value of its key.
    pub(super) refusal: Option<Refusal>,
}

impl Misfit {
    pub(super) fn new(node: &Node, allowed: impl fmt::Display) -> Self {
        let fault = format!("is {}, not {allowed}", node.raw.shape());
        Self {
            item: None,
            place: node.place.clone(),
            fault,
            fix: None,
            refusal: None,
        }
    }

    pub(super) fn item(self, index: usize) -> Self {
        Self {
            item: Some(index),
            ..self
        }
    }

    fn because(
        node: &Node,
        fault: impl Into<String>,
        fix: impl Into<String>,
        refusal: Refusal,
    ) -> Self {
        let (fault, fix, refusal) = (fault.into(), Some(fix.into()), Some(refusal));
        Self {
            item: None,
            place: node.place.clone(),
            fault,
            fix,
            refusal,
        }
    }
}

/// More would be refused one by one anyway.
const MAX_SERVICES: usize = 16;

pub(super) const SERVICES_ALLOWED: &str = "a list of \"agent\", \"management\" and \"node\"";

/// What a listener serves (BOOT-7).
pub(super) fn services(node: &Node) -> Result<Vec<Service>, Vec<Misfit>> {
    let Raw::List(items) = &node.raw else {
        return Err(vec![Misfit::new(node, SERVICES_ALLOWED)]);
    };
    if items.len() > MAX_SERVICES {
        return Err(vec![Misfit::new(node, SERVICES_ALLOWED)]);
    }
    if items.is_empty() {
        let fix = "name \"agent\", \"management\" or both, or \"node\" alone";
        return Err(vec![Misfit::because(
            node,
            "is empty",
            fix,
            Refusal::NoServices,
        )]);
    }
    let (mut services, mut misfits) = (Vec::new(), Vec::new());
    for (index, item) in items.iter().enumerate() {
        match service(item) {
            Ok(service) if services.contains(&service) => {
                let misfit =
                    Misfit::because(item, "is listed twice", "delete it", Refusal::BadServices);
                misfits.push(misfit.item(index));
            }
            Ok(service) => services.push(service),
            Err(misfit) => misfits.push(misfit.item(index)),
        }
    }
    if misfits.is_empty() {
        Ok(services)
    } else {
        Err(misfits)
    }
}

fn service(node: &Node) -> Result<Service, Misfit> {
    match node.raw.text() {
        Some("agent") => Ok(Service::Agent),
        Some("management") => Ok(Service::Management),
        Some("node") => Ok(Service::Node),
        _ => Err(Misfit::new(node, "\"agent\", \"management\" or \"node\"")),
    }
}

const MAX_ENDPOINTS: usize = 16;

pub(super) const ENDPOINTS_ALLOWED: &str =
    "a list of \"http://host:port\" or \"https://host:port\"";

/// The server's endpoints (BOOT-11, BOOT-15).
pub(super) fn endpoints(node: &Node) -> Result<(Scheme, Vec<Endpoint>), Vec<Misfit>> {
    let Raw::List(items) = &node.raw else {
        return Err(vec![Misfit::new(node, ENDPOINTS_ALLOWED)]);
    };
    if items.len() > MAX_ENDPOINTS {
        let allowed = format!("a list of at most {MAX_ENDPOINTS}");
        return Err(vec![Misfit::new(node, allowed)]);
    }
    let (mut endpoints, mut misfits) = (Vec::new(), Vec::new());
    for (index, item) in items.iter().enumerate() {
        match endpoint(item) {
            Ok(endpoint) if endpoints.contains(&endpoint) => {
                let fix = "delete it";
                let misfit = Misfit::because(item, "is listed twice", fix, Refusal::BadChannel);
                misfits.push(misfit.item(index));
            }
            Ok(endpoint) => endpoints.push(endpoint),
            Err(misfit) => misfits.push(misfit.item(index)),
        }
    }
    let is_https = |item: &Node| {
        item.raw
            .text()
            .is_some_and(|text| text.starts_with("https://"))
    };
    if items.iter().any(is_https) && !items.iter().all(is_https) {
        let fix = "use one scheme for all of them";
        misfits.push(Misfit::because(
            node,
            "mixes http and https",
            fix,
            Refusal::MixedEndpoints,
        ));
    }
    let scheme = match items.first() {
        Some(first) if is_https(first) => Scheme::Https,
        _ => Scheme::Http,
    };
    if misfits.is_empty() {
        Ok((scheme, endpoints))
    } else {
        Err(misfits)
    }
}

fn endpoint(node: &Node) -> Result<Endpoint, Misfit> {
    const ALLOWED: &str = "\"http://host:port\" or \"https://host:port\"";
    let misfit = || Misfit {
        refusal: Some(Refusal::BadEndpoint),
        ..Misfit::new(node, ALLOWED)
    };
    let text = node.raw.text().ok_or_else(misfit)?;
    let (scheme, authority) = text.split_once("://").ok_or_else(misfit)?;
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = authority.rsplit_once(':').ok_or_else(misfit)?;
    let port: u16 = port
        .parse()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(misfit)?;
    if !["http", "https"].contains(&scheme) {
        return Err(misfit());
    }
    let host = bare_host(host).ok_or_else(|| {
        let fault = format!("has a bad host: it is {}", node.raw.shape());
        Misfit::because(
            node,
            fault,
            "use a host name, an IPv4 or an [IPv6] address",
            Refusal::BadHost,
        )
    })?;
    Ok(Endpoint { host, port })
}

pub(super) fn bare_host(host: &str) -> Option<String> {
    if let Some(inner) = host.strip_prefix('[') {
        let address: Ipv6Addr = inner.strip_suffix(']')?.parse().ok()?;
        return Some(address.to_string());
    }
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
    };
    let relative = host.strip_suffix('.').unwrap_or(host);
    (host.len() <= 253 && relative.split('.').all(label)).then(|| host.to_owned())
}

pub(super) const PATH_ALLOWED: &str = "a path of at most 4096 bytes";

pub(super) fn is_path(text: &str) -> bool {
    text.len() <= 4096 && !text.contains('\0')
}

const MAX_FILES: usize = 64;

pub(super) const FILES_ALLOWED: &str = "a list of at most 64 paths";

/// A list of paths, none of them empty.
pub(super) fn files(node: &Node) -> Result<Vec<PathBuf>, Vec<Misfit>> {
    let Raw::List(items) = &node.raw else {
        return Err(vec![Misfit::new(node, FILES_ALLOWED)]);
    };
    if items.len() > MAX_FILES {
        return Err(vec![Misfit::new(node, FILES_ALLOWED)]);
    }
    let path = |item: &Node| {
        let text = item
            .raw
            .text()
            .filter(|text| !text.is_empty() && is_path(text));
        text.map(PathBuf::from)
            .ok_or_else(|| Misfit::new(item, PATH_ALLOWED))
    };
    each(items, path)
}

/// Every item of a list, or every item that does not fit.
pub(super) fn each<V>(
    items: &[Node],
    read: impl Fn(&Node) -> Result<V, Misfit>,
) -> Result<Vec<V>, Vec<Misfit>> {
    let (mut values, mut misfits) = (Vec::new(), Vec::new());
    for (index, item) in items.iter().enumerate() {
        match read(item) {
            Ok(value) => values.push(value),
            Err(misfit) => misfits.push(misfit.item(index)),
        }
    }
    if misfits.is_empty() {
        Ok(values)
    } else {
        Err(misfits)
    }
}

pub(super) const ADDRESS_ALLOWED: &str = "an address like \"127.0.0.1:50051\" or \"[::1]:50051\"";

pub(super) fn address(raw: &Raw) -> Option<SocketAddr> {
    raw.text()?.parse().ok()
}

/// The IP of an address whose port is missing or bad.
pub(super) fn ip_of_bad_address(raw: &Raw) -> Option<IpAddr> {
    let text = raw.text()?;
    let bare = |text: &str| {
        text.trim_start_matches('[')
            .trim_end_matches(']')
            .parse()
            .ok()
    };
    bare(text).or_else(|| bare(text.rsplit_once(':')?.0))
}
