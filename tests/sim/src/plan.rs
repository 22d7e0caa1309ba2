//! What a seed says: how many there are of everything, and which faults come when.
//!
//! Pure. Must never draw a number that is not of the seed, nor let two faults of one link or one
//! host overlap: the end of one would end the other.

use std::time::Duration;

use yuzu_tests::random::Random;

/// Gateways: one public, the others private.
pub const NODES: usize = 3;
/// Hosts with agents.
pub const SITES: usize = 4;
/// Hosts with a caller.
pub const CALLERS: usize = 2;
/// When callers begin.
pub const CALLS_FROM: Duration = Duration::from_secs(6);
/// The first fault comes here.
pub const FAULTS_FROM: Duration = Duration::from_secs(10);
/// All faults are over.
pub const HEALED: Duration = Duration::from_secs(45);
/// Everything is right again this long after the last fault.
pub const CONVERGED: Duration = Duration::from_secs(15);
/// When callers stop.
pub const CALLS_UNTIL: Duration = Duration::from_secs(62);
/// When nothing is under way any more.
pub const QUIET: Duration = Duration::from_secs(74);
/// The end.
pub const END: Duration = Duration::from_secs(78);

/// A host of the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A gateway.
    Node(usize),
    /// Agents.
    Site(usize),
    /// A caller.
    Caller(usize),
    /// The control plane.
    Server,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What {
    /// Nothing passes between two hosts; what is lost of a TCP stream never comes.
    Partition(Place, Place),
    /// Nothing passes from the one to the other.
    OneWay(Place, Place),
    /// Everything waits until it is over, as TCP would have it.
    Hold(Place, Place),
    /// Everything takes so many milliseconds.
    Slow(Place, Place, u64),
    /// This share of messages is lost, each with all that is under way.
    Loss(Place, Place, f64),
    /// The process dies; its system says so to its peers.
    Crash(Place),
    /// The machine dies: nobody is told.
    PowerLoss(Place),
    /// A gateway is stopped as planned.
    Stop(usize),
    /// The server dies and comes back without its memory.
    Forgetful,
    /// An agent goes to another node; not a fault.
    Leave(usize),
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    /// Which.
    pub what: What,
    /// Its beginning.
    pub from: Duration,
    /// Its end.
    pub until: Duration,
}

/// All that a seed says.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Agents.
    pub agents: usize,
    /// Faults, by their beginning.
    pub faults: Vec<Fault>,
}

impl Plan {
    /// What this seed says. One in ten has no fault.
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed).apart(1);
        let agents = 10 + random.below(31);
        let wanted = match random.below(10) {
            0 => 0,
            _ => 1 + random.below(7),
        };
        let mut faults: Vec<Fault> = Vec::new();
        // A fault that overlaps another is drawn again, a few times.
        for _ in 0..8 * wanted {
            let fault = Fault::of(&mut random);
            if faults.len() < wanted && !faults.iter().any(|other| other.disturbs(&fault)) {
                faults.push(fault);
            }
        }
        for _ in 0..random.below(6) {
            let from = random.between(FAULTS_FROM, HEALED);
            let what = What::Leave(random.below(agents));
            let until = from;
            faults.push(Fault { what, from, until });
        }
        faults.sort_by_key(|fault| fault.from);
        Self { agents, faults }
    }
}

impl Plan {
    /// Whether a caller may leave before the gateway knows how its targets end.
    pub fn makes_callers_leave(&self) -> bool {
        let mut places = self.faults.iter().flat_map(Fault::places);
        places.any(|place| matches!(place, Place::Caller(_)))
    }
}

impl Fault {
    fn of(random: &mut Random) -> Self {
        let from = random.between(FAULTS_FROM, HEALED - Duration::from_secs(1));
        let longest = match random.below(3) {
            0 => Duration::from_secs(2),
            _ => Duration::from_secs(12),
        };
        let until = random.between(
            from + Duration::from_millis(100),
            HEALED.min(from + longest),
        );
        let what = match random.below(20) {
            // The way to the server PINGs too seldom for a simulation: what TCP sends again must come.
            _ if random.below(8) == 0 => match random.below(2) {
                0 => What::Hold(Place::Node(random.below(NODES)), Place::Server),
                _ => {
                    let ms = 50 + random.below(1_000) as u64;
                    What::Slow(Place::Node(random.below(NODES)), Place::Server, ms)
                }
            },
            0..=3 => pair(random, What::Partition),
            4..=6 => pair(random, What::OneWay),
            7..=8 => pair(random, What::Hold),
            9..=10 => {
                let ms = 50 + random.below(1_000) as u64;
                pair(random, |a, b| What::Slow(a, b, ms))
            }
            11..=12 => {
                let share = 0.005 + 0.1 * random.share();
                pair(random, |a, b| What::Loss(a, b, share))
            }
            13..=15 => What::Crash(host(random)),
            16..=17 => What::PowerLoss(host(random)),
            18 => What::Stop(random.below(NODES)),
            _ => What::Forgetful,
        };
        Self { what, from, until }
    }

    /// The hosts that it is about; one that dies itself is alone.
    pub fn places(&self) -> Vec<Place> {
        match self.what {
            What::Partition(a, b)
            | What::OneWay(a, b)
            | What::Hold(a, b)
            | What::Slow(a, b, _)
            | What::Loss(a, b, _) => vec![a, b],
            What::Crash(place) | What::PowerLoss(place) => vec![place],
            What::Stop(node) => vec![Place::Node(node)],
            What::Forgetful => vec![Place::Server],
            What::Leave(_) => vec![],
        }
    }

    /// Whether both can't be had.
    fn disturbs(&self, other: &Self) -> bool {
        let (own, others) = (self.places(), other.places());
        let shared = own.iter().filter(|place| others.contains(place)).count();
        let clash = shared == own.len() || shared == others.len();
        let pause = Duration::from_millis(100);
        clash && self.from < other.until + pause && other.from < self.until + pause
    }

    /// Whether it may be felt on the way over these hosts, at some time from `from` to `until`.
    pub fn touches(&self, way: &[Place], from: Duration, until: Duration) -> bool {
        let places = self.places();
        !places.is_empty()
            && places.iter().all(|place| way.contains(place))
            && self.from < until
            && from < self.until + CONVERGED
    }
}

fn pair(random: &mut Random, what: impl FnOnce(Place, Place) -> What) -> What {
    let node = random.below(NODES);
    let other = match random.below(10) {
        0..=4 => Place::Node((node + 1 + random.below(NODES - 1)) % NODES),
        5..=8 => Place::Site(random.below(SITES)),
        _ => return what(Place::Caller(random.below(CALLERS)), Place::Node(0)),
    };
    match random.below(2) {
        0 => what(Place::Node(node), other),
        _ => what(other, Place::Node(node)),
    }
}

fn host(random: &mut Random) -> Place {
    match random.below(10) {
        0..=5 => Place::Node(random.below(NODES)),
        6..=7 => Place::Site(random.below(SITES)),
        8 => Place::Caller(random.below(CALLERS)),
        _ => Place::Server,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_the_same_again_and_its_faults_fit_in() {
        let mut kinds = std::collections::HashSet::new();
        for seed in 0..500 {
            let plan = Plan::of(seed);
            assert_eq!(plan, Plan::of(seed));
            for (index, fault) in plan.faults.iter().enumerate() {
                assert!(fault.from >= FAULTS_FROM && fault.until <= HEALED);
                assert!(fault.from <= fault.until);
                kinds.insert(std::mem::discriminant(&fault.what));
                let mut others = plan.faults.iter().enumerate();
                let clashes = others.any(|(other, f)| {
                    other != index && !f.places().is_empty() && f.disturbs(fault)
                });
                assert!(
                    !clashes || fault.places().is_empty(),
                    "seed {seed}: {fault:?}"
                );
            }
        }
        assert_eq!(kinds.len(), 10);
    }
}
