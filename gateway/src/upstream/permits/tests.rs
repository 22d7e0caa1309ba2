use proptest::prelude::*;

use super::*;

const SIZES: Limits = Limits {
    register: 48,
    inventory: 8,
    replay: 24,
};
const RESERVED: usize = 61;

fn limits(register: usize, inventory: usize, replay: usize) -> Limits {
    Limits {
        register,
        inventory,
        replay,
    }
}

#[test]
fn permit_8_the_limit_is_split_in_proportion() {
    let expected = [
        (None, limits(48, 8, 24)),
        (Some(u32::MAX), limits(48, 8, 24)),
        (Some(117), limits(48, 8, 24)),
        // 55 left: 55 * 48 / 56 = 47.1.
        (Some(116), limits(47, 8, 23)),
        // 20 left: 17.1.
        (Some(81), limits(17, 3, 8)),
        // 3 left: 2.6.
        (Some(64), limits(2, 1, 1)),
        (Some(63), limits(1, 1, 1)),
        (Some(62), limits(1, 1, 1)),
        (Some(61), limits(1, 1, 1)),
        (Some(0), limits(1, 1, 1)),
    ];
    for (server, in_force) in expected {
        assert_eq!(SIZES.within(server, RESERVED), in_force, "{server:?}");
    }
}

#[test]
fn permit_9_the_examples() {
    assert_eq!(SIZES.within(Some(128), RESERVED), limits(48, 8, 24));
    assert_eq!(SIZES.within(Some(100), RESERVED), limits(33, 6, 16));
    assert_eq!(SIZES.within(Some(60), RESERVED), limits(1, 1, 1));
}

#[test]
fn permit_8_a_configured_replay_cap_is_never_raised() {
    let sizes = Limits { replay: 3, ..SIZES };
    assert_eq!(sizes.within(Some(100), RESERVED), limits(33, 6, 3));
    let sizes = Limits {
        replay: 48,
        ..SIZES
    };
    assert_eq!(sizes.within(Some(200), RESERVED), limits(48, 8, 48));
    assert_eq!(sizes.within(Some(100), RESERVED), limits(33, 6, 16));
}

proptest! {
    #[test]
    fn permit_8_what_is_in_force_fits_the_server(
        register in 1usize..=1_000,
        inventory in 1usize..=1_000,
        replay in 1usize..=1_000,
        server in 0u32..2_500,
    ) {
        let sizes = limits(register, inventory, replay.min(register));
        let in_force = sizes.within(Some(server), RESERVED);
        let left = (server as usize).saturating_sub(RESERVED);
        prop_assert!(in_force.register + in_force.inventory <= left.max(2));
        prop_assert!((1..=sizes.register).contains(&in_force.register));
        prop_assert!((1..=sizes.inventory).contains(&in_force.inventory));
        prop_assert!((1..=sizes.replay).contains(&in_force.replay));
        prop_assert!(in_force.replay <= in_force.register);
        prop_assert_eq!(sizes.within(None, RESERVED), sizes);
        if left >= register + inventory {
            prop_assert_eq!(in_force, sizes);
        }
    }
}

fn pool(register: usize, inventory: usize, replay: usize) -> Pool<&'static str> {
    Pool::new(limits(register, inventory, replay), limits(10, 10, 10))
}

fn queued(asked: Asked) -> Ticket {
    match asked {
        Asked::Queued(ticket) => ticket,
        other => panic!("not queued: {other:?}"),
    }
}

#[test]
fn permit_1_registers_and_replays_share_a_pool_and_replays_have_a_cap() {
    let mut pool = pool(4, 1, 2);
    for class in [Class::Replay, Class::Replay] {
        assert_eq!(pool.ask(class, ""), Asked::Granted);
    }
    queued(pool.ask(Class::Replay, "third replay"));
    for _ in 0..2 {
        assert_eq!(pool.ask(Class::Register, ""), Asked::Granted);
    }
    queued(pool.ask(Class::Register, "third register"));
    assert_eq!(pool.ask(Class::Inventory, ""), Asked::Granted);
    queued(pool.ask(Class::Inventory, "second inventory"));
    assert_eq!(pool.next(), None);
}

#[test]
fn permit_6_a_live_register_goes_before_every_replay() {
    let mut pool = pool(2, 1, 2);
    for _ in 0..2 {
        assert_eq!(pool.ask(Class::Replay, ""), Asked::Granted);
    }
    queued(pool.ask(Class::Replay, "replay 1"));
    queued(pool.ask(Class::Register, "live 1"));
    queued(pool.ask(Class::Register, "live 2"));
    queued(pool.ask(Class::Replay, "replay 2"));
    for expected in ["live 1", "live 2", "replay 1", "replay 2"] {
        pool.release(if expected.starts_with("live") {
            Class::Replay
        } else {
            Class::Register
        });
        assert_eq!(pool.next(), Some(expected));
        assert_eq!(pool.next(), None);
    }
}

#[test]
fn permit_7_a_caller_that_leaves_gives_back_its_place_or_its_permit() {
    let mut pool = pool(1, 1, 1);
    assert_eq!(pool.ask(Class::Register, "first"), Asked::Granted);
    let second = queued(pool.ask(Class::Register, "second"));
    let third = queued(pool.ask(Class::Register, "third"));
    queued(pool.ask(Class::Register, "fourth"));
    pool.leave(Class::Register, second);
    assert_eq!(pool.next(), None, "the permit is still held");
    pool.release(Class::Register);
    assert_eq!(pool.next(), Some("third"));
    pool.leave(Class::Register, third);
    assert_eq!(pool.next(), Some("fourth"));
    assert_eq!(pool.held(Class::Register), 1);
    assert_eq!(pool.waiting(Class::Register), 0);
}

#[test]
fn permit_10_a_lower_limit_takes_nothing_back() {
    let mut pool = pool(3, 1, 1);
    for _ in 0..3 {
        assert_eq!(pool.ask(Class::Register, ""), Asked::Granted);
    }
    queued(pool.ask(Class::Register, "next"));
    pool.limit(limits(1, 1, 1));
    assert_eq!(pool.held(Class::Register), 3);
    for _ in 0..2 {
        pool.release(Class::Register);
        assert_eq!(pool.next(), None);
    }
    pool.release(Class::Register);
    assert_eq!(pool.next(), Some("next"));
}

#[test]
fn permit_12_a_higher_limit_serves_those_who_wait() {
    let mut pool = pool(1, 1, 1);
    assert_eq!(pool.ask(Class::Register, ""), Asked::Granted);
    for waiter in ["a", "b", "c"] {
        queued(pool.ask(Class::Register, waiter));
    }
    pool.limit(limits(3, 1, 1));
    assert_eq!(pool.next(), Some("a"));
    assert_eq!(pool.next(), Some("b"));
    assert_eq!(pool.next(), None);
}

#[test]
fn permit_13_a_stopped_pool_grants_nothing_and_its_permits_come_back() {
    let mut pool = pool(1, 1, 1);
    assert_eq!(pool.ask(Class::Register, ""), Asked::Granted);
    let waiting = queued(pool.ask(Class::Register, "waiting"));
    pool.stop();
    assert_eq!(pool.ask(Class::Register, ""), Asked::Stopped);
    assert_eq!(pool.ask(Class::Inventory, ""), Asked::Stopped);
    pool.release(Class::Register);
    assert_eq!(pool.next(), None);
    pool.leave(Class::Register, waiting);
    assert_eq!(pool.held(Class::Register), 0);
    assert_eq!(pool.waiting(Class::Register), 0);
}

/// The rules, said as plainly as possible: one list of callers in the order in which they came.
#[derive(Debug)]
struct Naive {
    limits: Limits,
    queues: Limits,
    callers: Vec<(u32, Class, bool)>,
    stopped: bool,
}

impl Naive {
    fn count(&self, class: Class, holds: bool) -> usize {
        let mine = |caller: &&(u32, Class, bool)| caller.1 == class && caller.2 == holds;
        self.callers.iter().filter(mine).count()
    }

    fn room(&self, class: Class) -> bool {
        let registers = self.count(Class::Register, true) + self.count(Class::Replay, true);
        match class {
            Class::Inventory => self.count(class, true) < self.limits.inventory,
            Class::Register => registers < self.limits.register,
            Class::Replay => {
                registers < self.limits.register && self.count(class, true) < self.limits.replay
            }
        }
    }

    /// Serves the first live registers, then inventories, then replays, one after the other.
    fn serve(&mut self) -> Vec<u32> {
        let mut served = Vec::new();
        while !self.stopped {
            let first = Class::ALL.into_iter().find_map(|class| {
                let waits = |caller: &(u32, Class, bool)| caller.1 == class && !caller.2;
                let first = self.callers.iter().position(waits)?;
                self.room(class).then_some(first)
            });
            let Some(first) = first else { break };
            self.callers[first].2 = true;
            served.push(self.callers[first].0);
        }
        served
    }

    fn ask(&mut self, id: u32, class: Class) -> &'static str {
        if self.stopped {
            return "stopped";
        }
        self.callers.push((id, class, false));
        if self.serve() == [id] {
            "granted"
        } else if self.count(class, false) > self.queues.of(class) {
            self.callers.pop();
            "full"
        } else {
            "queued"
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Ask(Class),
    Go(prop::sample::Index),
    Limit(Option<u32>),
    Stop,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        60 => prop::sample::select(Class::ALL.to_vec()).prop_map(Step::Ask),
        40 => any::<prop::sample::Index>().prop_map(Step::Go),
        10 => prop::option::of(0u32..20).prop_map(Step::Limit),
        1 => Just(Step::Stop),
    ]
}

proptest! {
    #[test]
    fn agrees_with_a_naive_pool(steps in prop::collection::vec(step(), 1..400)) {
        let (sizes, queues) = (limits(6, 3, 2), limits(5, 2, 3));
        let mut pool = Pool::new(sizes, queues);
        let mut naive = Naive { limits: sizes, queues, callers: Vec::new(), stopped: false };
        let mut tickets = std::collections::BTreeMap::new();
        for (id, step) in (0u32..).zip(steps) {
            match step {
                Step::Ask(class) => {
                    let asked = pool.ask(class, id);
                    let told = match asked {
                        Asked::Granted => "granted",
                        Asked::Queued(ticket) => {
                            tickets.insert(id, ticket);
                            "queued"
                        }
                        Asked::Full => "full",
                        Asked::Stopped => "stopped",
                    };
                    prop_assert_eq!(told, naive.ask(id, class));
                }
                Step::Go(index) if !naive.callers.is_empty() => {
                    let at = index.index(naive.callers.len());
                    let (id, class, _holds) = naive.callers.remove(at);
                    match tickets.remove(&id) {
                        // Whether it was served meanwhile is the pool's to know.
                        Some(ticket) => pool.leave(class, ticket),
                        None => pool.release(class),
                    }
                }
                Step::Go(_) => {}
                Step::Limit(server) => {
                    naive.limits = sizes.within(server, 4);
                    pool.limit(naive.limits);
                }
                Step::Stop => {
                    naive.stopped = true;
                    pool.stop();
                }
            }
            let served: Vec<u32> = std::iter::from_fn(|| pool.next()).collect();
            prop_assert_eq!(served, naive.serve());
            for class in Class::ALL {
                prop_assert_eq!(pool.held(class), naive.count(class, true));
                prop_assert_eq!(pool.waiting(class), naive.count(class, false));
            }
        }
    }
}
