//! How far it is, for whoever waits.
//!
//! A bar on a terminal; otherwise a line for each step. Both go to standard error: standard output has
//! results alone. Must never be drawn into a line of a result.

use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const LOOK: &str = "{bar:30} {pos} of {len}  {msg}  {elapsed} so far{prefix}";
const REDRAWN: Duration = Duration::from_millis(250);

/// The bar that is drawn now: what scenarios say goes above it.
static DRAWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

fn drawn() -> MutexGuard<'static, Option<ProgressBar>> {
    DRAWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Steps, one after the other.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn of(steps: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps as u64);
            if let Ok(style) = ProgressStyle::with_template(LOOK) {
                bar.set_style(style);
            }
            bar.enable_steady_tick(REDRAWN);
            bar
        });
        drawn().clone_from(&bar);
        Self { bar }
    }

    /// The next step begins.
    pub(crate) fn step(&self, name: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(name.to_owned()),
            None => eprintln!("{name}"),
        }
    }

    /// The step has ended.
    pub(crate) fn done(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
            if let Some(left) = left(bar) {
                bar.set_prefix(format!(", about {} s to go", left.as_secs()));
            }
        }
    }
}

/// What is left, if the other steps take as long as those that have ended.
fn left(bar: &ProgressBar) -> Option<Duration> {
    let (done, all) = (bar.position(), bar.length()?);
    let each = bar.elapsed().checked_div(u32::try_from(done).ok()?)?;
    each.checked_mul(u32::try_from(all.saturating_sub(done)).ok()?)
}

impl Drop for Progress {
    fn drop(&mut self) {
        *drawn() = None;
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A line for whoever waits.
pub(crate) fn say(line: &str) {
    apart(|| eprintln!("{line}"));
}

/// Prints a part of the result.
pub(crate) fn result(text: &str) {
    apart(|| println!("{text}"));
}

/// Writes while no bar is drawn.
fn apart(write: impl FnOnce()) {
    let bar = drawn().clone();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}
