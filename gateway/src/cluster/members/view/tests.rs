use super::*;

fn member(name: &str, incarnation: u64) -> Member {
    Member {
        name: name.into(),
        incarnation,
        generation: incarnation,
        gossip: ([192, 0, 2, 1], 9100).into(),
        labels: Labels::default(),
    }
}

fn view() -> View {
    View::new(("m".into(), 5), Duration::from_secs(5))
}

fn linked(lives: &[(&str, u64)]) -> HashMap<Arc<str>, u64> {
    lives
        .iter()
        .map(|(name, life)| ((*name).into(), *life))
        .collect()
}

/// The engine believes in these lives, and those are linked.
fn step(view: &mut View, live: &[(&str, u64)], links: &[(&str, u64)]) -> Vec<Change> {
    let live = live.iter().map(|(name, life)| member(name, *life));
    view.hear(Instant::now(), live, &linked(links));
    view.settle(&linked(links))
}

fn listed(view: &View) -> Vec<(String, u64)> {
    let rows = view.members().map(|m| (m.name.to_string(), m.incarnation));
    rows.collect()
}

fn up(name: &str) -> Change {
    Change::Up(name.into())
}

fn down(name: &str, life: u64) -> Change {
    Change::Down(name.into(), life)
}

#[test]
fn mesh_5_nodes_come_and_go() {
    let mut view = view();
    let both = [("b", 1), ("a", 1)];
    assert_eq!(step(&mut view, &both, &both), [up("a"), up("b")]);
    assert_eq!(step(&mut view, &both, &both), []);
    assert_eq!(step(&mut view, &both[..1], &both), [down("a", 1)]);
    assert_eq!(view.clear(), [down("b", 1)]);
    assert_eq!(listed(&view), []);
}

#[test]
fn mesh_2_a_node_that_only_gossips_is_not_listed() {
    let mut view = view();
    assert_eq!(step(&mut view, &[("a", 1)], &[]), []);
    assert_eq!(listed(&view), []);
    assert_eq!(view.reachable().count(), 1);
    assert_eq!(view.settle(&linked(&[("a", 1)])), [up("a")]);
    // Nor one whose link has ended.
    assert_eq!(view.settle(&linked(&[])), [down("a", 1)]);
}

#[test]
fn mesh_2_a_node_that_is_linked_and_not_heard_of_is_not_listed_yet() {
    let mut view = view();
    assert_eq!(step(&mut view, &[], &[("a", 1)]), []);
    assert_eq!(step(&mut view, &[("a", 1)], &[("a", 1)]), [up("a")]);
}

#[test]
fn mesh_5_a_restarted_node_takes_the_place_of_its_old_life() {
    let mut view = view();
    step(&mut view, &[("a", 1)], &[("a", 1)]);
    // The engine still believes in the old one.
    let changes = step(&mut view, &[("a", 2), ("a", 1)], &[("a", 2)]);
    assert_eq!(changes, [down("a", 1), up("a")]);
    assert_eq!(listed(&view), [("a".into(), 2)]);
}

#[test]
fn mesh_5_an_engine_that_was_started_again_is_the_same_node() {
    let mut view = view();
    step(&mut view, &[("a", 1)], &[("a", 1)]);
    let again = Member {
        generation: 9,
        gossip: ([192, 0, 2, 2], 9100).into(),
        ..member("a", 1)
    };
    let links = linked(&[("a", 1)]);
    assert!(!view.hear(Instant::now(), [again, member("a", 1)].into_iter(), &links));
    assert_eq!(view.settle(&links), []);
    let found = view.members().next().map(|member| member.generation);
    assert_eq!(found, Some(9));
}

#[test]
fn mesh_6_a_namesake_does_not_push_out_the_node_that_is_linked() {
    let mut view = view();
    let both = [("a", 1), ("a", 2)];
    assert_eq!(step(&mut view, &both, &[("a", 1)]), [up("a")]);
    assert_eq!(listed(&view), [("a".into(), 1)]);
}

#[test]
fn mesh_6_a_namesake_of_this_node_is_no_member_and_can_be_reached() {
    let mut view = view();
    let live = [member("m", 4), member("a", 1)];
    assert!(view.hear(Instant::now(), live.clone().into_iter(), &linked(&[])));
    assert!(!view.hear(Instant::now(), live.into_iter(), &linked(&[])));
    let changes = view.settle(&linked(&[("m", 4), ("a", 1)]));
    assert_eq!(changes, [up("a")]);
    let reachable: Vec<_> = view.reachable().map(|m| &*m.name).collect();
    assert_eq!(reachable, ["a", "m"]);
}

#[test]
fn mesh_1_members_are_bounded_and_whoever_is_here_stays() {
    let mut view = view();
    let here = (0..MAX_PEERS).map(|n| member(&format!("z-{n}"), 1));
    view.hear(Instant::now(), here.clone(), &linked(&[]));
    let more = [member("a", 1), member("b", 1)].into_iter().chain(here);
    assert!(!view.hear(Instant::now(), more, &linked(&[])));
    assert_eq!(view.reachable().count(), MAX_PEERS);
}

#[test]
fn mesh_3_a_node_is_dialled_at_its_peer_address() {
    let mut told = member("a", 1);
    assert_eq!(told.address(), "192.0.2.1:9100");
    told.labels.peer = Some("gw-a.internal:9200".into());
    assert_eq!(told.address(), "gw-a.internal:9200");
}

/// A view of a node whose peers a and b are there, and which has just stood still for 3 s.
fn awake() -> (View, Instant) {
    let (mut view, start) = (view(), Instant::now());
    view.beat(start, Duration::ZERO);
    let both = [("a", 1), ("b", 1)];
    step(&mut view, &both, &both);
    let gap = Duration::from_secs(3);
    assert_eq!(view.beat(start + gap, gap), Some(gap));
    (view, start + gap)
}

fn hear_at(
    view: &mut View,
    now: Instant,
    live: &[(&str, u64)],
    links: &[(&str, u64)],
) -> Vec<Change> {
    let live = live.iter().map(|(name, life)| member(name, *life));
    view.hear(now, live, &linked(links));
    view.settle(&linked(links))
}

#[test]
fn mesh_5_a_node_that_stood_still_takes_nobody_for_dead_before_a_full_term() {
    let (mut view, awake) = awake();
    let later = |ms| awake + Duration::from_millis(ms);
    assert_eq!(hear_at(&mut view, awake, &[], &[]), []);
    assert_eq!(listed(&view), [("a".into(), 1), ("b".into(), 1)]);
    assert!(view.hears("a", 1), "its rows stay");
    // One is heard and linked again in time, the other is not.
    assert_eq!(
        hear_at(&mut view, later(4_999), &[("a", 1)], &[("a", 1)]),
        []
    );
    assert!(view.is_patient());
    let over = hear_at(&mut view, later(5_000), &[("a", 1)], &[("a", 1)]);
    assert_eq!(over, [down("b", 1)]);
    assert!(!view.is_patient());
    assert_eq!(hear_at(&mut view, later(5_001), &[], &[]), [down("a", 1)]);
}

#[test]
fn mesh_5_a_node_that_was_restarted_while_this_one_stood_still_is_another_life() {
    let (mut view, awake) = awake();
    let lives = [("a", 2), ("b", 1)];
    let changes = hear_at(&mut view, awake, &lives, &lives);
    assert_eq!(changes, [down("a", 1), up("a")]);
}

#[test]
fn mesh_5_a_node_that_stands_still_again_and_again_keeps_a_dead_one_for_three_terms() {
    let (mut view, awake) = awake();
    let later = |ms| awake + Duration::from_millis(ms);
    let alive = [("a", 1)];
    // A gap of 3 s each time, so that a new term of 5 s begins before the last one ends.
    for at in [0, 3_000, 6_000, 9_000, 12_000] {
        let wall = Duration::from_millis(3_000 + at);
        view.beat(later(at), wall);
        assert_eq!(hear_at(&mut view, later(at), &alive, &alive), [], "{at}");
    }
    view.beat(later(15_000), Duration::from_secs(18));
    let over = hear_at(&mut view, later(15_000), &alive, &alive);
    assert_eq!(over, [down("b", 1)]);
    assert!(view.is_patient());
}
