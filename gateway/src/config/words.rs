//! Values that are one word of a few.
//!
//! Responsible for the words. Must never know which key takes them.

use super::schema::{Broadcast, ClientAuth, LogFormat, PeerAuthMode, TlsVersion, Visibility};

/// A value that is written as a word.
pub(super) trait Word {
    /// Takes the value that `word` names; false when it names none.
    fn set(&mut self, word: &str) -> bool;
    /// How the value is written.
    fn word(&self) -> &'static str;
}

macro_rules! words {
    ($type:ident: $($variant:ident = $word:literal),+) => {
        impl $type {
            /// All words, in the order of the documentation.
            pub(super) const WORDS: &'static [&'static str] = &[$($word),+];
        }

        impl Word for $type {
            fn set(&mut self, word: &str) -> bool {
                *self = match word {
                    $($word => Self::$variant,)+
                    _ => return false,
                };
                true
            }

            fn word(&self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}

words!(Visibility: Public = "public", Private = "private");
words!(Broadcast: Local = "local", Mesh = "mesh");
words!(LogFormat: Text = "text", Json = "json");
words!(ClientAuth: None = "none", Request = "request", Require = "require");
words!(TlsVersion: V1_2 = "1.2", V1_3 = "1.3");
words!(PeerAuthMode: Pin = "pin", Identity = "identity", IdentityOrPin = "identity_or_pin");

impl std::fmt::Display for PeerAuthMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

/// How the words are told in a message.
pub(super) fn alternatives(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
    quoted.join(" or ")
}
