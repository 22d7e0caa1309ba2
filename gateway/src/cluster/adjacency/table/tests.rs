use super::super::testing::{epoch, row};
use super::*;

const ALL: Span<'_> = Span {
    after: "",
    until: "",
};

fn listen(table: &Arc<Adjacency>, name: &str, incarnation: u64) -> Telling {
    table.listen(name, incarnation).unwrap().0
}

fn came(telling: &Telling, agent: &str, session: &str, epoch: u64) -> Result<(), NotStored> {
    let step = Step::Came(row(agent, session, epoch));
    telling.apply([step].into_iter(), &mut |_| ())
}

fn went(telling: &Telling, agent: &str, number: u64) -> Result<(), NotStored> {
    let step = Step::Went(agent, epoch(number));
    telling.apply([step].into_iter(), &mut |_| ())
}

/// The node and the session of an agent.
fn at(table: &Adjacency, agent: &str) -> Option<(String, String)> {
    let found = table.find(agent)?;
    Some((found.node.to_string(), found.session_id.to_string()))
}

fn place(node: &str, session: &str) -> Option<(String, String)> {
    Some((node.to_owned(), session.to_owned()))
}

#[test]
fn adj_3_of_two_nodes_that_claim_an_agent_the_newer_session_counts() {
    let table = Adjacency::new();
    let (one, two) = (listen(&table, "gw1", 1), listen(&table, "gw2", 1));
    came(&one, "agent", "s-1", 10).unwrap();
    assert_eq!(at(&table, "agent"), place("gw1", "s-1"));
    came(&two, "agent", "s-2", 11).unwrap();
    assert_eq!(at(&table, "agent"), place("gw2", "s-2"));
    // Whichever way round it is told.
    came(&one, "other", "s-4", 21).unwrap();
    came(&two, "other", "s-3", 20).unwrap();
    assert_eq!(at(&table, "other"), place("gw1", "s-4"));
    // The older node's stream still lives.
    went(&two, "agent", 11).unwrap();
    assert_eq!(at(&table, "agent"), place("gw1", "s-1"));
}

#[test]
fn adj_3_of_two_equally_new_sessions_every_node_takes_the_same() {
    for names in [["gw1", "gw2"], ["gw2", "gw1"]] {
        let table = Adjacency::new();
        for name in names {
            came(&listen(&table, name, 1), "agent", name, 10).unwrap();
        }
        assert_eq!(at(&table, "agent"), place("gw2", "gw2"));
    }
}

#[test]
fn adj_1_an_older_session_of_the_same_node_changes_nothing() {
    let table = Adjacency::new();
    let telling = listen(&table, "gw1", 1);
    came(&telling, "agent", "new", 10).unwrap();
    came(&telling, "agent", "old", 9).unwrap();
    went(&telling, "agent", 9).unwrap();
    assert_eq!(at(&table, "agent"), place("gw1", "new"));
    went(&telling, "agent", 10).unwrap();
    assert_eq!(at(&table, "agent"), None);
}

#[test]
fn mesh_5_the_rows_of_a_node_go_with_it_and_no_others() {
    let table = Adjacency::new();
    let (one, two) = (listen(&table, "gw1", 1), listen(&table, "gw2", 7));
    came(&one, "agent", "s-1", 10).unwrap();
    came(&two, "agent", "s-2", 11).unwrap();
    came(&two, "only", "s-3", 12).unwrap();
    let departed = table.keep_only(|name, incarnation| (name, incarnation) == ("gw1", 1));
    // At once, though its rows are still to be taken out.
    assert_eq!(at(&table, "agent"), place("gw1", "s-1"));
    assert_eq!(at(&table, "only"), None);
    assert_eq!(came(&two, "late", "s-4", 13), Err(NotStored::Superseded));
    assert_eq!(departed.len(), 1);
    drop(departed);
    assert_eq!(&*table.census(), [("gw1".into(), 1)]);
    let rows: usize = (0..SHARDS)
        .map(|shard| table.read(shard).tally(1).rows)
        .sum();
    assert_eq!(rows, 0);
}

#[test]
fn mesh_5_rows_of_an_older_incarnation_are_ignored() {
    let table = Adjacency::new();
    let old = listen(&table, "gw1", 1);
    came(&old, "agent", "s-1", 10).unwrap();
    let (new, departed) = table.listen("gw1", 2).unwrap();
    assert!(departed.is_some());
    assert_eq!(at(&table, "agent"), None);
    assert_eq!(came(&old, "agent", "s-1", 11), Err(NotStored::Superseded));
    assert!(matches!(
        table.listen("gw1", 1),
        Err(NotHeard::OlderIncarnation)
    ));
    came(&new, "agent", "s-2", 5).unwrap();
    drop(departed);
    assert_eq!(at(&table, "agent"), place("gw1", "s-2"));
}

#[test]
fn a_second_telling_of_one_life_keeps_the_rows_and_ends_the_first() {
    let table = Adjacency::new();
    let first = listen(&table, "gw1", 1);
    came(&first, "agent", "s-1", 10).unwrap();
    let second = listen(&table, "gw1", 1);
    assert_eq!(at(&table, "agent"), place("gw1", "s-1"));
    assert_eq!(went(&first, "agent", 10), Err(NotStored::Superseded));
    went(&second, "agent", 10).unwrap();
    assert_eq!(at(&table, "agent"), None);
}

#[test]
fn adj_2_a_portion_replaces_what_lies_in_its_span_and_nothing_else() {
    let table = Adjacency::new();
    let (one, two) = (listen(&table, "gw1", 1), listen(&table, "gw2", 1));
    // These four share a shard.
    let agents = ["agent-1", "agent-117", "agent-351", "agent-83"];
    let shard = shard_of(agents[0]);
    for (number, agent) in agents.into_iter().enumerate() {
        came(&one, agent, "s", number as u64).unwrap();
        came(&two, agent, "s", 100).unwrap();
    }
    let span = Span {
        after: "agent-1",
        until: "agent-351",
    };
    let mut seen = Vec::new();
    let rows = [row("agent-351", "t", 9)];
    one.replace(shard, span, &rows, &mut |change| {
        seen.push(format!("{change:?}"))
    })
    .unwrap();
    assert_eq!(
        seen,
        ["Went(\"agent-117\")", "Came(Row(agent-351, Epoch(9)))"]
    );
    let left: Vec<_> = agents
        .into_iter()
        .filter(|agent| table.read(shard).claims(agent).any(|(node, _)| node == 0))
        .collect();
    assert_eq!(left, ["agent-1", "agent-351", "agent-83"]);
    assert_eq!(table.read(shard).tally(1).rows, 4);
    // What is outside of the span or the shard is no portion of it.
    for misplaced in ["agent-1", "agent-83", "agent-2"] {
        let rows = [row(misplaced, "t", 9)];
        let refused = one.replace(shard, span, &rows, &mut |_| ());
        assert_eq!(refused, Err(NotStored::Misplaced));
    }
    assert_eq!(
        one.replace(SHARDS, ALL, &[], &mut |_| ()),
        Err(NotStored::Misplaced)
    );
}

#[test]
fn adj_2_digests_are_always_those_of_the_rows() {
    let table = Adjacency::new();
    let telling = listen(&table, "gw1", 1);
    let of = |rows: &[Row<'_>]| {
        let mut digests = [Digest::default(); SHARDS];
        rows.iter()
            .for_each(|row| digests[shard_of(row.agent_id)].add(row));
        digests
    };
    came(&telling, "agent-1", "s-1", 1).unwrap();
    came(&telling, "agent-2", "s-2", 2).unwrap();
    came(&telling, "agent-2", "s-3", 3).unwrap();
    let (a, b) = (row("agent-1", "s-1", 1), row("agent-2", "s-3", 3));
    assert!(telling.differing(&of(&[a, b])).unwrap().is_empty());
    let other = telling
        .differing(&of(&[a, row("agent-2", "s-3", 4)]))
        .unwrap();
    assert!(other.iter().eq([shard_of("agent-2")]));
    went(&telling, "agent-1", 1).unwrap();
    let missing = telling.differing(&of(&[a, b])).unwrap();
    assert!(missing.iter().eq([shard_of("agent-1")]));
    telling
        .replace(shard_of("agent-2"), ALL, &[], &mut |_| ())
        .unwrap();
    assert!(telling.differing(&of(&[])).unwrap().is_empty());
}

#[test]
fn there_is_an_end_to_the_nodes_and_their_numbers_come_back() {
    let table = Adjacency::new();
    let tellings: Vec<_> = (0..MAX_NODES)
        .map(|node| listen(&table, &format!("gw{node}"), 1))
        .collect();
    assert!(matches!(
        table.listen("more", 1),
        Err(NotHeard::TooManyNodes)
    ));
    // A known one may come back under another stream, and not in another life while all last.
    listen(&table, "gw5", 1);
    assert!(matches!(
        table.listen("gw5", 2),
        Err(NotHeard::TooManyNodes)
    ));
    assert_eq!(came(&tellings[6], "agent", "s", 1), Ok(()));
    drop(table.keep_only(|name, _| name != "gw5"));
    assert_eq!(listen(&table, "more", 1).peer.number, 5);
    assert_eq!(at(&table, "agent"), place("gw6", "s"));
}

#[test]
fn adj_5_a_page_has_the_first_agents_behind_the_cursor_each_once() {
    let table = Adjacency::new();
    let (one, two) = (listen(&table, "gw1", 1), listen(&table, "gw2", 1));
    for n in 0..500 {
        let teller = if n % 2 == 0 { &one } else { &two };
        came(teller, &format!("agent-{n:03}"), "s", 10).unwrap();
    }
    // Both claim it.
    came(&one, "agent-001", "s", 12).unwrap();
    let list = |after: &str, most| {
        let mut page = Page::new(after, most);
        for shard in 0..SHARDS {
            table.list(shard, &mut page);
        }
        page.into_agents().collect::<Vec<_>>()
    };
    let first = list("", 3);
    let expected = [("agent-000", 10), ("agent-001", 12), ("agent-002", 10)];
    let expected = expected.map(|(agent, number)| (Box::from(agent), epoch(number)));
    assert_eq!(first, expected);
    assert_eq!(list("agent-002", 2)[0].0, "agent-003".into());
    assert_eq!(list("agent-497", 9).len(), 2);
    assert_eq!(list("", 900).len(), 500);
    // A node that is gone has no agents, whatever is still to be taken out.
    let departed = table.keep_only(|name, _| name != "gw2");
    assert_eq!(list("", 900).len(), 251);
    assert_eq!(list("", 2)[1], ("agent-001".into(), epoch(12)));
    drop(departed);
}
