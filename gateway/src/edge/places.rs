//! Which connection gives way when places are short (LSN-17).
//!
//! Responsible for keeping places free for peers that are authorized. Pure: who they are is given,
//! as judged right now, so that a withdrawn certificate holds no place. Must never close one that
//! is authorized.

use super::ConnectionKey;

/// An open connection. The oldest has the smallest key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Occupant {
    pub(super) key: ConnectionKey,
    pub(super) authorized: bool,
}

/// The places of a listener.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    all: usize,
    reserved: usize,
}

impl Places {
    /// `all` of them, of which strangers leave `reserved` free, half of all at most.
    pub(super) fn new(all: usize, reserved: usize) -> Self {
        let reserved = reserved.min(all / 2);
        Self { all, reserved }
    }

    /// Whether so many connections can be open without a look at who they are.
    pub(super) fn suffice_for(self, open: usize) -> bool {
        self.reserved == 0 || open <= self.all - self.reserved
    }

    /// Who has to go: the oldest stranger, when the strangers hold more than their part or when the
    /// next newcomer would find no place. `newcomer`, who has just come and is among the
    /// occupants, has its time to become known.
    pub(super) fn gives_way(
        self,
        newcomer: Option<ConnectionKey>,
        occupants: &[Occupant],
    ) -> Option<ConnectionKey> {
        if self.suffice_for(occupants.len()) {
            return None;
        }
        let strangers = || occupants.iter().filter(|occupant| !occupant.authorized);
        let too_many = strangers().count() > self.all - self.reserved;
        let full = occupants.len() >= self.all;
        let oldest = strangers().map(|stranger| stranger.key).min()?;
        (newcomer != Some(oldest) && (too_many || full)).then_some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys in the order in which they connected; `true` is authorized.
    fn connected(authorized: &[bool]) -> Vec<Occupant> {
        let occupant = |authorized: &bool| Occupant {
            key: ConnectionKey::next(),
            authorized: *authorized,
        };
        authorized.iter().map(occupant).collect()
    }

    fn goes(places: Places, authorized: &[bool]) -> Option<usize> {
        let all = connected(authorized);
        let newcomer = all.last()?.key;
        let gone = places.gives_way(Some(newcomer), &all)?;
        all.iter().position(|occupant| occupant.key == gone)
    }

    #[test]
    fn lsn_17_strangers_leave_the_reserved_places_free() {
        let places = Places::new(6, 2);
        assert_eq!(goes(places, &[false; 4]), None);
        assert_eq!(goes(places, &[false; 5]), Some(0), "the oldest");
        let server_first = [true, false, false, false, false, false];
        assert_eq!(goes(places, &server_first), Some(1), "never the server");
        assert_eq!(goes(places, &[false, false, false, true, false]), None);
    }

    #[test]
    fn lsn_17_the_next_newcomer_finds_a_place_however_many_are_authorized() {
        let places = Places::new(6, 2);
        assert_eq!(goes(places, &[true, true, true, false, false]), None);
        let full = [true, true, true, true, false, false];
        assert_eq!(goes(places, &full), Some(4));
        let alone = [true, true, true, true, true, false];
        assert_eq!(goes(places, &alone), None, "it may be a server");
        assert_eq!(goes(places, &[true; 6]), None);
    }

    #[test]
    fn lsn_17_who_had_its_time_to_become_known_is_a_stranger_like_another() {
        let places = Places::new(6, 2);
        let full = connected(&[true, true, true, true, true, false]);
        assert_eq!(places.gives_way(None, &full), Some(full[5].key));
        let known = connected(&[true; 6]);
        assert_eq!(places.gives_way(None, &known), None);
        assert_eq!(places.gives_way(None, &full[1..]), None, "one is free");
    }

    #[test]
    fn lsn_17_at_most_half_is_reserved_and_none_where_none_is_asked_for() {
        assert_eq!(goes(Places::new(4, 100), &[false; 2]), None);
        assert_eq!(goes(Places::new(4, 100), &[false; 3]), Some(0));
        assert_eq!(goes(Places::new(1, 16), &[false]), None);
        assert_eq!(goes(Places::new(4, 0), &[false; 4]), None);
    }
}
