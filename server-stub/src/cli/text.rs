//! Text from agents on a terminal.
//!
//! Responsible for making foreign text short and harmless.

/// Control characters become spaces or `?`, and what is over `max` characters is cut.
pub(crate) fn printable(text: &str, max: usize) -> String {
    let mut out = String::new();
    for (at, c) in text.trim_end().chars().enumerate() {
        if at == max {
            out.push('…');
            break;
        }
        out.push(match c {
            '\n' | '\r' | '\t' => ' ',
            c if c.is_control() => '?',
            c => c,
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn terminal_escapes_are_disarmed_and_long_text_is_cut() {
        assert_eq!(printable("a\x1b[31m\nb\n", 99), "a?[31m b");
        assert_eq!(printable("äöü", 2), "äö…");
    }
}
