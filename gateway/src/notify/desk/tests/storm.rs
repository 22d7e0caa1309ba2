//! Figures of a server that does not record notices, in simulated time.
#![expect(clippy::print_stderr, reason = "shows figures")]

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const ANSWER: Duration = Duration::from_millis(5);
const AGENTS: usize = 5_000;

/// A server that answers every notice after 5 ms, and a desk with all its slots.
struct Storm {
    rig: Rig,
    begin: Instant,
    /// What is in flight, by the time of its answer.
    answers: BTreeMap<(Instant, u64), (Notice, bool)>,
    sends: u64,
    resends_out: usize,
    most_resends_out: usize,
    recorded: BTreeMap<String, Instant>,
    random: u64,
}

impl Storm {
    fn new() -> Self {
        let rig = Rig::new(180_000);
        Self {
            begin: rig.now,
            rig,
            answers: BTreeMap::new(),
            sends: 0,
            resends_out: 0,
            most_resends_out: 0,
            recorded: BTreeMap::new(),
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// xorshift, so that every run gives the same figures.
    fn chance(&mut self) -> f64 {
        for (left, shift) in [(true, 13), (false, 7), (true, 17)] {
            self.random ^= match left {
                true => self.random << shift,
                false => self.random >> shift,
            };
        }
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Runs until `end`; `records` is what the server makes of a notice that arrives now.
    fn run(&mut self, end: Instant, records: impl Fn(&Notice, Instant) -> bool) {
        loop {
            let now = self.rig.now;
            while let (Some(notice), _) = self.rig.desk.start(now, |_| true) {
                let resend = self.rig.desk.unacked.is_out(&notice.key());
                self.resends_out += usize::from(resend);
                self.most_resends_out = self.most_resends_out.max(self.resends_out);
                self.sends += 1;
                let recorded = records(&notice, now);
                if recorded {
                    let name = format!("{} {}", notice.session_id, notice.event.label());
                    self.recorded.entry(name).or_insert(now);
                }
                let at = (now + ANSWER, self.sends);
                self.answers.insert(at, (notice, recorded));
            }
            self.rig.desk.tick(now);
            let timer = self.rig.desk.next_time(now);
            let answer = self.answers.first_key_value().map(|((at, _), _)| *at);
            let next = timer.into_iter().chain(answer).min();
            let Some(next) = next.filter(|next| *next <= end) else {
                self.rig.now = end;
                return;
            };
            self.rig.now = next;
            while let Some(entry) = self.answers.first_entry()
                && entry.key().0 <= next
            {
                let (notice, recorded) = entry.remove();
                let resend = self.rig.desk.unacked.is_out(&notice.key());
                self.resends_out -= usize::from(resend);
                let chance = self.chance();
                let sent = match recorded {
                    true => Sent::Acknowledged,
                    false => Sent::Unacknowledged,
                };
                self.rig.desk.land(notice, sent, next, chance);
            }
        }
    }

    fn wave(&mut self) {
        for session in 0..AGENTS {
            self.rig.offer(session, Connected);
        }
    }

    fn at(&self, seconds: f64) -> Instant {
        self.begin + Duration::from_secs_f64(seconds)
    }
}

/// F-NOT-14, F-NOT-16.
#[test]
fn unack_3_5000_refused_for_60_s_are_recorded_within_10_s_of_the_change() {
    recorded_within_10_s(60);
}

/// The longer they were refused, the longer they wait: 150 fall due in a second, fewer than one
/// slot sends.
#[test]
fn unack_3_so_are_those_that_were_refused_for_10_minutes() {
    recorded_within_10_s(600);
}

fn recorded_within_10_s(refused: u32) {
    let mut storm = Storm::new();
    let change = storm.at(f64::from(refused));
    // The agents of the wave are refused for a while, others never.
    let records = |notice: &Notice, now: Instant| {
        let session: usize = notice.session_id[1..].parse().unwrap();
        session >= AGENTS || now >= change
    };
    storm.wave();
    let mut slowest = Duration::ZERO;
    let mut fresh = AGENTS;
    // The wave itself takes 2.5 s.
    for quarter in 12..4 * (refused + 60) {
        storm.run(storm.at(f64::from(quarter) / 4.0), records);
        let now = storm.rig.now;
        storm.rig.offer(fresh, Connected);
        storm.run(now + Duration::from_millis(100), records);
        storm.rig.offer(fresh, Disconnected);
        storm.run(now + Duration::from_millis(200), records);
        for (event, after) in [("connected", 0), ("disconnected", 100)] {
            let arrived = storm.recorded[&format!("s{fresh} {event}")];
            let took = arrived + ANSWER - (now + Duration::from_millis(after));
            slowest = slowest.max(took);
        }
        fresh += 1;
    }
    let recorded = |session: usize| storm.recorded.get(&format!("s{session} connected"));
    let last = (0..AGENTS).map(|session| *recorded(session).expect("recorded"));
    let last = last.max().unwrap() - change;
    eprintln!(
        "{AGENTS} refused for {refused} s: the last recorded {last:?} after the change; {} fresh \
         CONNECTED and DISCONNECTED delivered in {slowest:?} at most; {} resends in flight at most",
        fresh - AGENTS,
        storm.most_resends_out
    );
    assert!(last <= Duration::from_secs(10), "{last:?}");
    assert!(slowest <= Duration::from_millis(20), "{slowest:?}");
    assert_eq!(storm.most_resends_out, 5);
    assert_eq!(storm.rig.desk.unacked(), 0);
}

/// F-NOT-15.
#[test]
fn unack_7_5000_refused_for_hours_cost_150_resends_a_second_and_then_9() {
    let mut storm = Storm::new();
    storm.wave();
    let mut rate = |from: f64, to: f64| {
        storm.run(storm.at(from), |_, _| false);
        let before = storm.sends;
        storm.run(storm.at(to), |_, _| false);
        (
            (storm.sends - before) as f64 / (to - from),
            storm.rig.desk.unacked_slow(),
        )
    };
    let (normal, none) = rate(200.0, 900.0);
    let (slow, all) = rate(1_600.0, 7_200.0);
    eprintln!("{AGENTS} refused: {normal:.0} resends/s, {slow:.1} resends/s in the slow phase");
    assert!((140.0..160.0).contains(&normal), "{normal}");
    assert!((8.5..10.0).contains(&slow), "{slow}");
    assert_eq!((none, all), (0, AGENTS));
}

/// A server that records one in ten is not asked about the others much more often: each one that
/// it records brings one forward.
#[test]
fn unack_3_a_server_that_goes_on_refusing_most_is_not_stormed() {
    let mut storm = Storm::new();
    let change = storm.at(200.0);
    let few = |notice: &Notice, now: Instant| {
        let session: usize = notice.session_id[1..].parse().unwrap();
        session.is_multiple_of(10) && now >= change
    };
    storm.wave();
    storm.run(change, few);
    let before = storm.sends;
    storm.run(storm.at(260.0), few);
    let rate = (storm.sends - before) / 60;
    eprintln!("one in ten recorded: {rate} resends/s");
    assert!(rate <= 170, "{rate}");
}

/// No two resends fall together for long: a wave that was refused at once spreads out.
#[test]
fn unack_3_refused_at_once_they_do_not_come_back_at_once() {
    let mut storm = Storm::new();
    storm.wave();
    storm.run(storm.at(120.0), |_, _| false);
    let mut seconds = BTreeSet::new();
    for second in 120..180 {
        let before = storm.sends;
        storm.run(storm.at(f64::from(second + 1)), |_, _| false);
        seconds.insert(storm.sends - before);
    }
    let (least, most) = (seconds.first().unwrap(), seconds.last().unwrap());
    eprintln!("resends a second after two minutes: {least} to {most}");
    assert!(*most < 400 && *least > 50, "{seconds:?}");
}
