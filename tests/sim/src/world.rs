//! One seed, from its first to its last step.
//!
//! Responsible for the hosts, the network between them, and for bringing and taking the faults of
//! the plan. Must never look at what happens: [`crate::verdict`] does, when it is over.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use turmoil::{Builder, Sim};
use yuzu_server_stub::{Restart, StubServer};
use yuzu_tests::random::Random;

use crate::agent::{self, Member};
use crate::caller::{self, Caller};
use crate::judge::Judge;
use crate::ledger::Ledger;
use crate::node::{Node, SERVER_HOST};
use crate::plan::{CALLERS, CALLS_FROM, CALLS_UNTIL, END, Fault, NODES, Place, Plan, SITES, What};
use crate::server;

/// Also the least time that a message takes.
const TICK: Duration = Duration::from_millis(5);
/// What a message takes at most, while nothing is wrong.
const LATENCY: Duration = Duration::from_millis(25);
/// The date, so that it is the same each time: 2026-01-01.
const DATE: Duration = Duration::from_secs(1_767_225_600);
/// Connections that wait to be accepted, and messages of one that wait to be read: turmoil fails
/// where there are more of the former.
const QUEUE: usize = 4_096;

/// The hosts and what the driver has of them.
pub struct World<'a> {
    sim: Sim<'a>,
    nodes: Vec<Node>,
    members: Rc<Vec<Member>>,
    server: Rc<StubServer>,
    ledger: Ledger,
}

/// The name of a host.
pub fn name(place: Place) -> String {
    match place {
        Place::Node(0) => "public".into(),
        Place::Node(node) => format!("private-{node}"),
        Place::Site(site) => format!("site-{site}"),
        Place::Caller(caller) => format!("caller-{caller}"),
        Place::Server => SERVER_HOST.into(),
    }
}

/// Every host that may fail.
pub fn places() -> impl Iterator<Item = Place> {
    let nodes = (0..NODES).map(Place::Node);
    let sites = (0..SITES).map(Place::Site);
    let callers = (0..CALLERS).map(Place::Caller);
    nodes.chain(sites).chain(callers).chain([Place::Server])
}

/// The host of an agent.
pub fn site_of(agent: usize) -> usize {
    agent % SITES
}

/// The id of an agent.
pub fn agent_id(agent: usize) -> String {
    format!("agent-{agent:02}")
}

/// One in five agents knows a single node, and has no stream while that is dead.
fn members(count: usize) -> Vec<Member> {
    let of = |agent: usize| {
        let known = if agent % 5 == 4 { 1 } else { NODES };
        let order = (0..known).map(|step| (agent / SITES + step) % NODES);
        Member {
            id: agent_id(agent),
            nodes: order.map(|node| (node, name(Place::Node(node)))).collect(),
            leave: Rc::default(),
            attempts: Rc::default(),
        }
    };
    (0..count).map(of).collect()
}

/// What runs on a host that no fault concerns and that reaches every node.
pub type Watch = fn(Judge) -> Pin<Box<dyn Future<Output = turmoil::Result>>>;

/// Lives a seed through, with `watch` on one host more.
///
/// # Errors
/// What turmoil says, which is a fault of a host's software.
pub fn live(seed: u64, plan: &Plan, ledger: &Ledger, watch: Watch) -> Result<(), String> {
    let mut world = World::new(seed, plan, ledger, watch);
    let mut due: Vec<(Duration, bool, Fault)> = Vec::new();
    for fault in &plan.faults {
        due.push((fault.from, true, *fault));
        due.push((fault.until, false, *fault));
    }
    // Stable: what begins and ends at once begins first.
    due.sort_by_key(|(at, ..)| *at);
    let mut due = due.into_iter().peekable();
    while world.sim.elapsed() < END {
        ledger.step(world.sim.elapsed());
        while let Some((_, begins, fault)) = due.next_if(|(at, ..)| *at <= world.sim.elapsed()) {
            match begins {
                true => world.begin(fault.what),
                false => world.end(fault.what),
            }
        }
        world.sim.step().map_err(|error| error.to_string())?;
    }
    Ok(())
}

impl World<'_> {
    fn new(seed: u64, plan: &Plan, ledger: &Ledger, watch: Watch) -> Self {
        let mut sim = Builder::new()
            .rng_seed(seed)
            .epoch(SystemTime::UNIX_EPOCH + DATE)
            .simulation_duration(2 * END)
            .tick_duration(TICK)
            .min_message_latency(TICK)
            .max_message_latency(LATENCY)
            .tcp_capacity(QUEUE)
            .udp_capacity(QUEUE)
            .enable_random_order()
            .build();
        let names: Vec<_> = (0..NODES).map(|node| name(Place::Node(node))).collect();
        // Addresses in this order, whatever is looked up first.
        for place in places() {
            sim.lookup(name(place));
        }
        let nodes: Vec<_> = (0..NODES).map(|node| Node::new(&names, node)).collect();
        let members = Rc::new(members(plan.agents));
        let server = server::server();
        let random = Random::new(seed).apart(2);
        for node in &nodes {
            let (run, ledger) = (node.clone(), ledger.clone());
            sim.host(&*node.name, move || run.clone().run(ledger.clone()));
        }
        let stub = Rc::clone(&server);
        sim.host(SERVER_HOST, move || server::run(Rc::clone(&stub)));
        for site in 0..SITES {
            let (members, ledger, random) = (Rc::clone(&members), ledger.clone(), random.clone());
            sim.host(name(Place::Site(site)), move || {
                let (members, ledger) = (Rc::clone(&members), ledger.clone());
                let random = random.apart(100 + site as u64);
                async move { agents_of(site, &members, &ledger, random).await }
            });
        }
        let ids: Rc<Vec<_>> = Rc::new(members.iter().map(|member| member.id.clone()).collect());
        for number in 0..CALLERS {
            let caller = Caller {
                number,
                entry: names[0].clone(),
                agents: Rc::clone(&ids),
                until: CALLS_UNTIL,
            };
            let (ledger, random) = (ledger.clone(), random.clone());
            let lives = Rc::new(Cell::new(0));
            sim.host(name(Place::Caller(number)), move || {
                lives.set(lives.get() + 1);
                let (caller, life, ledger) = (caller.clone(), lives.get(), ledger.clone());
                let random = random.apart(1_000 + 10 * number as u64 + u64::from(life));
                async move {
                    let wait = CALLS_FROM.saturating_sub(crate::ledger::now());
                    tokio::time::sleep(wait).await;
                    caller::run(caller, life, ledger, random).await;
                    Ok(())
                }
            });
        }
        let judge = Judge {
            nodes: names,
            agents: ids,
            server: Rc::clone(&server),
            ledger: ledger.clone(),
            plan: plan.clone(),
        };
        sim.host("judge", move || watch(judge.clone()));
        Self {
            sim,
            nodes,
            members,
            server,
            ledger: ledger.clone(),
        }
    }

    fn begin(&mut self, what: What) {
        let at = self.sim.elapsed();
        self.ledger.say(at, format!("--- begins: {what:?}"));
        match what {
            What::Partition(a, b) => self.sim.partition(name(a), name(b)),
            What::OneWay(a, b) => self.sim.partition_oneway(name(a), name(b)),
            What::Hold(a, b) => self.sim.hold(name(a), name(b)),
            What::Slow(a, b, ms) => {
                let latency = Duration::from_millis(ms);
                self.sim.set_link_latency(name(a), name(b), latency);
            }
            What::Loss(a, b, share) => self.sim.set_link_fail_rate(name(a), name(b), share),
            What::Crash(place) => self.crash(place, true),
            What::PowerLoss(place) => self.crash(place, false),
            What::Stop(node) => self.nodes[node].stop.notify_one(),
            What::Forgetful => self.crash(Place::Server, true),
            What::Leave(agent) => self.members[agent].leave.notify_waiters(),
        }
    }

    fn end(&mut self, what: What) {
        let at = self.sim.elapsed();
        self.ledger.say(at, format!("--- ends: {what:?}"));
        match what {
            What::Partition(a, b) => self.sim.repair(name(a), name(b)),
            What::OneWay(a, b) => self.sim.repair_oneway(name(a), name(b)),
            What::Hold(a, b) => self.sim.release(name(a), name(b)),
            What::Slow(a, b, _) => self.sim.set_link_latency(name(a), name(b), LATENCY / 2),
            What::Loss(a, b, _) => {
                self.sim.set_link_fail_rate(name(a), name(b), 0.0);
                self.sim.repair(name(a), name(b));
            }
            What::Crash(place) | What::PowerLoss(place) => self.start_again(place),
            // Finished or not.
            What::Stop(node) => self.start_again(Place::Node(node)),
            What::Forgetful => {
                self.server.simulate_restart(Restart::default());
                self.start_again(Place::Server);
            }
            What::Leave(_) => {}
        }
    }

    /// Ends a host's processes; `told`: its peers see their connections end.
    fn crash(&mut self, place: Place, told: bool) {
        let others = places().filter(|other| *other != place);
        let links: Vec<_> = others.map(|other| (name(place), name(other))).collect();
        if !told {
            for (one, other) in &links {
                self.sim.partition(&**one, &**other);
            }
        }
        self.sim.crash(name(place));
        if !told {
            for (one, other) in &links {
                self.sim.repair(&**one, &**other);
            }
        }
    }

    fn start_again(&mut self, place: Place) {
        self.sim.bounce(name(place));
    }
}

async fn agents_of(
    site: usize,
    members: &[Member],
    ledger: &Ledger,
    random: Random,
) -> turmoil::Result {
    let mut running = tokio::task::JoinSet::new();
    for (agent, member) in members.iter().enumerate() {
        if site_of(agent) == site {
            let random = random.apart(agent as u64 + u64::from(member.attempts.get() as u32) * 64);
            running.spawn_local(agent::run(member.clone(), ledger.clone(), random));
        }
    }
    while running.join_next().await.is_some() {}
    Ok(())
}
