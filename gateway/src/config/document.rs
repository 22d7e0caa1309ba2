//! TOML text to keys with positions: syntax errors, unknown keys and wrong shapes are found here.
//!
//! Responsible for reading the whole text even when parts of it are broken, so that all problems
//! are told at once. Must never judge a value: that is [`super::keys`].

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::print::quoted;
use super::problem::{Place, Problem};
use super::refusal::Refusal;
use super::source::SourceFile;
use super::{keys, later};

/// Syntax errors that are told; the parser may find one in every byte.
const MAX_SYNTAX_PROBLEMS: usize = 20;
/// Unknown keys that are told.
const MAX_UNKNOWN_KEYS: usize = 100;
/// Listeners that are read; each takes a port.
const MAX_LISTENERS: usize = 64;

/// The one list of tables; its entries are numbered from 0.
const LISTENER: &str = "listener";

/// A text by lines.
pub(super) struct Lines<'a> {
    path: &'a Arc<str>,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(path: &'a Arc<str>, text: &[u8]) -> Self {
        let ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let starts = std::iter::once(0)
            .chain(ends.map(|(at, _)| at + 1))
            .collect();
        Self { path, starts }
    }

    /// The line of a byte, from 1.
    fn line(&self, at: usize) -> usize {
        self.starts.partition_point(|start| *start <= at)
    }

    pub(super) fn place(&self, at: usize) -> Place {
        let line = self.line(at);
        let column = at - self.starts[line - 1] + 1;
        Place::At {
            path: self.path.clone(),
            line,
            column,
        }
    }
}

/// A value as it was written, with its place.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) raw: Raw,
    pub(super) place: Place,
}

/// A value of a file or a variable, before anybody asked whether it fits.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Raw {
    Integer(i128),
    Float(f64),
    Flag(bool),
    Text(String),
    List(Vec<Node>),
    Table(Vec<(String, Node)>),
    Date,
}

impl Raw {
    pub(super) fn flag(&self) -> Option<bool> {
        match self {
            Self::Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The value's shape, for a message: numbers and booleans as they are, all else by type and
    /// size.
    pub(super) fn shape(&self) -> String {
        match self {
            Self::Integer(value) => value.to_string(),
            Self::Float(value) => format!("{value:?}"),
            Self::Flag(value) => value.to_string(),
            Self::Text(text) => format!("a string of {}", counted(text.len(), "byte")),
            Self::List(items) => format!("a list of {}", counted(items.len(), "item")),
            Self::Table(entries) => format!("a table of {}", counted(entries.len(), "key")),
            Self::Date => "a date".into(),
        }
    }
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// A configuration file, read but not judged.
#[derive(Debug, Default)]
pub(super) struct Document {
    /// By full path, `listener[0].limits.max_connections`.
    pub(super) values: BTreeMap<String, Node>,
    /// Tables that are present, by full path, empty ones too; one row per listener, in order.
    pub(super) tables: BTreeMap<String, Place>,
    /// How many listeners there are.
    pub(super) listeners: usize,
    /// Some text was not TOML: what is missing may be there.
    pub(super) broken: bool,
}

impl Document {
    /// The numbered paths of a path of the key tables: one per listener, or itself.
    pub(super) fn paths(&self, path: &str) -> Vec<String> {
        if path.starts_with(LISTENER) {
            (0..self.listeners)
                .map(|index| numbered(path, index))
                .collect()
        } else {
            vec![path.to_owned()]
        }
    }
}

/// `listener.name` of listener 2 is `listener[2].name`.
pub(super) fn numbered(path: &str, index: usize) -> String {
    let rest = path.strip_prefix(LISTENER).unwrap_or_default();
    format!("{LISTENER}[{index}]{rest}")
}

/// Reads a file. The problems are syntax errors, unknown keys (BOOT-3) and tables that are not.
pub(super) fn read(file: &SourceFile) -> (Document, Vec<Problem>) {
    let (root, errors) = DeTable::parse_recoverable(&file.text);
    let lines = Lines::new(&file.path, file.text.as_bytes());
    let at = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
    let mut reader = Reader {
        known: Known::new(),
        broken_lines: errors.iter().map(|error| lines.line(at(error))).collect(),
        lines,
        document: Document {
            broken: !errors.is_empty(),
            ..Document::default()
        },
        problems: Vec::new(),
        unknown: 0,
    };
    for error in errors.iter().take(MAX_SYNTAX_PROBLEMS) {
        let place = reader.lines.place(at(error));
        let fault = format!("is not TOML here: {}", error.message());
        let problem = Problem::refuses(
            Refusal::NotToml,
            place,
            "the file",
            fault,
            "correct the line",
        );
        reader.problems.push(problem);
    }
    reader.table(root.get_ref(), "", "");
    (reader.document, reader.problems)
}

struct Reader<'a> {
    known: Known,
    lines: Lines<'a>,
    broken_lines: BTreeSet<usize>,
    document: Document,
    problems: Vec<Problem>,
    unknown: usize,
}

impl Reader<'_> {
    /// `pattern` is the path without numbers, as the key tables have it; `shown` has them.
    fn table(&mut self, table: &DeTable<'_>, pattern: &str, shown: &str) {
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let pattern = join(pattern, name);
            // "upstream.rpc_timeout_ms" in quotes is one name, not a key in a table.
            let is_plain = !name.contains('.');
            let shown = if is_plain {
                join(shown, name)
            } else {
                join(shown, &quoted(name))
            };
            let is_table = is_plain && self.known.tables.contains(pattern.as_str());
            if !is_table && self.is_broken(key.span(), value.span()) {
                continue;
            }
            if is_plain && self.known.values.contains(pattern.as_str()) {
                let node = self.node(value);
                self.document.values.insert(shown, node);
            } else if !is_table {
                self.unknown(key, &pattern, &shown);
            } else if pattern == LISTENER {
                self.listeners(value);
            } else if let DeValue::Table(inner) = value.get_ref() {
                let place = self.lines.place(value.span().start);
                self.document.tables.insert(shown.clone(), place);
                self.table(inner, &pattern, &shown);
            } else {
                self.wrong_shape(value, &shown, "a table", &format!("write [{pattern}]"));
            }
        }
    }

    /// Whether a syntax error stands where this was read: then the parser made it up in part.
    fn is_broken(&self, key: Range<usize>, value: Range<usize>) -> bool {
        let first = self.lines.line(key.start);
        let last = self.lines.line(value.end).max(first);
        self.broken_lines.range(first..=last).next().is_some()
    }

    fn listeners(&mut self, value: &Spanned<DeValue<'_>>) {
        let DeValue::Array(items) = value.get_ref() else {
            return self.wrong_shape(value, LISTENER, "a list of tables", "write [[listener]]");
        };
        if items.len() > MAX_LISTENERS {
            let allowed = format!("a list of at most {MAX_LISTENERS}");
            self.wrong_shape(value, LISTENER, &allowed, "delete some");
        }
        self.document.listeners = items.len().min(MAX_LISTENERS);
        for (index, item) in items.iter().take(MAX_LISTENERS).enumerate() {
            let shown = numbered(LISTENER, index);
            let DeValue::Table(inner) = item.get_ref() else {
                self.wrong_shape(item, &shown, "a table", "write [[listener]]");
                continue;
            };
            self.document
                .tables
                .insert(shown.clone(), self.lines.place(item.span().start));
            self.table(inner, LISTENER, &shown);
        }
    }

    fn unknown(&mut self, key: &Spanned<DeString<'_>>, pattern: &str, shown: &str) {
        self.unknown += 1;
        let place = self.lines.place(key.span().start);
        let problem = match self.unknown.cmp(&MAX_UNKNOWN_KEYS) {
            Ordering::Less => {
                let near = self.known.nearest(pattern);
                let fix = near.map_or("delete it".into(), |near| format!("did you mean {near}?"));
                let (shown, fault) = (printable(shown), "is not a key");
                if pattern.starts_with(later::LENIENT_TABLE) {
                    Problem::warns(place, shown, fault, fix)
                } else {
                    Problem::refuses(Refusal::UnknownKey, place, shown, fault, fix)
                }
            }
            Ordering::Equal => {
                let fault = "has more unknown keys";
                Problem::refuses(Refusal::UnknownKey, place, "the file", fault, "delete them")
            }
            Ordering::Greater => return,
        };
        self.problems.push(problem);
    }

    fn wrong_shape(&mut self, value: &Spanned<DeValue<'_>>, key: &str, allowed: &str, fix: &str) {
        let node = self.node(value);
        let fault = format!("is {}, not {allowed}", node.raw.shape());
        self.problems.push(Problem::refuses(
            Refusal::BadTable,
            node.place,
            key,
            fault,
            fix,
        ));
    }

    fn node(&self, value: &Spanned<DeValue<'_>>) -> Node {
        let raw = match value.get_ref() {
            DeValue::String(text) => Raw::Text(text.as_ref().to_owned()),
            DeValue::Integer(number) => {
                match i128::from_str_radix(number.as_str(), number.radix()) {
                    Ok(value) => Raw::Integer(value),
                    Err(_) => Raw::Float(number.as_str().parse().unwrap_or(f64::INFINITY)),
                }
            }
            DeValue::Float(number) => Raw::Float(number.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(flag) => Raw::Flag(*flag),
            DeValue::Datetime(_) => Raw::Date,
            DeValue::Array(items) => Raw::List(items.iter().map(|item| self.node(item)).collect()),
            DeValue::Table(table) => {
                let entry = |(key, value): (&Spanned<DeString<'_>>, _)| {
                    (key.get_ref().as_ref().to_owned(), self.node(value))
                };
                Raw::Table(table.iter().map(entry).collect())
            }
        };
        Node {
            raw,
            place: self.lines.place(value.span().start),
        }
    }
}

fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() {
        name.to_owned()
    } else {
        format!("{parent}.{name}")
    }
}

/// A quoted key may hold anything: keep control characters and endless names out of messages.
fn printable(key: &str) -> String {
    key.chars()
        .take(200)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// Every path that a file may use, without numbers.
struct Known {
    values: BTreeSet<&'static str>,
    tables: BTreeSet<&'static str>,
}

impl Known {
    fn new() -> Self {
        let values: BTreeSet<_> = keys::paths().collect();
        let parents = |path: &'static str| path.match_indices('.').map(|(at, _)| &path[..at]);
        let tables = values.iter().copied().flat_map(parents).collect();
        Self { values, tables }
    }

    /// The known path that an unknown one most probably means: a slip in the same table first,
    /// else the same or nearly the same name elsewhere.
    fn nearest(&self, unknown: &str) -> Option<&'static str> {
        let (table, name) = split(unknown);
        if unknown.len() > 100 {
            return None;
        }
        let distance = |known: &str| {
            let (known_table, known_name) = split(known);
            let by_name = strsim::osa_distance(name, known_name);
            let elsewhere = usize::from(table != known_table);
            // Older gateways wrote the table into the name: upstream_rpc_timeout_ms.
            let by_path = 1 + strsim::osa_distance(name, &known.replace('.', "_"));
            by_path.min(elsewhere + by_name)
        };
        self.values
            .iter()
            .chain(&self.tables)
            .map(|known| (distance(known), *known))
            .min()
            .filter(|(distance, _)| *distance <= 1 + name.len() / 4)
            .map(|(_, known)| known)
    }
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}
