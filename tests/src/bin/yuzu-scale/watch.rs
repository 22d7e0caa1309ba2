//! What the processes of a scenario use, apart for each kind: gateways, floors, servers, and the load.
//!
//! Responsible for looking at them a few times a second, so that peaks are seen and the last word of a
//! process that ends is kept. Must never count the load for the gateway: a scenario that holds both in one
//! process says so in the names of its figures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use yuzu_tests::usage::{Usage, started_since};

use crate::report::Report;

const LOOK: Duration = Duration::from_millis(200);

/// What processes of one kind used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Used {
    processes: usize,
    /// Of all of them together.
    spent: Spent,
    /// At once in one of them.
    most: Most,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Spent {
    processor_time: Duration,
    voluntary_switches: u64,
    forced_switches: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Most {
    resident: u64,
    anonymous: u64,
    descriptors: u64,
}

/// One process as it was seen.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    first: Usage,
    last: Usage,
    most: Most,
}

impl Seen {
    fn look(&mut self, now: Usage) {
        // The switches are those of threads that live: of a process that is being ended there are fewer.
        let (waits, forced) = (self.last.voluntary_switches, self.last.forced_switches);
        self.last = Usage {
            voluntary_switches: now.voluntary_switches.max(waits),
            forced_switches: now.forced_switches.max(forced),
            ..now
        };
        self.most.resident = self.most.resident.max(now.resident);
        self.most.anonymous = self.most.anonymous.max(now.anonymous);
        self.most.descriptors = self.most.descriptors.max(now.descriptors);
    }
}

impl Used {
    /// Counts one process.
    fn add(&mut self, seen: &Seen) {
        let Seen { first, last, most } = seen;
        self.processes += 1;
        self.spent.processor_time += last.processor_time.saturating_sub(first.processor_time);
        let switches = |of: fn(&Usage) -> u64| of(last).saturating_sub(of(first));
        self.spent.voluntary_switches += switches(|usage| usage.voluntary_switches);
        self.spent.forced_switches += switches(|usage| usage.forced_switches);
        self.most.resident = self.most.resident.max(most.resident);
        self.most.anonymous = self.most.anonymous.max(most.anonymous);
        self.most.descriptors = self.most.descriptors.max(most.descriptors);
    }
}

/// Looks at this process and at those that it starts from now on.
#[derive(Debug)]
pub(crate) struct Watch {
    over: Arc<AtomicBool>,
    looking: JoinHandle<Vec<(&'static str, Seen)>>,
}

impl Watch {
    pub(crate) fn begin() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let before = started_since(0).len();
        let looking = std::thread::spawn(move || looks(before, &ends));
        Self { over, looking }
    }

    /// Adds what was seen to the report of the scenario.
    pub(crate) fn end(self, report: &mut Report) {
        self.over.store(true, Ordering::Relaxed);
        self.looking.thread().unpark();
        // It has nothing that panics; without it there is nothing to be told.
        let seen = self.looking.join().unwrap_or_default();
        let mut used: BTreeMap<&str, Used> = BTreeMap::new();
        for (what, seen) in &seen {
            used.entry(what).or_default().add(seen);
        }
        // Most scenarios have the gateway as a process.
        let alone = !used.contains_key("gateway") && !used.contains_key("floor");
        for (what, used) in used {
            let what = match what {
                LOAD if alone => "load and gateway, one process",
                what => what,
            };
            tell(report, what, &used);
        }
    }
}

const LOAD: &str = "load";

/// All processes, each as it was seen until it or this has ended.
fn looks(before: usize, over: &AtomicBool) -> Vec<(&'static str, Seen)> {
    let own = std::process::id();
    let mut seen: BTreeMap<u32, (&'static str, Seen)> = BTreeMap::new();
    if let Ok(first) = Usage::of(own) {
        let last = first;
        let most = Most::default();
        seen.insert(own, (LOAD, Seen { first, last, most }));
    }
    loop {
        let is_last = over.load(Ordering::Relaxed);
        for started in started_since(before) {
            seen.entry(started.process)
                .or_insert((started.what, Seen::default()));
        }
        for (process, (_, seen)) in &mut seen {
            // One that has ended stays as it was seen last; no id is given anew so soon.
            if let Ok(now) = Usage::of(*process) {
                seen.look(now);
            }
        }
        if is_last {
            return seen.into_values().collect();
        }
        std::thread::park_timeout(LOOK);
    }
}

fn tell(report: &mut Report, what: &str, used: &Used) {
    let Used {
        processes,
        spent,
        most,
    } = used;
    let what = match processes {
        1 => what.to_owned(),
        some => format!("{what}, {some} processes"),
    };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let time = spent.processor_time.as_secs_f64();
    report.number(&format!("{what}: processor time, s"), time);
    report.number(&format!("{what}: most resident, MiB"), mib(most.resident));
    report.number(&format!("{what}: most anonymous, MiB"), mib(most.anonymous));
    report.count(&format!("{what}: most descriptors"), most.descriptors);
    report.count(&format!("{what}: waits"), spent.voluntary_switches);
    report.count(
        &format!("{what}: forced off a processor"),
        spent.forced_switches,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(seconds: u64, resident: u64, switches: u64) -> Usage {
        Usage {
            processor_time: Duration::from_secs(seconds),
            resident,
            anonymous: resident / 2,
            descriptors: resident / 10,
            voluntary_switches: switches,
            forced_switches: switches / 2,
        }
    }

    #[test]
    fn time_and_switches_are_summed_from_the_first_look_and_the_rest_is_the_most_of_one() {
        let mut one = Seen {
            first: usage(10, 100, 1_000),
            ..Seen::default()
        };
        one.look(usage(11, 500, 1_100));
        one.look(usage(13, 200, 1_400));
        let mut other = Seen::default();
        other.look(usage(2, 300, 60));
        // Its threads have ended, but for one.
        other.look(usage(2, 300, 10));
        let mut used = Used::default();
        used.add(&one);
        used.add(&other);
        let wanted = Used {
            processes: 2,
            spent: Spent {
                processor_time: Duration::from_secs(5),
                voluntary_switches: 460,
                forced_switches: 230,
            },
            most: Most {
                resident: 500,
                anonymous: 250,
                descriptors: 50,
            },
        };
        assert_eq!(used, wanted);
    }

    #[test]
    fn this_process_is_the_load() {
        let mut report = Report::default();
        Watch::begin().end(&mut report);
        let table = report.table("x");
        assert!(table.contains(": most descriptors"), "{table}");
        assert!(report.holds());
    }
}
