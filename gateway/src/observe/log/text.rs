//! Text that an agent controls, made fit for a log line (LOG-4).
//!
//! Must never let a peer write a line of its own, move a terminal's cursor or fill a disk.

use std::fmt::{self, Write};

/// Longest text, in bytes, that [`safe_text`] shows.
pub const MAX_TEXT_BYTES: usize = 128;

/// Shows at most the first 128 bytes of `text`, cut between characters, with a `?` for every
/// control character, line or paragraph separator, direction override, and byte sequence that is
/// not UTF-8.
///
/// Nothing is copied before the line is really written: `agent = %safe_text(id)`.
pub fn safe_text<T: AsRef<[u8]> + ?Sized>(text: &T) -> SafeText<'_> {
    SafeText(text.as_ref())
}

/// See [`safe_text`].
#[derive(Clone, Copy)]
pub struct SafeText<'a>(&'a [u8]);

impl fmt::Display for SafeText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = MAX_TEXT_BYTES;
        for chunk in self.0.utf8_chunks() {
            let broken = (!chunk.invalid().is_empty()).then_some('?');
            for c in chunk.valid().chars().map(shown).chain(broken) {
                let Some(rest) = left.checked_sub(c.len_utf8()) else {
                    return Ok(());
                };
                left = rest;
                f.write_char(c)?;
            }
        }
        Ok(())
    }
}

/// Same as `Display`, so that a careless `?` in a log line shows no more.
impl fmt::Debug for SafeText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn shown(c: char) -> char {
    let rearranges = matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if c.is_control() || rearranges { '?' } else { c }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn log_4_control_characters_are_shown_as_question_marks() {
        assert_eq!(safe_text("agent-7 (Büro)").to_string(), "agent-7 (Büro)");
        assert_eq!(
            safe_text("a\nb\r\tc\0d\x1b[2Je\x7ff").to_string(),
            "a?b??c?d?[2Je?f"
        );
        assert_eq!(safe_text("c1 \u{9b}2J").to_string(), "c1 ?2J");
        assert_eq!(
            safe_text("x\u{2028}y\u{202e}z\u{2066}").to_string(),
            "x?y?z?"
        );
        assert_eq!(safe_text("").to_string(), "");
    }

    #[test]
    fn log_4_bytes_that_are_no_text_are_shown_as_question_marks() {
        assert_eq!(safe_text(b"a\xffb".as_slice()).to_string(), "a?b");
        assert_eq!(safe_text(b"\xc3\x28".as_slice()).to_string(), "?(");
        assert_eq!(safe_text(b"end\xe2\x82".as_slice()).to_string(), "end?");
    }

    #[test]
    fn log_4_at_most_128_bytes_cut_between_characters() {
        let exact = "x".repeat(128);
        assert_eq!(safe_text(&exact).to_string(), exact);
        assert_eq!(safe_text(&"x".repeat(129)).to_string(), exact);
        let odd = format!("{}\u{20ac}tail", "x".repeat(127));
        assert_eq!(safe_text(&odd).to_string(), "x".repeat(127));
        let fits = format!("{}\u{20ac}tail", "x".repeat(125));
        assert_eq!(
            safe_text(&fits).to_string(),
            format!("{}\u{20ac}", "x".repeat(125))
        );
    }

    #[test]
    fn log_4_debug_shows_no_more_than_display() {
        let text = format!("a\n{}", "x".repeat(200));
        assert_eq!(
            format!("{:?}", safe_text(&text)),
            safe_text(&text).to_string()
        );
    }

    proptest! {
        #[test]
        fn log_4_holds_for_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let shown = safe_text(&bytes).to_string();
            prop_assert!(shown.len() <= 128);
            prop_assert!(shown.chars().all(|c| !c.is_control()));
        }
    }
}
