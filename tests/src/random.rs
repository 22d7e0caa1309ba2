//! Random numbers that can be had again: the same seed gives the same ones.
//!
//! For choices of load only. Must never make a secret.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A generator (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

/// What a step adds; odd, so that every state comes once.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Random {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator for the `number`th of several that run beside each other.
    #[must_use]
    pub fn apart(&self, number: u64) -> Self {
        let mut own = Self(self.0 ^ number.wrapping_mul(STEP));
        Self(own.any())
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to below 1.
    pub fn share(&mut self) -> f64 {
        // 53 bits: as many as a float holds.
        (self.any() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number from 0 to below `end`; 0 when there is none.
    pub fn below(&mut self, end: usize) -> usize {
        (self.share() * end as f64) as usize
    }

    /// A time between two.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        least + most.saturating_sub(least).mul_f64(self.share())
    }
}

/// A seed that differs from run to run.
pub fn seed_of_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    // Short enough to be typed again.
    u64::from(since.unwrap_or_default().subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_others_differ() {
        // The first numbers of the published generator for seed 0.
        let mut random = Random::new(0);
        assert_eq!(random.any(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(random.any(), 0x6E78_9E6A_A1B9_65F4);
        let of = |number| Random::new(7).apart(number).any();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut random = Random::new(1);
        let (least, most) = (Duration::from_secs(2), Duration::from_secs(3));
        for _ in 0..1_000 {
            assert!(random.below(3) < 3);
            assert!((least..most).contains(&random.between(least, most)));
        }
        assert_eq!(random.below(0), 0);
    }
}
