use std::collections::BTreeMap;

use super::*;

fn nodes(names: &[&str]) -> PublicNodes {
    PublicNodes::new(names.iter().map(|name| Arc::from(*name)))
}

fn of<'a>(nodes: &'a PublicNodes, agent_id: &str) -> Option<&'a str> {
    nodes.of(agent_id).map(|name| &**name)
}

/// Worked out with another implementation, from the published constants.
#[test]
fn vis_4_the_choice_is_the_one_that_was_worked_out() {
    let score = |agent: &str, node: &str| {
        let agent = Fnv1a::new().with(agent.as_bytes()).with(&[0]);
        agent.with(node.as_bytes()).finish()
    };
    assert_eq!(score("agent-1", "gw-a"), 0xfea6_8cee_6565_bd49);
    assert_eq!(score("agent-1", "gw-b"), 0x3968_a6f1_9c00_b85d);
    assert_eq!(score("agent-1", "gw-c"), 0x5652_a6be_9050_d9b0);
    assert_eq!(score("agent-8", "gw-c"), 0xf90b_211a_354a_5b11);
    let three = nodes(&["gw-a", "gw-b", "gw-c"]);
    for (agent, gateway) in [
        ("agent-1", "gw-a"),
        ("agent-7", "gw-b"),
        ("agent-8", "gw-c"),
        ("\u{fc}n\u{ef}", "gw-a"),
        ("", "gw-c"),
    ] {
        assert_eq!(of(&three, agent), Some(gateway), "{agent}");
    }
}

#[test]
fn vis_4_every_node_chooses_alike_in_whatever_order_it_hears_of_them() {
    let (there, back) = (
        nodes(&["gw-c", "gw-a", "gw-b", "gw-a"]),
        nodes(&["gw-a", "gw-b", "gw-c"]),
    );
    assert_eq!(there, back);
    for agent in 0..100 {
        let agent = format!("agent-{agent}");
        assert_eq!(of(&there, &agent), of(&back, &agent));
    }
}

#[test]
fn vis_4_agents_are_spread_and_only_those_of_a_lost_gateway_move() {
    let before = nodes(&["gw-a", "gw-b", "gw-c"]);
    let after = nodes(&["gw-a", "gw-c"]);
    let mut shares = BTreeMap::new();
    for agent in 0..9_000 {
        let agent = format!("agent-{agent}");
        let had = of(&before, &agent).expect("one of three");
        *shares.entry(had).or_insert(0) += 1;
        let has = of(&after, &agent);
        match had {
            "gw-b" => assert!(matches!(has, Some("gw-a" | "gw-c"))),
            had => assert_eq!(has, Some(had)),
        }
    }
    // A third is 3,000, and 200 are more than four deviations.
    assert!(
        shares.values().all(|share| (2_800..3_200).contains(share)),
        "{shares:?}"
    );
}

#[test]
fn vis_6_nobody_is_the_gateway_when_there_is_none() {
    assert_eq!(of(&nodes(&[]), "agent-1"), None);
    assert!(nodes(&[]).is_empty());
    assert_eq!(of(&nodes(&["gw-a"]), "agent-1"), Some("gw-a"));
}
