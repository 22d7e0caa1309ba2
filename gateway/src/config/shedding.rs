//! The marks of memory shedding, worked out from the configuration and the machine's memory.
//!
//! Responsible for SHED-4, SHED-7 and SHED-8: which marks are in force, which can't work, and when
//! none can be known. Pure.

use std::time::Duration;

use super::memory_limit::MemoryLimit;

const HIGH: f64 = 0.75;
const LOW: f64 = 0.65;

/// A share of a whole, above 0 and below 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fraction(f64);

// A fraction is never NaN.
impl Eq for Fraction {}

impl Fraction {
    /// `None` unless it is above 0 and below 1.
    pub fn new(value: f64) -> Option<Self> {
        (value > 0.0 && value < 1.0).then_some(Self(value))
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }

    fn of(self, whole: u64) -> u64 {
        // A limit is far below 2^53 bytes or its last bytes do not matter.
        (self.0 * whole as f64) as u64
    }
}

/// `[memory.shedding]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shedding {
    /// Whether agents are refused when memory is short.
    pub enabled: bool,
    /// Time between samples.
    pub interval: Duration,
    /// Agents are refused above this share of the limit; 0.75 when nothing is set.
    pub high_fraction: Option<Fraction>,
    /// They are admitted again at this share; 0.65 when nothing is set.
    pub low_fraction: Option<Fraction>,
    /// In place of `high_fraction`, bytes.
    pub high_bytes: Option<u64>,
    /// In place of `low_fraction`, bytes.
    pub low_bytes: Option<u64>,
}

/// The marks in force, in bytes; low below high.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// Above this agents are refused.
    pub high: u64,
    /// At or below this they are admitted again.
    pub low: u64,
}

/// What shedding does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Nothing, as configured.
    Disabled,
    /// Nothing, since a mark is a fraction of a limit that nobody knows (SHED-8).
    Inactive,
    /// It compares memory with these.
    Active(Marks),
}

/// A mark that can't work: the key it was set by, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Defect {
    pub(super) key: &'static str,
    pub(super) fault: String,
}

impl Shedding {
    /// The plan on a machine with this limit.
    pub fn plan(&self, limit: Option<MemoryLimit>) -> Plan {
        // What can't work has refused the start.
        self.judge(limit).unwrap_or(Plan::Inactive)
    }

    /// As [`Self::plan`], or what is wrong.
    pub(super) fn judge(&self, limit: Option<MemoryLimit>) -> Result<Plan, Defect> {
        if !self.enabled {
            return Ok(Plan::Disabled);
        }
        let (Some(high), Some(low)) = (self.high(limit), self.low(limit)) else {
            return Ok(Plan::Inactive);
        };
        let text = |mark: &Mark| format!("{} bytes ({})", mark.bytes, mark.told(limit));
        if let Some(limit) = limit {
            for mark in [&high, &low] {
                if mark.bytes >= limit.bytes {
                    let fault = format!(
                        "gives a mark of {}, not below the memory limit of {} bytes ({})",
                        text(mark),
                        limit.bytes,
                        limit.origin
                    );
                    return Err(Defect {
                        key: mark.key,
                        fault,
                    });
                }
            }
        }
        if low.bytes >= high.bytes {
            let fault = format!(
                "gives a low mark of {}, not below the high mark of {}",
                text(&low),
                text(&high)
            );
            return Err(Defect {
                key: low.key,
                fault,
            });
        }
        if low.bytes == 0 {
            let fault = format!("gives a low mark of {}", text(&low));
            return Err(Defect {
                key: low.key,
                fault,
            });
        }
        Ok(Plan::Active(Marks {
            high: high.bytes,
            low: low.bytes,
        }))
    }

    /// `None`: it is a fraction of a limit that nobody knows.
    fn high(&self, limit: Option<MemoryLimit>) -> Option<Mark> {
        if let Some(bytes) = self.high_bytes {
            return Some(Mark::bytes("memory.shedding.high_water_bytes", bytes));
        }
        match (self.high_fraction, self.low_bytes) {
            (None, Some(low)) => {
                let key = "memory.shedding.low_water_bytes";
                let bytes = (low as f64 * HIGH / LOW) as u64;
                let at_most = limit.map(|limit| limit.bytes);
                let bytes = match at_most {
                    Some(limit) if bytes >= limit && low < limit => low + (limit - low) / 2,
                    _ => bytes,
                };
                Some(Mark::bytes(key, bytes))
            }
            (fraction, _) => {
                let key = "memory.shedding.high_water_fraction";
                Mark::fraction(key, fraction.unwrap_or(Fraction(HIGH)), limit?)
            }
        }
    }

    fn low(&self, limit: Option<MemoryLimit>) -> Option<Mark> {
        if let Some(bytes) = self.low_bytes {
            return Some(Mark::bytes("memory.shedding.low_water_bytes", bytes));
        }
        match (self.low_fraction, self.high_bytes) {
            (None, Some(high)) => {
                let key = "memory.shedding.high_water_bytes";
                Some(Mark::bytes(key, (high as f64 * LOW / HIGH) as u64))
            }
            (fraction, _) => {
                let key = "memory.shedding.low_water_fraction";
                Mark::fraction(key, fraction.unwrap_or(Fraction(LOW)), limit?)
            }
        }
    }
}

/// A mark and the key that it comes from.
struct Mark {
    key: &'static str,
    bytes: u64,
    fraction: Option<Fraction>,
}

impl Mark {
    fn bytes(key: &'static str, bytes: u64) -> Self {
        Self {
            key,
            bytes,
            fraction: None,
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "reads as the other branch does")]
    fn fraction(key: &'static str, fraction: Fraction, limit: MemoryLimit) -> Option<Self> {
        Some(Self {
            key,
            bytes: fraction.of(limit.bytes),
            fraction: Some(fraction),
        })
    }

    fn told(&self, limit: Option<MemoryLimit>) -> String {
        let key = self.key.trim_start_matches("memory.shedding.");
        match (self.fraction, limit) {
            (Some(fraction), Some(limit)) => {
                format!("{key} {} of {} bytes", fraction.get(), limit.bytes)
            }
            _ => key.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
