//! The names by which a peer is known: its key, its certificate's serial, its identity.
//!
//! Responsible for their text forms. Must never compare loosely: no case is folded and nothing is
//! trimmed, but for the leading zeros of a number.

use std::fmt::{self, Write};

use super::sha256;

/// SHA-256 of a SubjectPublicKeyInfo (MGMT-AUTH-3).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyPin([u8; 32]);

impl KeyPin {
    pub(crate) fn of(spki: &[u8]) -> Self {
        Self(sha256(spki))
    }

    /// Reads 64 hex digits of either case.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = from_hex(text)?;
        Some(Self(bytes.try_into().ok()?))
    }
}

impl fmt::Display for KeyPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for KeyPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPin({self})")
    }
}

/// A certificate's serial number: a number that is not negative, big-endian, without leading
/// zeros.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Serial(Vec<u8>);

/// Digits of the longest serial that RFC 5280 allows.
const MAX_SERIAL_DIGITS: usize = 40;

impl Serial {
    /// Reads 1 to 40 bare hex digits of either case (MGMT-AUTH-10).
    pub fn parse(text: &str) -> Option<Self> {
        if !(1..=MAX_SERIAL_DIGITS).contains(&text.len()) {
            return None;
        }
        let padded = if text.len() % 2 == 1 {
            format!("0{text}")
        } else {
            text.to_owned()
        };
        Some(Self::of_magnitude(&from_hex(&padded)?))
    }

    /// The content of a DER INTEGER; `None` when it is empty or negative.
    pub(crate) fn of_der(content: &[u8]) -> Option<Self> {
        let first = *content.first()?;
        (first & 0x80 == 0).then(|| Self::of_magnitude(content))
    }

    fn of_magnitude(bytes: &[u8]) -> Self {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        Self(bytes[zeros..].to_vec())
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_empty() {
            true => f.write_str("00"),
            false => hex(&self.0, f),
        }
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serial({self})")
    }
}

const SCHEME: &str = "yuzu://";
const SERVER: &str = "/server";
const AGENT: &str = "/agent/";

/// The identity that the server of the install with this CA certificate has (MGMT-AUTH-8).
pub(crate) fn server_identity(ca_der: &[u8]) -> String {
    install(ca_der) + SERVER
}

/// What the identities of that install's agents begin with; the agent's id follows.
pub(crate) fn agent_identity_prefix(ca_der: &[u8]) -> String {
    install(ca_der) + AGENT
}

fn install(ca_der: &[u8]) -> String {
    let mut text = String::from(SCHEME);
    for byte in sha256(ca_der) {
        write!(text, "{byte:02X}").expect("a string takes it all");
    }
    text
}

/// Whether a text has the form of such an identity, whatever the case of its digits.
pub(crate) fn is_server_identity(text: &str) -> bool {
    let inside = text
        .strip_prefix(SCHEME)
        .and_then(|t| t.strip_suffix(SERVER));
    inside.is_some_and(|install| KeyPin::parse(install).is_some())
}

fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02X}"))
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
    let digits = digits?;
    if digits.len() % 2 == 1 {
        return None;
    }
    let byte = |pair: &[u32]| (pair[0] << 4 | pair[1]) as u8;
    Some(digits.chunks_exact(2).map(byte).collect())
}
