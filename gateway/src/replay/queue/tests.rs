use std::cell::Cell;
use std::collections::BTreeMap;

use super::*;

const NO_PAUSE: Duration = Duration::ZERO;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn queue_of(max: usize) -> Queue {
    Queue::new(&config::Replay {
        queue_max: max,
        ..config::Config::default().replay
    })
}

fn queue() -> Queue {
    queue_of(10_000)
}

fn target(agent: &str) -> Target {
    Target {
        agent_id: agent.into(),
        session_id: format!("s-{agent}").into(),
    }
}

fn name(queue: &mut Queue, now: Instant, agents: &[&str]) -> Tally {
    let named = agents.iter().map(|agent| Some(target(agent)));
    queue.name(named, now, NO_PAUSE)
}

fn nobody(_: &str, _: usize) -> Page {
    (Vec::new(), false)
}

fn agent(entry: &Entry) -> &str {
    &entry.target.agent_id
}

/// Takes, sends and lands everything, and names it in its order.
fn drain(queue: &mut Queue, now: Instant, page: impl Fn(&str, usize) -> Page) -> Vec<String> {
    let mut sent = Vec::new();
    while let Some(entry) = queue.take(1, now, &page) {
        sent.push(agent(&entry).to_owned());
        assert!(queue.begin(&entry, now));
        queue.land(entry, Landing::Done, now);
    }
    sent
}

/// What the node holds.
struct Agents(BTreeMap<String, Held>);

impl Agents {
    fn new(count: usize, since: Instant) -> Self {
        let ids = (0..count).map(|number| format!("{number:04}"));
        let held = ids.map(|id| {
            let target = target(&id);
            (id, Held { target, since })
        });
        Self(held.collect())
    }

    fn page(&self, after: &str, limit: usize) -> Page {
        let mut behind = self
            .0
            .range::<str, _>((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded));
        let page = behind.by_ref().take(limit).map(|(_, held)| held.clone());
        (page.collect(), behind.next().is_some())
    }

    fn ids(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

#[test]
fn replay_6_each_id_is_queued_or_skipped_for_one_reason() {
    let now = Instant::now();
    let mut queue = queue_of(3);
    name(&mut queue, now, &["replayed"]);
    assert_eq!(drain(&mut queue, now, nobody), ["replayed"]);
    name(&mut queue, now, &["waits"]);
    let named = [
        None,
        Some(target("waits")),
        Some(target("replayed")),
        Some(target("new-1")),
        Some(target("new-2")),
        Some(target("new-3")),
        Some(target("new-1")),
    ];
    let tally = queue.name(named, now, NO_PAUSE);
    let expected = Tally {
        queued: 2,
        not_local: 1,
        already_queued: 2,
        within_guard: 1,
        queue_full: 1,
    };
    assert_eq!(tally, expected);
    assert_eq!(queue.depth(), 3);
    assert_eq!(drain(&mut queue, now, nobody), ["waits", "new-1", "new-2"]);
}

#[test]
fn replay_6_the_guard_begins_when_the_replay_is_sent() {
    let start = Instant::now();
    let mut queue = queue();
    name(&mut queue, start, &["a"]);
    let entry = queue.take(24, start, nobody).unwrap();
    // Taken and not sent, it may wait for its permit for long.
    let waited = start + seconds(30);
    assert_eq!(name(&mut queue, waited, &["a"]).already_queued, 1);
    assert!(queue.begin(&entry, waited));
    let late = waited + seconds(10) - Duration::from_millis(1);
    assert_eq!(name(&mut queue, late, &["a"]).within_guard, 1);
    queue.land(entry, Landing::Done, late);
    assert_eq!(name(&mut queue, late, &["a"]).within_guard, 1);
    assert_eq!(name(&mut queue, waited + seconds(10), &["a"]).queued, 1);
}

#[test]
fn replay_6_an_agent_on_its_way_is_not_queued_beside_it() {
    let start = Instant::now();
    let mut queue = queue();
    name(&mut queue, start, &["a"]);
    let entry = queue.take(24, start, nobody).unwrap();
    assert!(queue.begin(&entry, start));
    let after_guard = start + seconds(11);
    assert_eq!(name(&mut queue, after_guard, &["a"]).already_queued, 1);
    queue.land(entry, Landing::Done, after_guard);
    assert_eq!(name(&mut queue, after_guard, &["a"]).queued, 1);
}

#[test]
fn replay_11_first_in_first_out_and_no_more_at_once_than_allowed() {
    let now = Instant::now();
    let mut queue = queue();
    name(&mut queue, now, &["b", "c"]);
    name(&mut queue, now, &["a"]);
    let first = queue.take(2, now, nobody).unwrap();
    let second = queue.take(2, now, nobody).unwrap();
    assert_eq!((agent(&first), agent(&second)), ("b", "c"));
    assert!(queue.take(2, now, nobody).is_none());
    queue.land(second, Landing::Done, now);
    let third = queue.take(2, now, nobody).unwrap();
    assert_eq!(agent(&third), "a");
    assert!(queue.take(0, now, nobody).is_none());
}

#[test]
fn replay_11_a_replay_that_was_not_sent_goes_back_to_its_place() {
    let now = Instant::now();
    let mut queue = queue();
    name(&mut queue, now, &["a", "b", "c", "d"]);
    let taken: Vec<_> = (0..3)
        .map(|_| queue.take(3, now, nobody).unwrap())
        .collect();
    for entry in taken {
        queue.land(entry, Landing::Unsent, now);
    }
    assert_eq!((queue.depth(), queue.in_flight()), (4, 0));
    assert_eq!(drain(&mut queue, now, nobody), ["a", "b", "c", "d"]);
}

#[test]
fn replay_11_only_a_drip_that_begins_pauses() {
    let start = Instant::now();
    let mut queue = queue();
    let pause = Duration::from_millis(700);
    queue.name([Some(target("a"))], start, pause);
    queue.name([Some(target("b"))], start, pause * 10);
    assert!(queue.take(1, start, nobody).is_none());
    assert_eq!(queue.next_time(start), Some(start + pause));
    let begun = start + pause;
    let entry = queue.take(1, begun, nobody).unwrap();
    queue.name([Some(target("c"))], begun, pause);
    queue.land(entry, Landing::Done, begun);
    assert_eq!(drain(&mut queue, begun, nobody), ["b", "c"]);
    queue.name([Some(target("d"))], begun, pause);
    assert!(queue.take(1, begun, nobody).is_none(), "a new drip");
}

#[test]
fn replay_10_a_full_replay_takes_500_at_a_time_behind_what_is_queued() {
    let now = Instant::now();
    let agents = Agents::new(1_200, now);
    let mut queue = queue_of(2);
    name(&mut queue, now, &["1100", "0007"]);
    assert!(queue.begin_full(now, NO_PAUSE));
    assert_eq!(queue.depth(), 2, "nothing is taken before its turn");
    let pages = Cell::new(0);
    let page = |after: &str, limit: usize| {
        assert_eq!(limit, 500);
        pages.set(pages.get() + 1);
        agents.page(after, limit)
    };
    let sent = drain(&mut queue, now, page);
    assert_eq!(pages.get(), 3);
    let mut expected = vec!["1100".to_owned(), "0007".to_owned()];
    expected.extend(agents.ids());
    expected.retain({
        let mut seen = std::collections::HashSet::new();
        move |id| seen.insert(id.clone())
    });
    assert_eq!(sent, expected, "each once, the named ones first");
}

#[test]
fn replay_10_a_chunk_is_not_bounded_by_the_cap_but_fills_the_queue_for_verdicts() {
    let now = Instant::now();
    let agents = Agents::new(100, now);
    let mut queue = queue_of(5);
    queue.begin_full(now, NO_PAUSE);
    let entry = queue.take(1, now, |after, limit| agents.page(after, limit));
    assert_eq!((agent(&entry.unwrap()), queue.depth()), ("0000", 99));
    let tally = name(&mut queue, now, &["late", "0050"]);
    assert_eq!((tally.queue_full, tally.already_queued), (1, 1));
}

#[test]
fn replay_10_a_full_replay_skips_sessions_within_the_guard() {
    let now = Instant::now();
    let agents = Agents::new(3, now);
    let mut queue = queue();
    name(&mut queue, now, &["0001"]);
    drain(&mut queue, now, nobody);
    queue.begin_full(now, NO_PAUSE);
    let sent = drain(&mut queue, now, |after, limit| agents.page(after, limit));
    assert_eq!(sent, ["0000", "0002"]);
}

#[test]
fn replay_10_who_was_adopted_since_it_began_is_not_replayed_again_however_long_it_takes() {
    let start = Instant::now();
    let agents = Agents::new(3, start);
    let page = |after: &str, _: usize| agents.page(after, 1);
    let mut queue = queue();
    queue.begin_full(start, NO_PAUSE);
    let first = queue.take(3, start, page).unwrap();
    name(&mut queue, start, &["0001", "0002"]);
    let adopted = queue.take(3, start, page).unwrap();
    let failed = queue.take(3, start, page).unwrap();
    assert!(queue.begin(&adopted, start) && queue.begin(&failed, start));
    queue.land(adopted, Landing::Adopted, start);
    queue.land(failed, Landing::Done, start);
    // Far beyond the guard window.
    let late = start + seconds(100);
    queue.land(first, Landing::Done, late);
    queue.tick(late);
    assert_eq!(drain(&mut queue, late, page), ["0002"]);
    let over = late + seconds(60);
    queue.tick(over);
    assert_eq!(queue.next_time(over), None, "no stamp is left");
}

#[test]
fn replay_10_agents_that_connect_after_it_began_are_not_replayed() {
    let began = Instant::now();
    let mut agents = Agents::new(2, began);
    let late = Held {
        target: target("0009"),
        since: began + Duration::from_millis(1),
    };
    agents.0.insert("0009".into(), late);
    let mut queue = queue();
    queue.begin_full(began, NO_PAUSE);
    let sent = drain(&mut queue, began + seconds(1), |after, limit| {
        agents.page(after, limit)
    });
    assert_eq!(sent, ["0000", "0001"]);
}

#[test]
fn replay_9_no_full_replay_within_60_s_of_the_end_of_the_last() {
    let start = Instant::now();
    let agents = Agents::new(1, start);
    let page = |after: &str, limit: usize| agents.page(after, limit);
    let mut queue = queue();
    assert!(queue.begin_full(start, NO_PAUSE));
    assert!(!queue.begin_full(start, NO_PAUSE), "one is running");
    let entry = queue.take(1, start, page).unwrap();
    assert!(queue.begin(&entry, start));
    let ended = start + seconds(30);
    assert!(
        !queue.may_begin_full(ended),
        "its last replay is on its way"
    );
    queue.land(entry, Landing::Done, ended);
    let before = ended + seconds(60) - Duration::from_millis(1);
    assert!(!queue.begin_full(before, NO_PAUSE));
    assert_eq!(name(&mut queue, before, &["0000"]).queued, 1, "named");
    drain(&mut queue, before, page);
    assert_eq!(queue.next_time(before), Some(ended + seconds(60)));
    assert!(queue.begin_full(ended + seconds(60), NO_PAUSE));
}

#[test]
fn replay_9_an_aborted_full_replay_has_ended_as_well() {
    let now = Instant::now();
    let mut queue = queue();
    queue.begin_full(now, NO_PAUSE);
    queue.abort(now).unwrap();
    assert!(!queue.may_begin_full(now + seconds(59)));
    assert!(queue.may_begin_full(now + seconds(60)));
}

#[test]
fn replay_18_an_abort_drops_all_that_was_not_sent() {
    let now = Instant::now();
    let agents = Agents::new(600, now);
    let page = |after: &str, limit: usize| agents.page(after, limit);
    let mut queue = queue();
    assert_eq!(queue.abort(now), None);
    queue.begin_full(now, NO_PAUSE);
    let sent = queue.take(3, now, page).unwrap();
    assert!(queue.begin(&sent, now));
    let waits = queue.take(3, now, page).unwrap();
    let aborted = queue.abort(now).unwrap();
    assert_eq!(aborted.waiting, 499, "without the one that was sent");
    assert_eq!(aborted.walked_to.as_deref(), Some("0499"));
    assert_eq!(queue.depth(), 0);
    assert!(queue.take(3, now, page).is_none());
    assert!(!queue.begin(&waits, now), "called off");
    // It may be named again before the old entry has landed.
    assert_eq!(name(&mut queue, now, &[agent(&waits)]).queued, 1);
    queue.land(waits, Landing::Unsent, now);
    queue.land(sent, Landing::Done, now);
    assert_eq!((queue.depth(), queue.in_flight()), (1, 0));
    assert_eq!(queue.abort(now).unwrap().walked_to, None);
}

#[test]
fn replay_18_a_drip_whose_last_replays_are_sent_is_not_aborted() {
    let now = Instant::now();
    let mut queue = queue();
    name(&mut queue, now, &["a"]);
    let entry = queue.take(1, now, nobody).unwrap();
    assert!(queue.begin(&entry, now));
    assert_eq!(queue.abort(now), None);
    queue.land(entry, Landing::Done, now);
}

#[test]
fn replay_19_a_planned_stop_ends_it_all() {
    let now = Instant::now();
    let agents = Agents::new(5, now);
    let page = |after: &str, limit: usize| agents.page(after, limit);
    let mut queue = queue();
    name(&mut queue, now, &["a", "b"]);
    let entry = queue.take(1, now, page).unwrap();
    queue.stop(now);
    assert_eq!((queue.depth(), queue.in_flight()), (0, 1));
    assert!(!queue.begin(&entry, now));
    queue.land(entry, Landing::Unsent, now);
    assert_eq!(name(&mut queue, now, &["c"]), Tally::default());
    assert!(!queue.begin_full(now, NO_PAUSE));
    assert!(queue.take(1, now, page).is_none());
}

#[test]
fn replay_11_a_drip_begins_one_more_replay_each_half_millisecond() {
    let start = Instant::now();
    let mut queue = queue();
    assert_eq!(queue.spread(start), usize::MAX, "nothing to spread");
    let agents = ["a", "b", "c", "d"].map(|agent| Some(target(agent)));
    queue.name(agents, start, seconds(1));
    let begins = start + seconds(1);
    let micros = |micros| begins + Duration::from_micros(micros);
    let spread = [0, 499, 500, 1_000, 11_500].map(|at| queue.spread(micros(at)));
    assert_eq!(spread, [1, 1, 2, 3, 24]);
    let first = queue.take(queue.spread(begins), begins, nobody).unwrap();
    assert!(queue.take(queue.spread(begins), begins, nobody).is_none());
    assert_eq!(queue.next_time(begins), Some(micros(500)));
    let second = queue.take(queue.spread(micros(500)), micros(500), nobody);
    assert_eq!(queue.next_time(micros(500)), Some(micros(1_000)));
    // What lands makes room for the next whatever the time.
    queue.land(first, Landing::Done, micros(600));
    assert!(
        queue
            .take(queue.spread(micros(600)), micros(600), nobody)
            .is_some()
    );
    assert!(second.is_some());
}
