//! Checks that commands reach an agent once and in the order they were sent.
//!
//! Pure. A command id that ends in `-` and a number takes part: what stands before the dash
//! names the run, the number must grow within it.

use std::cmp::Ordering;

/// What an arriving command says about the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// As expected, or an id without a number.
    InOrder,
    /// The same number as the one before.
    Duplicate,
    /// A smaller number than the one before.
    Late,
}

/// The last command of the current run.
#[derive(Debug, Default)]
pub(super) struct Order {
    last: Option<(Box<str>, u64)>,
}

impl Order {
    /// Notes a command.
    pub(super) fn arrived(&mut self, command_id: &str) -> Arrival {
        let Some((run, number)) = split(command_id) else {
            return Arrival::InOrder;
        };
        match &mut self.last {
            Some((last_run, last)) if **last_run == *run => match number.cmp(last) {
                Ordering::Greater => {
                    *last = number;
                    Arrival::InOrder
                }
                Ordering::Equal => Arrival::Duplicate,
                Ordering::Less => Arrival::Late,
            },
            last => {
                *last = Some((run.into(), number));
                Arrival::InOrder
            }
        }
    }
}

fn split(command_id: &str) -> Option<(&str, u64)> {
    let (run, number) = command_id.rsplit_once('-')?;
    Some((run, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_duplicates_and_late_commands_within_a_run() {
        let mut order = Order::default();
        assert_eq!(order.arrived("a-1"), Arrival::InOrder);
        assert_eq!(order.arrived("a-3"), Arrival::InOrder);
        assert_eq!(order.arrived("a-3"), Arrival::Duplicate);
        assert_eq!(order.arrived("a-2"), Arrival::Late);
        assert_eq!(order.arrived("a-4"), Arrival::InOrder);
        assert_eq!(order.arrived("b-1"), Arrival::InOrder);
    }

    #[test]
    fn ids_without_a_number_take_no_part() {
        let mut order = Order::default();
        assert_eq!(order.arrived("a-1"), Arrival::InOrder);
        assert_eq!(order.arrived("by-hand"), Arrival::InOrder);
        assert_eq!(order.arrived(""), Arrival::InOrder);
        assert_eq!(order.arrived("a-1"), Arrival::Duplicate);
    }
}
