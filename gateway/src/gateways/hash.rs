//! A hash that every node computes alike, whatever its version and machine.
//!
//! Responsible for FNV-1a over bytes and for the finish that spreads it over all 64 bits. Must never
//! change: nodes of different versions compare what they make of it.

const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a, 64 bits, fed piece by piece.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fnv1a(u64);

impl Fnv1a {
    /// Of nothing.
    pub(crate) fn new() -> Self {
        Self(OFFSET_BASIS)
    }

    /// Takes `bytes` in after all that it has.
    #[must_use]
    pub(crate) fn with(self, bytes: &[u8]) -> Self {
        let take = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
        Self(bytes.iter().fold(self.0, take))
    }

    /// The hash, its last bytes spread over all its bits.
    pub(crate) fn finish(self) -> u64 {
        splitmix64(self.0)
    }
}

/// The finish of the generator splitmix64, its increment included.
fn splitmix64(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the reference of FNV (draft-eastlake-fnv).
    #[test]
    fn fnv_1a_gives_the_published_values() {
        let of = |text: &str| Fnv1a::new().with(text.as_bytes()).0;
        assert_eq!(of(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(of("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(of("foobar"), 0x8594_4171_f739_67e8);
        let pieces = Fnv1a::new().with(b"foo").with(b"bar");
        assert_eq!(pieces.0, of("foobar"));
    }

    /// The first outputs of the generator with the seed 1234567, as its reference gives them.
    #[test]
    fn splitmix64_gives_the_published_values() {
        let increment = 0x9e37_79b9_7f4a_7c15_u64;
        let nth = |n: u64| splitmix64(1_234_567_u64.wrapping_add(increment.wrapping_mul(n)));
        assert_eq!(nth(0), 6_457_827_717_110_365_317);
        assert_eq!(nth(1), 3_203_168_211_198_807_973);
        assert_eq!(nth(2), 9_817_491_932_198_370_423);
    }
}
