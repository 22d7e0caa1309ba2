//! The table: redrawn in place on a terminal, one line per round elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Duration;

/// What is shown after a round. Sums run from the start of the demo.
#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    /// Broadcasts so far.
    pub(crate) rounds: u64,
    /// Agents that answered in the last round.
    pub(crate) agents: usize,
    /// Terminal answers so far.
    pub(crate) answers: u64,
    /// Of the last round, from the first byte sent to the end of the stream.
    pub(crate) answers_per_second: f64,
    /// Of the last round.
    pub(crate) p50: Duration,
    /// Of the last round.
    pub(crate) p99: Duration,
    /// Heartbeats that reached the server so far.
    pub(crate) heartbeats: u64,
    /// Batches they came in.
    pub(crate) batches: u64,
    /// Answers of simulated agents that did not come, so far.
    pub(crate) missing: u64,
    /// Answers that were doubled, out of order or failures, so far.
    pub(crate) wrong: u64,
}

const HEAD: &str = "  agents  broadcasts    answers  answers/s   p50 ms   p99 ms  \
                    heartbeats    batches  missing    wrong";

/// Where the table goes.
pub(crate) struct Screen {
    redraw: bool,
    drawn: bool,
}

impl Screen {
    /// Redraws in place when the standard output is a terminal.
    pub(crate) fn stdout() -> Self {
        Self {
            redraw: std::io::stdout().is_terminal(),
            drawn: false,
        }
    }

    /// Shows the row. A standard output that is gone is no reason to stop.
    pub(crate) fn show(&mut self, row: &Row) {
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(self.text(row).as_bytes());
        let _ = out.flush();
    }

    fn text(&mut self, row: &Row) -> String {
        let first = !std::mem::replace(&mut self.drawn, true);
        match (self.redraw, first) {
            (_, true) => format!("\n{HEAD}\n{}\n", line(row)),
            (false, false) => format!("{}\n", line(row)),
            // One line up, to its beginning, cleared.
            (true, false) => format!("\x1b[1A\r\x1b[2K{}\n", line(row)),
        }
    }
}

fn line(row: &Row) -> String {
    format!(
        "{:>8}  {:>10} {:>10} {:>10.0} {:>8} {:>8} {:>11} {:>10} {:>8} {:>8}",
        row.agents,
        row.rounds,
        row.answers,
        row.answers_per_second,
        millis(row.p50),
        millis(row.p99),
        row.heartbeats,
        row.batches,
        row.missing,
        row.wrong,
    )
}

fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(redraw: bool) -> Screen {
        Screen {
            redraw,
            drawn: false,
        }
    }

    #[test]
    fn elsewhere_every_round_is_one_plain_line() {
        let mut screen = screen(false);
        let row = Row {
            rounds: 1,
            p50: Duration::from_micros(1_260),
            ..Row::default()
        };
        assert_eq!(screen.text(&row).lines().count(), 3, "blank, head, row");
        let second = screen.text(&row);
        assert_eq!(second.lines().count(), 1);
        assert!(
            second.contains(" 1.3 ") && !second.contains('\x1b'),
            "{second}"
        );
    }

    #[test]
    fn a_terminal_gets_the_row_over_the_old_one() {
        let mut screen = screen(true);
        assert!(!screen.text(&Row::default()).contains('\x1b'));
        assert!(screen.text(&Row::default()).starts_with("\x1b[1A\r\x1b[2K"));
    }

    #[test]
    fn the_columns_stand_under_their_heads() {
        let row = Row {
            answers_per_second: 1.0,
            ..Row::default()
        };
        assert_eq!(line(&row).len(), HEAD.len());
    }
}
