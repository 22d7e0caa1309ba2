use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::testing::row;
use super::*;

#[test]
fn adj_1_each_node_has_a_row_of_its_own_for_an_agent() {
    let mut rows = Rows::default();
    rows.put(1, &row("agent", "s-1", 1)).unwrap();
    rows.put(2, &row("agent", "s-2", 2)).unwrap();
    rows.put(1, &row("agent", "s-3", 3)).unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows.get(1, "agent"), Some(row("agent", "s-3", 3)));
    assert_eq!(rows.get(2, "agent"), Some(row("agent", "s-2", 2)));
    assert!(rows.remove(1, "agent"));
    assert!(!rows.remove(1, "agent"));
    assert_eq!(rows.get(1, "agent"), None);
    assert_eq!(rows.of_agent("agent").count(), 1);
}

#[test]
fn a_full_shard_takes_no_row_and_room_comes_back() {
    let mut rows = Rows::default();
    let session = "s".repeat(60_000);
    let ids: Vec<_> = (0..).map(|n| format!("agent-{n}")).take(40).collect();
    let fits = ids
        .iter()
        .take_while(|id| rows.put(0, &row(id, &session, 1)).is_ok())
        .count();
    assert_eq!(fits, MAX_BYTES / 60_021);
    assert_eq!(rows.put(0, &row("late", &session, 1)), Err(Full));
    assert!(rows.remove(0, &ids[3]));
    assert_eq!(rows.put(0, &row("late", &session, 1)), Ok(()));
}

#[test]
fn a_text_longer_than_any_is_refused() {
    let long = "s".repeat(1 << 16);
    assert_eq!(Rows::default().put(0, &row("agent", &long, 1)), Err(Full));
}

#[test]
fn adj_4_memory_comes_back_when_rows_go() {
    let mut rows = Rows::default();
    let ids: Vec<_> = (0..4_000).map(|n| format!("agent-{n}")).collect();
    for id in &ids {
        rows.put(0, &row(id, "session", 1)).unwrap();
    }
    let full = rows.allocated();
    rows.retain(|_, row| row.agent_id == "agent-7");
    assert_eq!(rows.len(), 1);
    assert!(rows.allocated() < 2 << 10, "{full} {}", rows.allocated());
    assert_eq!(rows.get(0, "agent-7"), Some(row("agent-7", "session", 1)));
}

#[derive(Debug, Clone)]
enum Op {
    Put(u16, usize, usize, u64),
    Remove(u16, usize),
    RemoveNode(u16),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..3_u16, 0..40_usize, 0..300_usize, 0..9_u64)
            .prop_map(|(node, agent, len, epoch)| Op::Put(node, agent, len, epoch)),
        4 => (0..3_u16, 0..40_usize).prop_map(|(node, agent)| Op::Remove(node, agent)),
        1 => (0..3_u16).prop_map(Op::RemoveNode),
    ]
}

proptest! {
    /// Against a plain map, through every move of the packed bytes.
    #[test]
    fn adj_1_packed_rows_are_those_of_a_plain_map(ops in prop::collection::vec(op(), 0..400)) {
        let mut rows = Rows::default();
        let mut model = BTreeMap::new();
        for op in ops {
            match op {
                Op::Put(node, agent, len, epoch) => {
                    let (agent, session) = (format!("agent-{agent}"), "s".repeat(len));
                    rows.put(node, &row(&agent, &session, epoch)).unwrap();
                    model.insert((node, agent), (session, epoch));
                }
                Op::Remove(node, agent) => {
                    let agent = format!("agent-{agent}");
                    let there = model.remove(&(node, agent.clone())).is_some();
                    prop_assert_eq!(rows.remove(node, &agent), there);
                }
                Op::RemoveNode(node) => {
                    rows.retain(|of, _| of != node);
                    model.retain(|(of, _), _| *of != node);
                }
            }
            prop_assert_eq!(rows.len(), model.len());
            let bytes = |((_, agent), (session, _)): (&(u16, String), &(String, u64))| {
                HEAD + agent.len() + session.len()
            };
            let live = model.iter().map(bytes).sum::<usize>();
            prop_assert_eq!(rows.live, live);
            prop_assert!(rows.bytes.capacity() <= live + live / 4 + SMALL);
        }
        for ((node, agent), (session, epoch)) in &model {
            prop_assert_eq!(rows.get(*node, agent), Some(row(agent, session, *epoch)));
        }
    }
}
