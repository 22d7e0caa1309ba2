//! TOML text to keys with positions: syntax errors, unknown keys and wrong shapes are found here.
//!
//! Responsible for reading the whole text even when parts of it are broken, so that all problems
//! are told at once. Must never judge a value: that is [`super::keys`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys;
use super::problem::{Place, Problem};
use super::source::SourceFile;

/// Syntax errors that are told; the parser may find one in every byte.
const MAX_SYNTAX_PROBLEMS: usize = 20;

/// The one list of tables; its entries are numbered from 0.
const LISTENER: &str = "listener";

/// Line and column in a text, both from 1, the column in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Position {
    /// The position right behind `text`.
    pub(super) fn after(text: &str) -> Self {
        let line_start = text.rfind('\n').map_or(0, |at| at + 1);
        Self {
            line: text.bytes().filter(|byte| *byte == b'\n').count() + 1,
            column: text[line_start..].chars().count() + 1,
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
    Table { keys: usize },
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
            Self::Text(text) => format!("a {}-byte string", text.len()),
            Self::List(items) => format!("a {}-item list", items.len()),
            Self::Table { keys } => format!("a {keys}-key table"),
            Self::Date => "a date".into(),
        }
    }
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
    let mut reader = Reader {
        known: Known::new(),
        text: &file.text,
        path: &file.path,
        line_starts: line_starts(&file.text),
        document: Document {
            broken: !errors.is_empty(),
            ..Document::default()
        },
        problems: Vec::new(),
    };
    reader.table(root.get_ref(), "", "");

    // What the parser made up to go on after an error is on the error's own line.
    let broken_lines: BTreeSet<usize> = errors.iter().map(|e| reader.line_of(e.span())).collect();
    let Reader {
        mut problems,
        mut document,
        ..
    } = reader;
    let sound = |place: &Place| match place {
        Place::At { line, .. } => !broken_lines.contains(line),
        _ => true,
    };
    problems.retain(|problem| sound(&problem.place));
    document.values.retain(|_, node| sound(&node.place));
    problems.extend(syntax_problems(file, &errors));
    (document, problems)
}

fn syntax_problems(file: &SourceFile, errors: &[toml::de::Error]) -> Vec<Problem> {
    let starts = line_starts(&file.text);
    errors
        .iter()
        .take(MAX_SYNTAX_PROBLEMS)
        .map(|error| {
            let place = place(&file.path, &file.text, &starts, error.span());
            let fault = format!("is not TOML here: {}", error.message());
            Problem::refuses("bad_syntax", place, "the file", fault, "correct the line")
        })
        .collect()
}

fn line_starts(text: &str) -> Vec<usize> {
    std::iter::once(0)
        .chain(text.match_indices('\n').map(|(at, _)| at + 1))
        .collect()
}

fn place(path: &Arc<str>, text: &str, starts: &[usize], span: Option<Range<usize>>) -> Place {
    let at = text.floor_char_boundary(span.map_or(0, |span| span.start));
    let line = starts.partition_point(|start| *start <= at);
    let column = text[starts[line - 1]..at].chars().count() + 1;
    Place::At {
        path: path.clone(),
        line,
        column,
    }
}

struct Reader<'a> {
    known: Known,
    text: &'a str,
    path: &'a Arc<str>,
    line_starts: Vec<usize>,
    document: Document,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    /// `pattern` is the path without numbers, as the key tables have it; `shown` has them.
    fn table(&mut self, table: &DeTable<'_>, pattern: &str, shown: &str) {
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let pattern = join(pattern, name);
            let shown = join(shown, name);
            if self.known.values.contains(pattern.as_str()) {
                let node = self.node(value);
                self.document.values.insert(shown, node);
            } else if !self.known.tables.contains(pattern.as_str()) {
                self.unknown(key, &pattern, shown);
            } else if pattern == LISTENER {
                self.listeners(value);
            } else if let DeValue::Table(inner) = value.get_ref() {
                self.document
                    .tables
                    .insert(shown.clone(), self.place(Some(value.span())));
                self.table(inner, &pattern, &shown);
            } else {
                self.wrong_shape(value, &shown, "a table", &format!("write [{pattern}]"));
            }
        }
    }

    fn listeners(&mut self, value: &Spanned<DeValue<'_>>) {
        let DeValue::Array(items) = value.get_ref() else {
            return self.wrong_shape(value, LISTENER, "a list of tables", "write [[listener]]");
        };
        self.document.listeners = items.len();
        for (index, item) in items.iter().enumerate() {
            let shown = numbered(LISTENER, index);
            let DeValue::Table(inner) = item.get_ref() else {
                self.wrong_shape(item, &shown, "a table", "write [[listener]]");
                continue;
            };
            self.document
                .tables
                .insert(shown.clone(), self.place(Some(item.span())));
            self.table(inner, LISTENER, &shown);
        }
    }

    fn unknown(&mut self, key: &Spanned<toml::de::DeString<'_>>, pattern: &str, shown: String) {
        let fix = match self.known.nearest(pattern) {
            Some(near) => format!("did you mean {near}?"),
            None => "delete it".to_owned(),
        };
        let place = self.place(Some(key.span()));
        let shown = printable(&shown);
        self.problems.push(Problem::refuses(
            "unknown_keys",
            place,
            shown,
            "is not a key",
            fix,
        ));
    }

    fn wrong_shape(&mut self, value: &Spanned<DeValue<'_>>, key: &str, allowed: &str, fix: &str) {
        let node = self.node(value);
        let fault = format!("is {}, not {allowed}", node.raw.shape());
        self.problems
            .push(Problem::refuses("bad_table", node.place, key, fault, fix));
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
            DeValue::Table(table) => Raw::Table { keys: table.len() },
        };
        Node {
            raw,
            place: self.place(Some(value.span())),
        }
    }

    fn place(&self, span: Option<Range<usize>>) -> Place {
        place(self.path, self.text, &self.line_starts, span)
    }

    fn line_of(&self, span: Option<Range<usize>>) -> usize {
        match self.place(span) {
            Place::At { line, .. } => line,
            _ => 0,
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
