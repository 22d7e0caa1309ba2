use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;

fn nodes(names: &[&str]) -> PublicNodes {
    PublicNodes::new(names.iter().map(|name| Arc::from(*name)))
}

/// Those of 100 agents that are to be told of again.
fn concerned(renaming: &Renaming) -> BTreeSet<String> {
    let agents = (0..100).map(|agent| format!("agent-{agent}"));
    agents.filter(|agent| renaming.concerns(agent)).collect()
}

/// Those of 100 agents that have another gateway with `after` than with `before`.
fn differing(before: &PublicNodes, after: &PublicNodes) -> BTreeSet<String> {
    let agents = (0..100).map(|agent| format!("agent-{agent}"));
    let differs = |agent: &String| before.of(agent) != after.of(agent);
    agents.filter(differs).collect()
}

#[test]
fn vis_5_a_change_concerns_those_whose_gateway_changes_and_only_them() {
    let (two, three) = (nodes(&["gw-a", "gw-b"]), nodes(&["gw-a", "gw-b", "gw-c"]));
    let mut renaming = Renaming::default();
    assert!(!renaming.is_due());
    assert!(renaming.change(two.clone()));
    assert_eq!(concerned(&renaming).len(), 100, "nobody was named before");
    renaming.walked();
    assert_eq!(concerned(&renaming).len(), 0);
    assert!(renaming.change(three.clone()));
    let moved = concerned(&renaming);
    assert_eq!(moved, differing(&two, &three));
    // The newcomer has won each of them.
    assert!(
        moved
            .iter()
            .all(|agent| **three.of(agent).unwrap() == *"gw-c")
    );
    assert!((20..50).contains(&moved.len()), "{}", moved.len());
    renaming.walked();
    assert!(!renaming.is_due());
}

#[test]
fn vis_5_a_set_that_is_in_force_already_concerns_nobody() {
    let mut renaming = Renaming::default();
    assert!(!renaming.change(nodes(&[])));
    assert!(renaming.change(nodes(&["gw-a"])));
    renaming.walked();
    assert!(!renaming.change(nodes(&["gw-a"])));
    assert!(!renaming.is_due());
}

#[test]
fn vis_5_a_change_during_a_walk_looks_back_at_every_set_that_was_told_under() {
    let (one, two) = (nodes(&["gw-a"]), nodes(&["gw-a", "gw-b"]));
    let three = nodes(&["gw-a", "gw-b", "gw-c"]);
    let mut renaming = Renaming::default();
    renaming.change(one.clone());
    renaming.walked();
    renaming.change(two.clone());
    renaming.change(three.clone());
    let mut expected = differing(&one, &three);
    expected.extend(differing(&two, &three));
    assert_eq!(concerned(&renaming), expected);
}

#[test]
fn vis_5_a_gateway_that_is_back_before_the_walk_ends_concerns_those_it_had() {
    let (two, one) = (nodes(&["gw-a", "gw-b"]), nodes(&["gw-a"]));
    let mut renaming = Renaming::default();
    renaming.change(two.clone());
    renaming.walked();
    renaming.change(one.clone());
    renaming.change(two.clone());
    // Some of them may have been told under the set between.
    assert_eq!(concerned(&renaming), differing(&one, &two));
    renaming.walked();
    assert!(!renaming.is_due());
}

#[test]
fn vis_5_what_is_looked_back_at_is_bounded() {
    let mut renaming = Renaming::default();
    let mut changes = 0;
    while renaming.has_room() {
        let name = format!("gw-{changes}");
        assert!(renaming.change(nodes(&[&name])));
        changes += 1;
    }
    assert_eq!(changes, 8);
    renaming.walked();
    assert!(renaming.has_room());
    assert!(!renaming.change(nodes(&["gw-7"])), "the latest is in force");
}
