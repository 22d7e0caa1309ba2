//! Reading JSON bodies and query strings field by field.
//!
//! Responsible for errors that name the field, what is wrong and the fix, and for refusing fields
//! that nobody read. Must never echo a value, which may be a secret.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::rpc::Rpc;

/// A mistake of the caller.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadInput {
    field: String,
    error: String,
    fix: String,
}

impl BadInput {
    pub(crate) fn new(field: &str, error: &str, fix: &str) -> Self {
        BadInput {
            field: field.into(),
            error: error.into(),
            fix: fix.into(),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({ "error": self.error, "field": self.field, "fix": self.fix })
    }
}

pub(crate) fn missing(field: &str, fix: &str) -> BadInput {
    BadInput::new(field, "is missing", fix)
}

/// Named values of one request. Every reader takes its field out.
pub(crate) struct Object {
    fields: Map<String, Value>,
    /// Values are text, as in a query.
    textual: bool,
    known: BTreeMap<String, ()>,
}

impl Object {
    /// An empty body is an empty object.
    pub(crate) fn from_body(body: &[u8]) -> Result<Object, BadInput> {
        let value = match body {
            [] => Value::Object(Map::new()),
            body => serde_json::from_slice(body).map_err(|error| {
                let place = format!(
                    "is not JSON at line {} column {}",
                    error.line(),
                    error.column()
                );
                BadInput::new("body", &place, "send one JSON object")
            })?,
        };
        match value {
            Value::Object(fields) => Ok(Object::of(fields, false)),
            _ => Err(BadInput::new(
                "body",
                "is not an object",
                "send one JSON object",
            )),
        }
    }

    pub(crate) fn from_query(query: &str) -> Result<Object, BadInput> {
        let mut fields = Map::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, "true"));
            let value = percent_decoded(value)
                .ok_or_else(|| BadInput::new(name, "is not percent-encoded UTF-8", "encode it"))?;
            fields.insert(name.to_owned(), Value::String(value));
        }
        Ok(Object::of(fields, true))
    }

    fn of(fields: Map<String, Value>, textual: bool) -> Object {
        Object {
            fields,
            textual,
            known: BTreeMap::new(),
        }
    }

    fn take(&mut self, field: &str) -> Option<Value> {
        self.known.insert(field.to_owned(), ());
        self.fields.remove(field).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&mut self, field: &str) -> Result<Option<String>, BadInput> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(BadInput::new(field, "is not a string", "send a string")),
        }
    }

    pub(crate) fn texts(&mut self, field: &str) -> Result<Vec<String>, BadInput> {
        let bad = || BadInput::new(field, "is not a list of strings", "send a list of strings");
        match self.take(field) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => {
                let text = |value: Value| value.as_str().map(str::to_owned);
                list.into_iter()
                    .map(text)
                    .collect::<Option<_>>()
                    .ok_or_else(bad)
            }
            Some(_) => Err(bad()),
        }
    }

    /// `choices`: what `parse` accepts, for the error.
    pub(crate) fn parsed<T>(
        &mut self,
        field: &str,
        choices: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, BadInput> {
        let Some(text) = self.text(field)? else {
            return Ok(None);
        };
        let fix = format!("send {choices}");
        parse(&text)
            .map(Some)
            .ok_or_else(|| BadInput::new(field, "is not known", &fix))
    }

    pub(crate) fn flag(&mut self, field: &str) -> Result<bool, BadInput> {
        Ok(self.maybe_flag(field)?.unwrap_or(false))
    }

    pub(crate) fn maybe_flag(&mut self, field: &str) -> Result<Option<bool>, BadInput> {
        let flag = match self.take(field) {
            None => return Ok(None),
            Some(Value::String(text)) if self.textual => text.parse().ok(),
            Some(value) => value.as_bool(),
        };
        let bad = || BadInput::new(field, "is not a boolean", "send true or false");
        flag.map(Some).ok_or_else(bad)
    }

    pub(crate) fn number(
        &mut self,
        field: &str,
        min: u64,
        max: u64,
    ) -> Result<Option<u64>, BadInput> {
        let number = match self.take(field) {
            None => return Ok(None),
            Some(Value::String(text)) if self.textual => text.parse().ok(),
            Some(value) => value.as_u64(),
        };
        let fix = format!("send a whole number from {min} to {max}");
        let fits = number.filter(|number| (min..=max).contains(number));
        fits.map(Some)
            .ok_or_else(|| BadInput::new(field, "is not such a number", &fix))
    }

    /// Refuses fields that nobody asked for.
    pub(crate) fn finish(self) -> Result<(), BadInput> {
        let Some(field) = self.fields.keys().next() else {
            return Ok(());
        };
        let known: Vec<&str> = self.known.keys().map(String::as_str).collect();
        let fix = match known.as_slice() {
            [] => "send no fields here".to_owned(),
            known => format!("known here: {}", known.join(", ")),
        };
        Err(BadInput::new(field, "is not known here", &fix))
    }
}

pub(crate) fn rpc(object: &mut Object) -> Result<Option<Rpc>, BadInput> {
    let Some(text) = object.text("rpc")? else {
        return Ok(None);
    };
    text.parse()
        .map(Some)
        .map_err(|fix: String| BadInput::new("rpc", "is not an RPC", &fix))
}

pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|n| u8::try_from(n).ok())
    };
    let pair = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    digits
        .len()
        .is_multiple_of(2)
        .then(|| digits.chunks(2).map(pair).collect())
        .flatten()
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        let byte = match first {
            b'%' => {
                let (pair, after) = rest.split_at_checked(2)?;
                rest = after;
                from_hex(std::str::from_utf8(pair).ok()?)?[0]
            }
            b'+' => b' ',
            byte => byte,
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_once_and_the_rest_is_refused() {
        let mut object = Object::from_body(br#"{"limit":5,"lmit":6}"#).unwrap();
        assert_eq!(object.number("limit", 1, 9), Ok(Some(5)));
        assert_eq!(object.number("other", 1, 9), Ok(None));
        let left = object.finish().unwrap_err();
        assert_eq!(
            left,
            BadInput::new("lmit", "is not known here", "known here: limit, other")
        );
    }

    #[test]
    fn wrong_types_and_ranges_name_the_field() {
        let mut object = Object::from_body(br#"{"a":"5","b":10,"c":-1,"d":1,"e":[1]}"#).unwrap();
        for field in ["a", "b", "c"] {
            assert_eq!(object.number(field, 1, 9).unwrap_err().field, field);
        }
        assert_eq!(object.text("d").unwrap_err().field, "d");
        assert_eq!(object.texts("e").unwrap_err().fix, "send a list of strings");
        assert!(Object::from_body(b"[]").is_err());
        let broken = Object::from_body(b"{\n  x").err().unwrap();
        assert_eq!(broken.error, "is not JSON at line 2 column 3");
    }

    #[test]
    fn queries_are_percent_decoded() {
        let mut object = Object::from_query("a=x%3Ay+z&b=7&raw&c=true").unwrap();
        assert_eq!(object.text("a"), Ok(Some("x:y z".into())));
        assert_eq!(object.number("b", 0, 9), Ok(Some(7)));
        assert_eq!((object.flag("raw"), object.flag("c")), (Ok(true), Ok(true)));
        for broken in ["a=%4", "a=%zz", "a=%ff"] {
            assert!(Object::from_query(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn hex_is_read_in_pairs() {
        assert_eq!(from_hex("00aAff"), Some(vec![0, 0xaa, 0xff]));
        assert_eq!(
            (from_hex("0"), from_hex("0g"), from_hex("+1")),
            (None, None, None)
        );
    }
}
