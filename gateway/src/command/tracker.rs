//! Who answered one SendCommand, and what is left.
//!
//! Responsible for completing each target exactly once. Pure. Must never know what an answer is.

/// The targets of one SendCommand, by their index.
#[derive(Debug)]
pub(crate) struct Tracker {
    open: Vec<u64>,
    left: usize,
}

impl Tracker {
    /// `targets` targets, none of them waited for yet.
    pub(crate) fn new(targets: usize) -> Self {
        Self {
            open: vec![0; targets.div_ceil(64)],
            left: 0,
        }
    }

    /// Has room for `targets` targets from now on.
    pub(crate) fn extend_to(&mut self, targets: usize) {
        self.open.resize(targets.div_ceil(64), 0);
    }

    /// The target is waited for.
    pub(crate) fn expect(&mut self, target: u32) {
        if let Some((word, bit)) = self.place(target)
            && *word & bit == 0
        {
            *word |= bit;
            self.left += 1;
        }
    }

    /// Whether the target is waited for.
    pub(crate) fn is_open(&mut self, target: u32) -> bool {
        self.place(target)
            .is_some_and(|(word, bit)| *word & bit != 0)
    }

    /// The target is terminal (CMD-7). False: it was already, or was never waited for.
    pub(crate) fn complete(&mut self, target: u32) -> bool {
        let Some((word, bit)) = self.place(target) else {
            return false;
        };
        if *word & bit == 0 {
            return false;
        }
        *word &= !bit;
        self.left -= 1;
        true
    }

    /// Targets waited for.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    fn place(&mut self, target: u32) -> Option<(&mut u64, u64)> {
        let word = self.open.get_mut(target as usize / 64)?;
        Some((word, 1 << (target % 64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_completes_once() {
        let mut tracker = Tracker::new(130);
        for target in [0, 63, 64, 129] {
            tracker.expect(target);
            tracker.expect(target);
        }
        assert_eq!(tracker.left(), 4);
        assert!(tracker.complete(64));
        assert!(!tracker.complete(64));
        assert!(!tracker.complete(1));
        assert!(!tracker.complete(9_999));
        assert_eq!(tracker.left(), 3);
        assert!(tracker.is_open(129));
        assert!(!tracker.is_open(64));
    }
}
