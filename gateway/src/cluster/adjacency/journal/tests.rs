use super::super::testing::{epoch, row as row_of};
use super::*;

fn id(text: &str) -> Arc<str> {
    Arc::from(text)
}

fn told(journal: &Journal, after: u64) -> Vec<String> {
    let changes = journal.changes_after(after).unwrap();
    changes.map(|change| format!("{change:?}")).collect()
}

#[test]
fn adj_1_changes_have_numbers_in_their_order() {
    let (mut journal, now) = (Journal::new(), Instant::now());
    assert_eq!((journal.last(), told(&journal, 0)), (0, vec![]));
    journal.came(&id("a"), &id("s-1"), epoch(1), now);
    journal.came(&id("a"), &id("s-2"), epoch(2), now);
    journal.went(&id("a"), epoch(2), now);
    assert_eq!(journal.last(), 3);
    let all = ["came a Epoch(1)", "came a Epoch(2)", "went a Epoch(2)"];
    assert_eq!(told(&journal, 0), all);
    assert_eq!(told(&journal, 2), all[2..]);
    assert_eq!(told(&journal, 3), all[3..]);
}

#[test]
fn adj_1_a_reader_that_falls_behind_learns_of_it_and_costs_nothing() {
    let (mut journal, now) = (Journal::new(), Instant::now());
    for number in 0..KEPT as u64 + 5 {
        journal.came(&id("a"), &id("s"), epoch(number), now);
    }
    assert_eq!(journal.changes.len(), KEPT);
    assert!(journal.changes_after(4).is_err());
    assert_eq!(told(&journal, 5).len(), KEPT);
    assert_eq!(told(&journal, 5)[0], "came a Epoch(5)");
}

#[test]
fn adj_2_rows_and_digests_are_those_after_the_last_change() {
    let (mut journal, now) = (Journal::new(), Instant::now());
    // These share a shard.
    for (agent, number) in [("agent-83", 1), ("agent-1", 2), ("agent-117", 3)] {
        journal.came(&id(agent), &id("s"), epoch(number), now);
    }
    journal.came(&id("agent-1"), &id("t"), epoch(4), now);
    journal.went(&id("agent-83"), epoch(1), now);
    let shard = shard_of("agent-1");
    let agents = |after| {
        let rows = journal.rows_after(shard, after);
        rows.map(|(agent, held)| (agent.to_string(), held.epoch.number()))
            .collect::<Vec<_>>()
    };
    assert_eq!(agents(""), [("agent-1".into(), 4), ("agent-117".into(), 3)]);
    assert_eq!(agents("agent-1"), [("agent-117".into(), 3)]);
    let mut expected = Digest::default();
    expected.add(&row_of("agent-1", "t", 4));
    expected.add(&row_of("agent-117", "s", 3));
    let digests: Vec<_> = journal.digests().collect();
    assert_eq!(digests.len(), SHARDS);
    for (index, digest) in digests.into_iter().enumerate() {
        let of = if index == shard {
            expected
        } else {
            Digest::default()
        };
        assert_eq!(digest, of, "shard {index}");
    }
}

#[test]
fn the_age_of_a_change_counts_from_when_it_happened() {
    let (mut journal, now) = (Journal::new(), Instant::now());
    let later = |seconds| now + Duration::from_secs(seconds);
    assert_eq!(journal.age_after(0, later(9)), Duration::ZERO);
    journal.came(&id("a"), &id("s"), epoch(1), later(1));
    journal.went(&id("a"), epoch(1), later(3));
    assert_eq!(journal.age_after(0, later(9)), Duration::from_secs(8));
    assert_eq!(journal.age_after(1, later(9)), Duration::from_secs(6));
    assert_eq!(journal.age_after(2, later(9)), Duration::ZERO);
}
