use super::*;

fn config() -> config::Shift {
    config::Shift::default()
}

/// A public node with `held` agents besides `others`.
fn seen(held: usize, others: &[u64]) -> Seen {
    Seen {
        held,
        elsewhere: Elsewhere {
            nodes: others.len(),
            sessions: others.iter().sum(),
            shares: true,
        },
        ..Seen::default()
    }
}

/// The same, short of memory.
fn short(held: usize, others: &[u64]) -> Seen {
    Seen {
        memory: true,
        ..seen(held, others)
    }
}

/// A node whose agents leave as soon as they are asked, driven for `lasts`; what it did.
struct Driven {
    shift: Shift,
    now: Instant,
    /// When how many were asked.
    asked: Vec<(Instant, usize)>,
}

impl Driven {
    fn new(config: config::Shift) -> Self {
        Self {
            shift: Shift::new(config),
            now: Instant::now(),
            asked: Vec::new(),
        }
    }

    fn run(&mut self, seen: &mut Seen, lasts: Duration) -> usize {
        let (until, mut moved) = (self.now + lasts, 0);
        while self.now < until {
            if let Some(ask) = self.shift.decide(self.now, seen) {
                self.shift.asked(self.now, ask.most);
                self.asked.push((self.now, ask.most));
                seen.held -= ask.most;
                moved += ask.most;
            }
            // Whether or not it is time.
            self.now += Duration::from_millis(7);
        }
        moved
    }

    fn most_in_a_second(&self) -> usize {
        let within = |from: Instant| {
            let later = self.asked.iter().filter(|(at, _)| *at >= from);
            let within = later.take_while(|(at, _)| *at < from + Duration::from_secs(1));
            within.map(|(_, count)| count).sum()
        };
        let sums = self.asked.iter().map(|(at, _)| within(*at));
        sums.max().unwrap_or_default()
    }
}

/// What is decided of a state that has lasted.
fn steady(seen: &Seen) -> Option<Ask> {
    let (mut shift, now) = (Shift::new(config()), Instant::now());
    shift.decide(now, seen);
    shift.decide(now + STEADY, seen)
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn shift_1_no_more_than_the_configured_number_is_asked_within_any_second() {
    for (rate, least) in [
        (1, 1),
        (9, 9),
        (10, 10),
        (15, 15),
        (25, 24),
        (100, 90),
        (1_009, 900),
    ] {
        let mut driven = Driven::new(config::Shift {
            max_per_second: rate,
            ..config()
        });
        let mut seen = short(1_000_000, &[0]);
        let moved = driven.run(&mut seen, SECOND * 10);
        let most = driven.most_in_a_second();
        assert!(most <= rate as usize, "{most} of {rate}");
        assert!(moved >= least * 9, "{moved} in 10 s of {rate}/s");
    }
}

#[test]
fn shift_1_a_connection_with_several_sessions_counts_each_of_them() {
    let mut shift = Shift::new(config::Shift {
        max_per_second: 1,
        ..config()
    });
    let (now, seen) = (Instant::now(), short(1_000, &[0]));
    let ask = shift.decide(now, &seen).expect("a round");
    assert_eq!(ask.most, 1);
    shift.asked(now, 8);
    assert_eq!(
        shift.decide(now + SECOND * 8 - Duration::from_millis(1), &seen),
        None
    );
    assert!(shift.decide(now + SECOND * 8, &seen).is_some());
}

#[test]
fn shift_2_more_than_a_quarter_over_the_mean_is_too_many() {
    // Means of 1,000.
    let decide = |held: usize, other: u64| {
        let ask = steady(&seen(held, &[other]));
        ask.map(|ask| ask.reason)
    };
    assert_eq!(decide(1_250, 750), None);
    assert_eq!(decide(1_251, 749), Some(Reason::Imbalance));
    assert_eq!(decide(500, 1_500), None);
    // One that agents do not choose among equals has no share.
    let mut private = seen(5_000, &[0]);
    private.elsewhere.shares = false;
    assert_eq!(steady(&private), None);
    // Nor is it too many for a moment.
    let (mut shift, now) = (Shift::new(config()), Instant::now());
    let over = seen(2_000, &[0]);
    assert_eq!(shift.decide(now, &over), None);
    assert_eq!(shift.decide(now + SECOND * 4, &over), None);
    assert_eq!(shift.decide(now + SECOND * 5, &seen(2_000, &[1_900])), None);
    assert_eq!(shift.decide(now + SECOND * 9, &over), None);
    assert_eq!(shift.decide(now + SECOND * 13, &over), None);
    assert!(shift.decide(now + SECOND * 14, &over).is_some());
}

#[test]
fn shift_2_a_node_that_is_alone_or_small_keeps_its_agents() {
    let now = Instant::now();
    let alone = short(5_000, &[]);
    assert_eq!(Shift::new(config()).decide(now, &alone), None);
    let draining = Seen {
        draining: true,
        ..alone
    };
    assert_eq!(Shift::new(config()).decide(now, &draining), None);
    let small = short(100, &[0, 0]);
    assert_eq!(Shift::new(config()).decide(now, &small), None);
    let mut driven = Driven::new(config());
    let mut larger = short(130, &[0, 0]);
    assert_eq!(driven.run(&mut larger, SECOND * 60), 30);
    // Those who were asked may be gone any moment.
    let leaving = Seen {
        leaving: 30,
        ..short(130, &[0, 0])
    };
    assert_eq!(Shift::new(config()).decide(now, &leaving), None);
}

#[test]
fn shift_2_pressure_moves_agents_down_to_the_mean_while_it_lasts() {
    let mut driven = Driven::new(config());
    let mut busy = Seen {
        cpu: true,
        // A mean of 1,000, of which 1,200 are no imbalance.
        ..seen(1_200, &[800])
    };
    assert_eq!(driven.run(&mut busy, SECOND), 100);
    assert_eq!(driven.shift.under_way(), Some(Reason::Cpu));
    busy.cpu = false;
    assert_eq!(driven.run(&mut busy, SECOND * 200), 0);
    busy.memory = true;
    assert_eq!(
        driven.run(&mut busy, SECOND * 200),
        150,
        "the mean is 950 by now"
    );
    let memory = Seen {
        memory: true,
        cpu: true,
        ..seen(5_000, &[0])
    };
    let ask = Shift::new(config()).decide(Instant::now(), &memory);
    assert_eq!(ask.map(|ask| ask.reason), Some(Reason::Memory));
}

#[test]
fn shift_2_a_node_that_stops_moves_all_of_them_and_waits_for_no_cooldown() {
    let mut driven = Driven::new(config());
    let mut node = seen(200, &[0]);
    assert_eq!(driven.run(&mut node, SECOND * 10), 100, "an imbalance");
    assert_eq!(node.held, 100);
    node.draining = true;
    assert_eq!(driven.run(&mut node, SECOND * 10), 100);
    let ask = Shift::new(config()).decide(Instant::now(), &Seen { held: 1, ..node });
    let expected = Ask {
        most: 1,
        reason: Reason::Draining,
    };
    assert_eq!(ask, Some(expected));
}

#[test]
fn shift_3_a_round_ends_at_the_mean_and_the_next_comes_300_s_later() {
    let mut driven = Driven::new(config());
    // What the others tell of themselves does not change, and the mean seems to fall.
    let mut node = seen(1_000, &[200, 300]);
    assert_eq!(driven.run(&mut node, SECOND * 100), 500);
    assert_eq!(node.held, 500);
    assert_eq!(driven.shift.under_way(), None);
    let ended = driven.asked.last().expect("a round").0;
    node.held = 1_000;
    driven.asked.clear();
    driven.run(&mut node, SECOND * 400);
    let next = driven.asked.first().expect("another round").0;
    let calm = next - ended;
    assert!(calm >= COOLDOWN && calm < COOLDOWN + SECOND, "{calm:?}");
}

#[test]
fn shift_3_agents_that_leave_by_themselves_end_a_round_too() {
    let mut shift = Shift::new(config());
    let now = Instant::now();
    let mut node = short(1_000, &[0]);
    assert!(shift.decide(now, &node).is_some());
    shift.asked(now, 10);
    node.held = 500;
    assert_eq!(shift.decide(now + SECOND, &node), None);
    assert_eq!(shift.under_way(), None);
}

#[test]
fn shift_2_a_round_that_waits_for_agents_to_leave_asks_for_no_time() {
    let mut shift = Shift::new(config());
    let now = Instant::now();
    let mut node = short(200, &[0]);
    assert!(shift.decide(now, &node).is_some());
    shift.asked(now, 10);
    assert!(shift.next_time(now).is_some());
    node.leaving = 100;
    let later = now + SECOND;
    assert_eq!(shift.decide(later, &node), None);
    assert_eq!(shift.under_way(), Some(Reason::Memory));
    assert_eq!(shift.next_time(later), None);
}
