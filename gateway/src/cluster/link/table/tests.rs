use super::*;

fn node(name: &str, incarnation: u64) -> Identity {
    Identity {
        name: name.into(),
        incarnation,
        instance: [incarnation as u8; 16],
    }
}

fn links() -> Links {
    Links::new(node("m", 5))
}

fn due(links: &mut Links, live: &[(&str, u64)]) -> Vec<String> {
    let live: Vec<(Arc<str>, u64)> = live.iter().map(|(n, i)| ((*n).into(), *i)).collect();
    let wanted = links.due(live.iter().map(|(name, incarnation)| (name, *incarnation)));
    wanted.iter().map(|(name, _)| name.to_string()).collect()
}

#[test]
fn mesh_2_the_node_with_the_smaller_name_dials() {
    let mut links = links();
    assert_eq!(due(&mut links, &[("a", 1), ("z", 1)]), ["z"]);
    assert_eq!(
        links.admit(&node("a", 1), Side::Dialler, 1),
        Err(Failure::Direction)
    );
    assert_eq!(
        links.admit(&node("z", 1), Side::Dialled, 2),
        Err(Failure::Direction)
    );
    assert_eq!(links.admit(&node("a", 1), Side::Dialled, 3), Ok(None));
    assert_eq!(links.admit(&node("z", 1), Side::Dialler, 4), Ok(None));
    assert_eq!(links.len(), 2);
}

#[test]
fn mesh_2_a_peer_that_dials_again_replaces_its_lost_connection() {
    let mut links = links();
    assert_eq!(links.admit(&node("a", 1), Side::Dialled, 1), Ok(None));
    assert_eq!(links.admit(&node("a", 1), Side::Dialled, 2), Ok(Some(1)));
    // The end of the old one takes nothing with it.
    assert!(!links.ended("a", 1));
    assert_eq!(links.len(), 1);
    assert!(links.ended("a", 2));
    assert_eq!(links.len(), 0);
}

#[test]
fn mesh_6_a_name_that_is_linked_is_refused_to_another_node() {
    let mut links = links();
    assert_eq!(links.admit(&node("a", 1), Side::Dialled, 1), Ok(None));
    for claimant in [node("a", 2), node("a", 0)] {
        let refused = links.admit(&claimant, Side::Dialled, 2);
        assert_eq!(refused, Err(Failure::NameTaken));
    }
    assert_eq!(links.of("a"), Some((&node("a", 1), 1)));
    // When the first is gone the name is free: a restart is no other node.
    links.ended("a", 1);
    assert_eq!(links.admit(&node("a", 2), Side::Dialled, 3), Ok(None));
}

#[test]
fn mesh_6_the_own_name_is_refused_to_everybody_and_dialled_by_the_younger() {
    let mut links = links();
    assert_eq!(
        links.admit(&node("m", 9), Side::Dialled, 1),
        Err(Failure::NameTaken)
    );
    assert_eq!(
        links.admit(&node("m", 1), Side::Dialler, 2),
        Err(Failure::NameTaken)
    );
    assert_eq!(due(&mut links, &[("m", 6)]), [""; 0]);
    assert_eq!(due(&mut links, &[("m", 4)]), ["m"]);
}

#[test]
fn a_peer_is_dialled_by_one_attempt_at_a_time_and_not_while_it_is_linked() {
    let mut links = links();
    assert_eq!(due(&mut links, &[("z", 1)]), ["z"]);
    assert_eq!(due(&mut links, &[("z", 1)]), [""; 0]);
    links.dialled("z");
    assert_eq!(due(&mut links, &[("z", 1)]), ["z"]);
    assert_eq!(links.admit(&node("z", 1), Side::Dialler, 1), Ok(None));
    assert_eq!(due(&mut links, &[("z", 1)]), [""; 0]);
    links.ended("z", 1);
    links.dialled("z");
    assert_eq!(due(&mut links, &[("z", 1)]), ["z"]);
}

#[test]
fn mesh_2_links_are_bounded() {
    let mut links = links();
    for n in 0..MAX_PEERS as u64 {
        let peer = node(&format!("a-{n}"), 1);
        assert_eq!(links.admit(&peer, Side::Dialled, n), Ok(None));
    }
    let more = links.admit(&node("b", 1), Side::Dialled, 5_000);
    assert_eq!(more, Err(Failure::TooMany));
    // A peer that is linked may dial again.
    let again = links.admit(&node("a-7", 1), Side::Dialled, 5_001);
    assert_eq!(again, Ok(Some(7)));
}
