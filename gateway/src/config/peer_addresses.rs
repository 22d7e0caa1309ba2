//! Addresses of other gateways and of this one: `host`, `host:port`, `[v6]:port`.
//!
//! Responsible for which of them fit and for showing them. Must never resolve a name, nor know a
//! key's name.

use super::document::{Node, Raw};
use super::print;
use super::schema::Endpoint;
use super::values::{self, Misfit};

/// Which port an address without one has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Port {
    /// It must have one.
    Required,
    /// This one.
    Default(u16),
    /// That of the node listener, which is known later: 0 stands for it.
    OfListener,
}

const MAX_ADDRESSES: usize = 64;

impl Port {
    pub(super) fn one(self) -> &'static str {
        match self {
            Self::Required => "an address like \"gw-1.example:50051\" or \"[2001:db8::1]:50051\"",
            _ => "an address like \"gw-1.example\", \"192.0.2.1:9100\" or \"[2001:db8::1]:9100\"",
        }
    }

    pub(super) fn list(self) -> &'static str {
        match self {
            Self::Required => "a list of at most 64 addresses like \"gw-1.example:50051\"",
            _ => "a list of at most 64 addresses like \"gw-1.example\" or \"192.0.2.1:9100\"",
        }
    }

    fn read(self, text: &str) -> Option<Endpoint> {
        let bare_v6 = text.matches(':').count() > 1 && !text.starts_with('[');
        let (host, port) = match text.rsplit_once(':') {
            _ if bare_v6 || text.ends_with(']') => (text, None),
            Some((host, port)) => (host, Some(port.parse().ok().filter(|port| *port > 0)?)),
            None => (text, None),
        };
        let port = match (port, self) {
            (Some(port), _) => port,
            (None, Self::Required) => return None,
            (None, Self::Default(port)) => port,
            (None, Self::OfListener) => 0,
        };
        let host = match bare_v6 {
            true => values::bare_host(&format!("[{host}]"))?,
            false => values::bare_host(host)?,
        };
        Some(Endpoint { host, port })
    }
}

/// An address, or nothing when the string is empty.
pub(super) fn one(node: &Node, port: Port) -> Result<Option<Endpoint>, Vec<Misfit>> {
    let misfit = || vec![Misfit::new(node, port.one())];
    match node.raw.text() {
        None => Err(misfit()),
        Some("") => Ok(None),
        Some(text) => port.read(text).map(Some).ok_or_else(misfit),
    }
}

/// A list of addresses.
pub(super) fn list(node: &Node, port: Port) -> Result<Vec<Endpoint>, Vec<Misfit>> {
    let items = match &node.raw {
        Raw::List(items) if items.len() <= MAX_ADDRESSES => items,
        _ => return Err(vec![Misfit::new(node, port.list())]),
    };
    values::each(items, |item| {
        let read = item.raw.text().and_then(|text| port.read(text));
        read.ok_or_else(|| Misfit::new(item, port.one()))
    })
}

/// The list in a variable, parted by commas; `None` when there is nothing but blanks.
pub(super) fn list_variable(text: &str) -> Option<Raw> {
    let items = text.split(',').map(str::trim);
    let items: Vec<_> = items
        .filter(|item| !item.is_empty())
        .map(text_node)
        .collect();
    (!items.is_empty() || text.is_empty()).then_some(Raw::List(items))
}

fn text_node(text: &str) -> Node {
    Node {
        raw: Raw::Text(text.to_owned()),
        place: super::problem::Place::Nowhere,
    }
}

/// As it may stand in a file.
pub(super) fn show(address: &Endpoint) -> String {
    let shown = address.to_string();
    match address.port {
        0 => shown.trim_end_matches(":0").to_owned(),
        _ => shown,
    }
}

pub(super) fn show_one(address: Option<&Endpoint>) -> String {
    print::quoted(&address.map(show).unwrap_or_default())
}

pub(super) fn show_list(addresses: &[Endpoint]) -> String {
    print::list(addresses.iter().map(show))
}
