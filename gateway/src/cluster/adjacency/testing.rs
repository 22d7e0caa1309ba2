//! Rows for tests.

use super::digest::Row;
use crate::session::Epoch;

pub(super) fn epoch(number: u64) -> Epoch {
    Epoch::from_number(number).unwrap()
}

pub(super) fn row<'a>(agent_id: &'a str, session_id: &'a str, number: u64) -> Row<'a> {
    Row {
        agent_id,
        session_id,
        epoch: epoch(number),
    }
}
