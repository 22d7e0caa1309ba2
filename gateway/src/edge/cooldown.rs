//! Sources that flooded, and how long their next connections wait (LSN-18).
//!
//! A flood ends its connection within milliseconds, and the next handshake costs the node more than
//! the flood did. Responsible for making a source wait before that handshake. Pure. Must never
//! refuse: agents may live behind the same address. Must never put an address into a label or a
//! log.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::sources::Source;

/// From the end of a flood.
const COOLDOWN: Duration = Duration::from_secs(1);
/// Sources that are remembered at once. What floods from more of them is not held up.
const MOST: usize = 4_096;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Cooldowns {
    until: HashMap<Source, Instant>,
}

impl Cooldowns {
    /// A connection of `source` was closed for a flood.
    pub(super) fn flooded(&mut self, source: Source, now: Instant) {
        if self.until.len() >= MOST {
            self.until.retain(|_, until| *until > now);
        }
        if self.until.len() < MOST || self.until.contains_key(&source) {
            self.until.insert(source, now + COOLDOWN);
        }
    }

    /// How long a connection of `source` waits that begins now, if at all. A flood that ends
    /// meanwhile holds up those that begin after it.
    pub(super) fn wait(&mut self, source: Source, now: Instant) -> Option<Duration> {
        let until = *self.until.get(&source)?;
        if until > now {
            return Some(until - now);
        }
        self.until.remove(&source);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn source(number: u32) -> Source {
        Source::of(IpAddr::V4(number.into()))
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn lsn_18_a_source_that_flooded_waits_and_others_do_not() {
        let start = Instant::now();
        let mut cooldowns = Cooldowns::default();
        cooldowns.flooded(source(1), start);
        assert_eq!(cooldowns.wait(source(1), start + ms(300)), Some(ms(700)));
        assert_eq!(cooldowns.wait(source(2), start + ms(300)), None);
        cooldowns.flooded(source(1), start + ms(400));
        assert_eq!(cooldowns.wait(source(1), start + ms(1_300)), Some(ms(100)));
        assert_eq!(cooldowns.wait(source(1), start + ms(1_400)), None);
        assert!(cooldowns.until.is_empty(), "what is over is forgotten");
    }

    #[test]
    fn lsn_18_the_sources_that_are_remembered_are_bounded() {
        let start = Instant::now();
        let mut cooldowns = Cooldowns::default();
        for number in 0..=MOST as u32 {
            cooldowns.flooded(source(number), start);
        }
        assert_eq!(cooldowns.until.len(), MOST);
        assert_eq!(cooldowns.wait(source(MOST as u32), start), None);
        cooldowns.flooded(source(0), start + ms(500));
        assert_eq!(cooldowns.wait(source(0), start + ms(1_000)), Some(ms(500)));
        cooldowns.flooded(source(u32::MAX), start + ms(1_000));
        assert_eq!(cooldowns.until.len(), 2, "those that are over made room");
    }
}
