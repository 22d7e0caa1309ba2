//! Log lines: where they go, what limits them, and what they may hold.
//!
//! Responsible for the subscriber, the panic hook and the tools of LOG-1 and LOG-4. Must never
//! write a panic's payload (LOG-5), and must never be called for a line by a room that could not
//! say that line without a secret (LOG-3).
//!
//! A call site is one line:
//!
//! ```
//! use yuzu_gateway::observe::log::{limit, limited, safe_text};
//! # let (agent, address, size) = ("a-1", "192.0.2.1:5", 300);
//! tracing::info!("Agent {} connected from {}", safe_text(agent), safe_text(address));
//! limited!(
//!     warn,
//!     limit::REGISTER_REFUSED,
//!     "Register refused: the agent id is empty or longer than 256 bytes (size {size} bytes)"
//! );
//! ```

pub mod limit;
mod text;

use std::fmt;
use std::io::IsTerminal;
use std::panic::Location;
use std::sync::OnceLock;

use tracing::Dispatch;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

pub use limit::{PerReason, limited};
pub use text::{MAX_TEXT_BYTES, SafeText, safe_text};

use crate::config::LogFormat;

const QUIET: [&str; 3] = ["h2", "hyper", "chitchat"];
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Why logging could not start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The text is neither a level nor a filter.
    #[error(
        "{level:?} is not a log filter ({source}): give one of {LEVELS:?}, or a list like \"info,yuzu_gateway=debug\""
    )]
    Filter {
        /// The configured text.
        level: String,
        /// What the parser says.
        source: ParseError,
    },
    /// A part of the filter is a bare word that is no level. It would be read as the name of a
    /// module and silence everything else, which is what a misspelt level must not do.
    #[error(
        "{part:?} is not a log level: give one of {LEVELS:?}, or name a module with its level like \"yuzu_gateway=debug\""
    )]
    Level {
        /// The part.
        part: String,
    },
}

/// Sends log lines of `level` (a level, or a filter like `info,yuzu_gateway=debug`) to the
/// standard error stream and redacts panics from now on. In a process that already has a
/// subscriber, that one stays.
///
/// For a process, not for a library: call it from `main`. A test that calls it loses the text of
/// its own failed assertions.
///
/// # Errors
/// When `level` is no filter; nothing has changed then.
pub fn init(level: &str, format: LogFormat) -> Result<(), LogError> {
    let filter = parse_filter(level)?;
    let colours = std::io::stderr().is_terminal();
    let (dispatch, level) = dispatch(filter, format, colours, std::io::stderr);
    // The only error is that there is a subscriber already.
    if dispatch.try_init().is_ok() {
        let _ = LEVEL.set(level);
    }
    install_panic_hook();
    Ok(())
}

/// Writes lines of `level` from now on. Without effect in a process whose subscriber is not that
/// of [`init`].
///
/// # Errors
/// When `level` is no filter; nothing has changed then.
pub(crate) fn set_level(level: &str) -> Result<(), LogError> {
    let filter = parse_filter(level)?;
    if let Some(set) = LEVEL.get() {
        set(filter);
    }
    Ok(())
}

/// Puts another filter in force.
type SetLevel = Box<dyn Fn(EnvFilter) + Send + Sync>;

/// Of the subscriber of this process.
static LEVEL: OnceLock<SetLevel> = OnceLock::new();

/// Replaces the hook that prints a panic's payload by one that writes where it happened (LOG-5).
pub fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        tracing::error!("{}", PanicLine(info.location()));
    }));
}

struct PanicLine<'a>(Option<&'a Location<'a>>);

impl fmt::Display for PanicLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("panic, text withheld, at ")?;
        match self.0 {
            Some(location) => location.fmt(f),
            None => f.write_str("an unknown place"),
        }
    }
}

fn parse_filter(level: &str) -> Result<EnvFilter, LogError> {
    for part in level.split(',').map(str::trim) {
        let is_level = LEVELS.iter().any(|known| part.eq_ignore_ascii_case(known));
        if !is_level && !part.contains('=') {
            return Err(LogError::Level {
                part: part.to_owned(),
            });
        }
    }
    // Peers can make these libraries warn once a frame; whoever wants their lines names them.
    let quiet = QUIET.iter().filter(|target| !level.contains(*target));
    let level = quiet.fold(level.to_owned(), |level, target| {
        format!("{level},{target}=error")
    });
    EnvFilter::builder()
        .parse(&level)
        .map_err(|source| LogError::Filter { level, source })
}

fn dispatch<W>(
    filter: EnvFilter,
    format: LogFormat,
    colours: bool,
    writer: W,
) -> (Dispatch, SetLevel)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer);
    match format {
        LogFormat::Text => {
            let lines = lines.with_ansi(colours).with_filter_reloading();
            let level = setter(lines.reload_handle());
            (lines.into(), level)
        }
        LogFormat::Json => {
            let lines = lines
                .json()
                .flatten_event(true)
                .with_current_span(false)
                .with_span_list(false)
                .with_filter_reloading();
            let level = setter(lines.reload_handle());
            (lines.into(), level)
        }
    }
}

fn setter<S: 'static>(handle: reload::Handle<EnvFilter, S>) -> SetLevel {
    Box::new(move |filter| {
        // The only errors: the subscriber is gone, or a thread panicked inside it.
        let _ = handle.reload(filter);
    })
}

#[cfg(test)]
mod tests;
