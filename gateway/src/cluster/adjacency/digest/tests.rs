use super::super::testing::row;
use super::*;

/// Worked out apart from this code: nodes of every version have to agree.
#[test]
fn adj_2_shards_and_digests_are_the_same_on_every_node() {
    let shards = ["agent-1", "agent-2", "a"].map(shard_of);
    assert_eq!(shards, [0xaa, 0xdc, 0x5f]);
    let mut digest = Digest::default();
    digest.add(&row("agent-1", "s-1", 7));
    assert_eq!(digest.number(), 0x9bc6_84f5_ca1e_9cfb);
    digest.add(&row("agent-2", "s-2", 8));
    assert_eq!(digest.number(), 0xd12b_601d_bbd8_067c);
}

#[test]
fn adj_2_a_digest_knows_no_order_and_forgets_what_is_taken_off() {
    let rows = [row("a", "s-1", 1), row("b", "s-2", 2), row("c", "s-3", 3)];
    let (mut one, mut other) = (Digest::default(), Digest::default());
    rows.iter().for_each(|row| one.add(row));
    rows.iter().rev().for_each(|row| other.add(row));
    assert_eq!(one, other);
    rows.iter().for_each(|row| one.take_off(row));
    assert_eq!(one, Digest::default());
}

#[test]
fn adj_2_a_digest_tells_every_field_of_a_row() {
    let of = |row: Row<'_>| {
        let mut digest = Digest::default();
        digest.add(&row);
        digest
    };
    let all = [
        row("a", "s", 1),
        row("b", "s", 1),
        row("a", "t", 1),
        row("a", "s", 2),
        row("as", "", 1),
    ];
    for (index, one) in all.iter().enumerate() {
        for other in &all[index + 1..] {
            assert_ne!(of(*one), of(*other), "{one:?} {other:?}");
        }
    }
}

#[test]
fn a_set_of_shards_holds_each_once() {
    let mut set = ShardSet::NONE;
    assert_eq!((set.len(), set.first()), (0, None));
    [255, 3, 64, 3]
        .into_iter()
        .for_each(|shard| set.insert(shard));
    assert!(set.iter().eq([3, 64, 255]));
    assert_eq!((set.len(), set.first()), (3, Some(3)));
    set.remove(3);
    set.union(set);
    assert!(set.iter().eq([64, 255]));
    assert_eq!(ShardSet::ALL.len(), SHARDS);
}
