mod cap;

use super::*;

const CAP: usize = 8;
const GRACE: Duration = Duration::from_secs(15);
const LIMITS: TableLimits = TableLimits {
    max_per_connection: CAP,
    grace: GRACE,
};

/// A live row carries the number of its epoch.
type TestTable = Table<u64>;

fn id(text: impl AsRef<str>) -> Arc<str> {
    Arc::from(text.as_ref())
}

fn registration(agent: &Arc<str>) -> Registration {
    Registration {
        agent_id: Arc::clone(agent),
        hostname: id("host"),
        plugins: Arc::from([]),
        request: Kept::from(&b"request"[..]),
        peer: None,
    }
}

/// A table and the connection and time of the test.
struct Bench {
    table: TestTable,
    connection: ConnectionKey,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Self::with(LIMITS)
    }

    fn with(limits: TableLimits) -> Self {
        Self {
            table: Table::new(limits),
            connection: ConnectionKey::next(),
            now: Instant::now(),
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn reserve(&mut self, agent: &str) -> Result<Reservation, CapReached> {
        self.table.reserve(self.connection, &id(agent), self.now)
    }

    fn commit(&mut self, stamp: Reservation, session: &str, agent: &str) -> Result<(), Superseded> {
        let registration = registration(&id(agent));
        self.table
            .commit(stamp, &id(session), registration, self.now)
    }

    /// Registers `agent`; its session is called `s-` and its id.
    fn register(&mut self, agent: &str) {
        let stamp = self.reserve(agent).unwrap();
        self.commit(stamp, &format!("s-{agent}"), agent).unwrap();
    }

    fn subscribe(&mut self, session: &str) -> Result<Subscribed<u64>, TakeRefused> {
        self.table
            .subscribe(session, self.connection, self.now, 0, |_, epoch| {
                epoch.number()
            })
    }

    /// Connects `agent` on a connection of its own.
    fn connect(&mut self, agent: &str) -> u64 {
        self.connection = ConnectionKey::next();
        self.register(agent);
        self.subscribe(&format!("s-{agent}")).unwrap().value
    }

    fn end(&mut self, agent: &str, epoch: u64) -> bool {
        self.table
            .end(&id(agent), Epoch::from_number(epoch).unwrap())
    }

    fn admit(&self, session: &str) -> Result<(), Refusal> {
        self.table.admit_pending(session, self.connection, self.now)
    }

    fn sweep(&mut self) {
        self.table.sweep(self.now);
    }

    fn close(&mut self) {
        self.table.connection_closed(self.connection, self.now);
    }

    fn page(&self, cursor: &str, limit: usize) -> (Vec<u64>, bool) {
        self.table.page(cursor, limit)
    }
}

#[test]
fn reg_8_a_pending_row_is_swept_after_120_s() {
    let mut b = Bench::new();
    b.register("agent");
    b.wait(119);
    b.sweep();
    assert_eq!(b.table.pending.len(), 1);
    b.wait(1);
    b.sweep();
    assert_eq!(b.subscribe("s-agent").unwrap_err(), TakeRefused::NotPending);
    assert!(b.table.pending.is_empty() && b.table.commits.is_empty());
}

#[test]
fn reg_9_repeated_registers_leave_the_newest_row_only() {
    let mut b = Bench::new();
    for n in 0..120 {
        let stamp = b.reserve("agent").unwrap();
        b.commit(stamp, &format!("s-{n}"), "agent").unwrap();
        assert_eq!(b.table.pending.len(), 1);
    }
    assert_eq!(b.subscribe("s-118").unwrap_err(), TakeRefused::NotPending);
    assert!(b.subscribe("s-119").is_ok());
}

#[test]
fn reg_9_rows_of_one_agent_on_two_connections_do_not_touch_each_other() {
    let mut b = Bench::new();
    b.register("agent");
    b.connection = ConnectionKey::next();
    let stamp = b.reserve("agent").unwrap();
    b.commit(stamp, "s-2", "agent").unwrap();
    assert_eq!(b.table.pending.len(), 2);
    assert!(b.subscribe("s-agent").is_ok());
    assert!(b.subscribe("s-2").is_ok());
}

#[test]
fn reg_10_a_commit_that_a_newer_registration_overtook_is_superseded() {
    let mut b = Bench::new();
    let (older, newer) = (b.reserve("agent").unwrap(), b.reserve("agent").unwrap());
    b.commit(newer, "s-newer", "agent").unwrap();
    assert_eq!(b.commit(older, "s-older", "agent"), Err(Superseded));
    assert_eq!(b.table.pending.len(), 1);
    assert!(b.table.reserved.is_empty());
    assert!(b.subscribe("s-newer").is_ok());
}

#[test]
fn reg_16_a_reservation_nobody_gives_back_is_swept_after_120_s() {
    let mut b = Bench::new();
    let stamp = b.reserve("agent").unwrap();
    b.wait(120);
    assert_eq!(b.commit(stamp, "s", "agent"), Err(Superseded));
    b.reserve("agent").unwrap();
    b.wait(119);
    b.sweep();
    assert_eq!(b.table.reserved.len(), 1);
    b.wait(1);
    b.sweep();
    assert!(b.table.reserved.is_empty() && b.table.connections.is_empty());
}

#[test]
fn released_reservations_leave_nothing_behind_until_their_lifetime() {
    let mut b = Bench::new();
    for _ in 0..10_000 {
        let stamp = b.reserve("agent").unwrap();
        b.table.release(stamp);
    }
    assert!(b.table.reserved.is_empty() && b.table.connections.is_empty());
}

#[test]
fn sub_2_nothing_pending_is_refused() {
    let mut b = Bench::new();
    assert_eq!(b.subscribe("s").unwrap_err(), TakeRefused::NotPending);
}

#[test]
fn sub_3_a_row_is_taken_once() {
    let mut b = Bench::new();
    b.register("agent");
    assert!(b.subscribe("s-agent").is_ok());
    assert_eq!(b.subscribe("s-agent").unwrap_err(), TakeRefused::NotPending);
}

#[test]
fn sub_4_a_late_row_that_no_sweep_has_seen_is_still_taken() {
    let mut b = Bench::new();
    b.register("agent");
    b.wait(121);
    assert!(b.subscribe("s-agent").is_ok());
}

#[test]
fn sub_5_the_session_belongs_to_the_connection_of_the_subscribe() {
    let mut b = Bench::new();
    b.register("agent");
    let registered_on = std::mem::replace(&mut b.connection, ConnectionKey::next());
    b.subscribe("s-agent").unwrap();
    assert!(!b.table.connections.contains_key(&registered_on));
    assert_eq!(
        &*b.table.connections[&b.connection].live,
        &[id("agent")],
        "the slot moved"
    );
}

#[test]
fn sub_8_the_older_session_loses_its_place_and_later_removes_nothing_but_its_own() {
    let mut b = Bench::new();
    b.register("agent");
    let old = b.subscribe("s-agent").unwrap().value;
    // The worst case: the server gives the same session id again.
    b.register("agent");
    let Subscribed { value, superseded } = b.subscribe("s-agent").unwrap();
    assert_eq!(superseded, Some(old));
    assert!(!b.end("agent", old));
    assert_eq!(b.page("", 9), (vec![value], false));
    assert!(b.end("agent", value));
    assert!(!b.end("agent", value));
    assert!(b.table.connections.is_empty());
}

#[test]
fn admit_1_a_pending_session_is_admitted_on_its_registers_connection_only() {
    let mut b = Bench::new();
    b.register("agent");
    assert_eq!(b.admit("s-agent"), Ok(()));
    assert_eq!(b.admit("s-other"), Err(Refusal::UnknownSession));
    b.connection = ConnectionKey::next();
    assert_eq!(b.admit("s-agent"), Err(Refusal::ConnectionMismatch));
}

#[test]
fn admit_4_past_120_s_it_is_unknown_before_any_sweep() {
    let mut b = Bench::new();
    b.register("agent");
    b.wait(119);
    assert_eq!(b.admit("s-agent"), Ok(()));
    b.wait(1);
    assert_eq!(b.admit("s-agent"), Err(Refusal::UnknownSession));
    b.connection = ConnectionKey::next();
    assert_eq!(b.admit("s-agent"), Err(Refusal::UnknownSession));
}

#[test]
fn a_session_id_handed_out_twice_belongs_to_the_later_registration() {
    let mut b = Bench::new();
    for agent in ["first", "second"] {
        let stamp = b.reserve(agent).unwrap();
        b.commit(stamp, "s", agent).unwrap();
    }
    assert_eq!(b.table.pending.len(), 1);
    let taken = b
        .table
        .subscribe("s", b.connection, b.now, 0, |registration, epoch| {
            assert_eq!(&*registration.agent_id, "second");
            epoch.number()
        });
    assert!(taken.is_ok());
}

#[test]
fn mgmt_1_pages_ascend_by_bytes_and_the_cursor_is_exclusive() {
    let mut b = Bench::new();
    let mut epoch_of = HashMap::new();
    for agent in ["b", "a", "C", "ä", "ab"] {
        b.register(agent);
        let epoch = b.subscribe(&format!("s-{agent}")).unwrap().value;
        epoch_of.insert(agent, epoch);
    }
    let row = |agent| epoch_of[agent];
    assert_eq!(
        b.page("", 9).0,
        vec![row("C"), row("a"), row("ab"), row("b"), row("ä")]
    );
    assert_eq!(b.page("", 2), (vec![row("C"), row("a")], true));
    assert_eq!(b.page("a", 2), (vec![row("ab"), row("b")], true));
    assert_eq!(b.page("b", 2), (vec![row("ä")], false));
    assert_eq!(b.page("aa", 1), (vec![row("ab")], true));
    assert_eq!(b.page("ä", 1), (vec![], false));
    assert_eq!(b.page("", 5).0.len(), 5);
    assert!(!b.page("", 5).1, "nothing follows a page that is just full");
}

#[test]
fn mgmt_1_an_agent_that_stays_is_listed_once_while_others_come_and_go() {
    let mut b = Bench::new();
    let stays: Vec<u64> = (0..100)
        .map(|n| b.connect(&format!("{n:03}-stays")))
        .collect();
    let goes: Vec<u64> = (0..100)
        .map(|n| b.connect(&format!("{n:03}-goes")))
        .collect();
    let (mut listed, mut cursor) = (Vec::<u64>::new(), String::new());
    for (step, goes) in goes.into_iter().enumerate() {
        let (page, more) = b.page(&cursor, 7);
        listed.extend(&page);
        let Some(last) = page.last().filter(|_| more) else {
            break;
        };
        let row = b.table.live.iter().find(|(_, row)| row.value == *last);
        cursor = row.unwrap().0.to_string();
        // One goes and one comes, before and behind the cursor, its own row included.
        b.end(&format!("{step:03}-goes"), goes);
        b.connect(&format!("{:03}-comes", step * 37 % 100));
    }
    for epoch in stays {
        assert_eq!(listed.iter().filter(|listed| **listed == epoch).count(), 1);
    }
}

#[test]
fn memory_of_a_burst_is_given_back() {
    let mut b = Bench::new();
    for n in 0..10_000 {
        b.connection = ConnectionKey::next();
        b.register(&format!("agent-{n}"));
        b.close();
    }
    b.wait(15);
    b.sweep();
    assert!(b.table.pending.is_empty() && b.table.connections.is_empty());
    for capacity in [
        b.table.pending.capacity(),
        b.table.connections.capacity(),
        b.table.graces.capacity(),
    ] {
        assert!(capacity < 64, "{capacity}");
    }
}

#[test]
fn reload_4_other_limits_take_no_row_back() {
    let mut b = Bench::new();
    let stamps: Vec<_> = (0..3)
        .map(|n| b.reserve(&format!("a-{n}")).unwrap())
        .collect();
    b.table.limit(TableLimits {
        max_per_connection: 2,
        grace: Duration::from_secs(30),
    });
    assert_eq!(b.reserve("b"), Err(CapReached));
    for (n, stamp) in stamps.into_iter().enumerate() {
        b.commit(stamp, &format!("s-{n}"), &format!("a-{n}"))
            .unwrap();
    }
    b.close();
    b.wait(29);
    b.sweep();
    assert_eq!(b.table.pending.len(), 3);
    b.table.limit(TableLimits {
        max_per_connection: 2,
        grace: Duration::from_secs(1),
    });
    b.sweep();
    assert_eq!(b.table.pending.len(), 0, "the grace is that in force");
}
