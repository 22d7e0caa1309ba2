//! Which endpoint is tried next.
//!
//! Responsible for the order: the active endpoint first, then the others as they are configured.
//! Must never dial, sleep or know what an endpoint is.

use std::ops::Range;

/// The endpoints by their place in the configuration. Calls go to one of them at a time.
#[derive(Debug)]
pub(crate) struct Order {
    count: usize,
    active: usize,
    /// The last connection to the active endpoint did not last.
    unstable: bool,
}

impl Order {
    /// The first of `count` endpoints is active.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            count,
            active: 0,
            unstable: false,
        }
    }

    /// Every endpoint once, in the order in which they are to be tried. One whose connection did
    /// not last goes behind the others.
    pub(crate) fn round(&self) -> Vec<usize> {
        let mut round: Vec<usize> = (0..self.count).filter(|at| *at != self.active).collect();
        let at = if self.unstable { round.len() } else { 0 };
        round.insert(at, self.active);
        round
    }

    /// A connection to this endpoint was made: it is active.
    pub(crate) fn connected(&mut self, endpoint: usize) {
        self.active = endpoint;
        self.unstable = false;
    }

    /// The connection to the active endpoint did not last.
    pub(crate) fn did_not_last(&mut self) {
        self.unstable = true;
    }

    /// The endpoints that are preferred to the active one.
    pub(crate) fn preferred(&self) -> Range<usize> {
        0..self.active
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_active_endpoint_comes_first_then_the_others_as_configured() {
        let mut order = Order::new(4);
        assert_eq!(order.round(), [0, 1, 2, 3]);
        order.connected(2);
        assert_eq!(order.round(), [2, 0, 1, 3]);
        assert_eq!(order.preferred(), 0..2);
    }

    #[test]
    fn an_endpoint_that_does_not_last_goes_behind_the_others_until_it_is_connected_again() {
        let mut order = Order::new(3);
        order.connected(0);
        order.did_not_last();
        assert_eq!(order.round(), [1, 2, 0]);
        order.connected(0);
        assert_eq!(order.round(), [0, 1, 2]);
    }

    #[test]
    fn a_single_endpoint_is_tried_whatever_it_did() {
        let mut order = Order::new(1);
        assert_eq!(order.round(), [0]);
        order.did_not_last();
        assert_eq!(order.round(), [0]);
        assert_eq!(order.preferred(), 0..0);
    }
}
