//! What the command-line tools share: durations, addresses, descriptors, the stop signal.

use std::net::SocketAddr;
use std::time::Duration;

/// Reads a duration such as `250ms`, `30s` or `5m`; a bare number is seconds.
///
/// # Errors
/// What is wrong with it, as text.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number
        .parse()
        .map_err(|_| format!("`{text}` has no number"))?;
    let seconds = match unit {
        "ms" => number / 1_000.0,
        "" | "s" => number,
        "m" => number * 60.0,
        "h" => number * 3_600.0,
        _ => return Err(format!("`{unit}` is no unit, use ms, s, m or h")),
    };
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

/// As [`duration`], where `off` means never.
///
/// # Errors
/// What is wrong with it, as text.
pub fn interval(text: &str) -> Result<Interval, String> {
    if text == "off" {
        return Ok(Interval(None));
    }
    match duration(text)? {
        zero if zero.is_zero() => Err("must be above zero; write `off` for never".into()),
        some => Ok(Interval(Some(some))),
    }
}

/// A time between two events, or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval(pub Option<Duration>);

/// Resolves `host:port` or `ip:port`.
///
/// # Errors
/// A sentence for the user.
pub async fn resolve(address: &str) -> Result<SocketAddr, String> {
    let mut found = tokio::net::lookup_host(address)
        .await
        .map_err(|e| format!("cannot resolve `{address}` (want host:port): {e}"))?;
    found
        .next()
        .ok_or_else(|| format!("`{address}` resolves to nothing"))
}

/// Descriptors a process needs beside its connections.
const DESCRIPTORS_BESIDE: usize = 64;

/// Checks that the process may open this many connections.
///
/// # Errors
/// A sentence for the user.
pub fn check_descriptors(connections: usize) -> Result<(), String> {
    // Where there is no such file, there is nothing to check.
    let Ok(limits) = std::fs::read_to_string("/proc/self/limits") else {
        return Ok(());
    };
    let needed = connections + DESCRIPTORS_BESIDE;
    match open_files(&limits) {
        Some(allowed) if allowed < needed => Err(format!(
            "{connections} connections need about {needed} descriptors and this process may open \
             {allowed}: raise the limit with `ulimit -n`, or start fewer"
        )),
        _ => Ok(()),
    }
}

fn open_files(limits: &str) -> Option<usize> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Completes on Ctrl-C and on SIGTERM.
pub async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        },
        Err(_) => {
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_durations() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1_500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert!(duration("s").is_err());
        assert!(duration("3d").is_err());
        assert!(duration("-3s").is_err());
        assert_eq!(interval("off"), Ok(Interval(None)));
        assert!(interval("0s").is_err());
    }

    #[test]
    fn reads_the_descriptor_limit() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 20000                files\n";
        assert_eq!(open_files(limits), Some(1024));
        assert_eq!(
            open_files("Max open files            unlimited  unlimited  files"),
            None
        );
    }
}
