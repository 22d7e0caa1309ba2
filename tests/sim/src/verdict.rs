//! Whether what happened may happen.
//!
//! Pure: judges a book that is complete. Must never excuse what a fault did not touch.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::caller::GRACE;
use crate::judge::JUDGE;
use crate::ledger::{Book, Call, Delivery, End, Entry, Given};
use crate::plan::{Place, Plan, What};
use crate::world::{agent_id, site_of};

/// A stream is routed to this long after its headers.
const ROUTABLE: Duration = Duration::from_secs(2);
/// What is given this long before a call's timeout and end is told.
const ON_ITS_WAY: Duration = Duration::from_millis(200);

/// A node that is silent for this long is dead: `cluster.dead_after_ms`, and the network.
const DEAD_AFTER: Duration = Duration::from_millis(5_100);
/// An entry that needs no word of another node.
const AT_ONCE: Duration = Duration::from_millis(300);

type Key<'a> = (&'a str, &'a str);

struct Facts<'a> {
    plan: &'a Plan,
    book: &'a Book,
    delivered: BTreeMap<Key<'a>, Vec<&'a Delivery>>,
    given: BTreeMap<Key<'a>, Vec<&'a Given>>,
}

/// All that is wrong; nothing if all is right.
pub fn judge(plan: &Plan, book: &Book) -> Vec<String> {
    let mut facts = Facts {
        plan,
        book,
        delivered: BTreeMap::new(),
        given: BTreeMap::new(),
    };
    for delivery in &book.deliveries {
        let key = (&*delivery.agent, &*delivery.command);
        facts.delivered.entry(key).or_default().push(delivery);
    }
    for given in &book.given {
        let key = (&*given.agent, &*given.command);
        facts.given.entry(key).or_default().push(given);
    }
    let mut wrong = book.wrong.clone();
    for ((agent, command), deliveries) in &facts.delivered {
        if deliveries.len() > 1 {
            let times: Vec<_> = deliveries.iter().map(|one| (one.at, one.node)).collect();
            wrong.push(format!("{agent} got {command} more than once: {times:?}"));
        }
    }
    for call in &book.calls {
        let say = |what| wrong.push(format!("{}: {what}", call.command));
        facts.call(call, say);
    }
    wrong
}

impl Facts<'_> {
    fn call(&self, call: &Call, mut wrong: impl FnMut(String)) {
        let Some((ended, end)) = &call.end else {
            // A call of a caller that died.
            let over = call.at + call.timeout + GRACE;
            if !self.touched(&[caller(call)], call.at, over) {
                wrong("it never ended".into());
            }
            return;
        };
        let took = ended.saturating_sub(call.at);
        let way = [caller(call), Place::Node(0)];
        let touched = self.touched(&way, call.at, *ended);
        match end {
            End::Status(0) => {}
            _ if touched => {}
            end => wrong(format!("{end:?} after {took:?}")),
        }
        let mut agents: Vec<&str> = call.entries.iter().map(|entry| &*entry.agent).collect();
        if let Some(targets) = &call.targets {
            if let Some(entry) = call.entries.iter().find(|e| !targets.contains(&e.agent)) {
                wrong(format!("{} was not asked", entry.agent));
            }
            agents.extend(targets.iter().map(String::as_str));
        } else {
            agents.extend(self.deliveries_of(&call.command));
        }
        agents.sort_unstable();
        agents.dedup();
        for agent in agents {
            self.target(call, agent, |what| wrong(format!("{agent}: {what}")));
            if *end == End::Status(0) && !touched && self.is_forgotten(call, agent) {
                let soon = |e: &&Entry| e.agent == agent && e.at < call.at + AT_ONCE;
                match call.entries.iter().find(soon) {
                    Some(entry) if entry.output == "not_connected" => {}
                    found => wrong(format!("{agent}, whose node is dead: {found:?}")),
                }
            }
            let is_clean = self.is_clean(call, agent, *ended);
            if is_clean && (call.targets.is_some() || call.caller != JUDGE) {
                self.exact(call, agent, *ended, |what| {
                    wrong(format!("{agent}: {what}"))
                });
            }
        }
        let done = |agent: &String| call.entries.iter().any(|e| e.last && e.agent == *agent);
        let all_done = call.targets.iter().flatten().all(done);
        if *end == End::Status(0) && !all_done && took < call.timeout {
            wrong(format!("it ended after {took:?} without all answers"));
        }
    }

    fn deliveries_of<'a>(&'a self, command: &'a str) -> impl Iterator<Item = &'a str> {
        let of = move |key: &&Key<'a>| key.1 == command;
        self.delivered.keys().filter(of).map(|key| key.0)
    }

    /// What holds for a target, whatever goes wrong.
    fn target(&self, call: &Call, agent: &str, mut wrong: impl FnMut(String)) {
        let key = (agent, &*call.command);
        let given = self.given.get(&key).map_or(&[][..], Vec::as_slice);
        let mut told = 0;
        let mut is_over = false;
        for entry in call.entries.iter().filter(|entry| entry.agent == agent) {
            if is_over {
                wrong(format!("{:?} after the last entry", entry.output));
            }
            if entry.command != call.command {
                wrong(format!("an entry of {}", entry.command));
            }
            is_over |= entry.last;
            if entry.by_gateway {
                self.by_gateway(call, agent, &entry.output, told, &mut wrong);
                continue;
            }
            match given.get(told) {
                Some(given) if given.output == entry.output && given.at <= entry.at => {}
                given => wrong(format!("{:?} in place of {given:?}", entry.output)),
            }
            told += 1;
        }
    }

    fn by_gateway(
        &self,
        call: &Call,
        agent: &str,
        output: &str,
        told: usize,
        mut wrong: impl FnMut(String),
    ) {
        let was_delivered = self.delivered.contains_key(&(agent, &*call.command));
        match output {
            // Safe to try again.
            "not_connected" if was_delivered => wrong("not_connected, and it was delivered".into()),
            "not_connected" | "outcome_unknown" if told > 0 => {
                wrong(format!("{output} after {told} answers"));
            }
            "not_connected" | "outcome_unknown" | "agent_disconnected" => {}
            output => wrong(format!("the entry {output:?}")),
        }
    }

    /// Whether the agent was at a node that is dead, and has been for so long that nobody may look
    /// for it there any more (MESH-5), while it is nowhere else.
    fn is_forgotten(&self, call: &Call, agent: &str) -> bool {
        let streams = || self.book.attached.iter().filter(|one| one.agent == agent);
        let Some(before) = streams().filter(|one| one.from < call.at).last() else {
            return false;
        };
        let end = call.at + call.timeout;
        let is_alone = !streams().any(|one| (call.at..end).contains(&one.from));
        let dead = Place::Node(before.node);
        let mut faults = self.plan.faults.iter();
        let is_dead = faults.any(|fault| {
            let dies = [What::Crash(dead), What::PowerLoss(dead)].contains(&fault.what);
            dies && before.from < fault.from
                && fault.from + DEAD_AFTER < call.at
                && call.at + AT_ONCE < fault.until
        });
        is_alone && is_dead && before.node != 0
    }

    /// Whether nothing has touched the way of a call to an agent.
    fn is_clean(&self, call: &Call, agent: &str, ended: Duration) -> bool {
        let of_agent = |attached: &&crate::ledger::Attached| attached.agent == agent;
        let from = call.at.saturating_sub(ROUTABLE);
        let until = |attached: &crate::ledger::Attached| attached.until.unwrap_or(Duration::MAX);
        let mut around = self.book.attached.iter().filter(of_agent);
        let mut around = around
            .by_ref()
            .filter(|one| one.from < ended && until(one) > from);
        let (Some(only), None) = (around.next(), around.next()) else {
            return false;
        };
        let is_there = only.from <= from && until(only) >= ended;
        let number = (0..self.plan.agents).find(|number| agent_id(*number) == agent);
        let site = Place::Site(site_of(number.expect("an agent")));
        let way = [caller(call), Place::Node(0), Place::Node(only.node), site];
        is_there && !self.touched(&way, call.at, ended)
    }

    /// Everything that the agent has said, once, and nothing else.
    fn exact(&self, call: &Call, agent: &str, ended: Duration, mut wrong: impl FnMut(String)) {
        let key = (agent, &*call.command);
        if !self.delivered.contains_key(&key) {
            return wrong("it was not delivered".into());
        }
        let given = self.given.get(&key).map_or(&[][..], Vec::as_slice);
        let end = ended.min(call.at + call.timeout);
        let due = given.iter().filter(|given| given.at + ON_ITS_WAY < end);
        let told = call.entries.iter().filter(|entry| entry.agent == agent);
        let (due, told) = (due.count(), told.clone().count());
        if told < due {
            wrong(format!("{told} entries of {due} answers"));
        }
        let made = call
            .entries
            .iter()
            .find(|e| e.agent == agent && e.by_gateway);
        if let Some(entry) = made {
            wrong(format!("{:?}, though nothing went wrong", entry.output));
        }
    }

    fn touched(&self, way: &[Place], from: Duration, until: Duration) -> bool {
        let mut faults = self.plan.faults.iter();
        faults.any(|fault| fault.touches(way, from, until))
    }
}

fn caller(call: &Call) -> Place {
    Place::Caller(call.caller)
}
