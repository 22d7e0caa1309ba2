//! What callers were told of their commands, held against what the agents got and answered.
//!
//! A command that its agent took and whose caller has no entry is lost; one whose call was refused
//! and that no agent ever took is not.

use super::Trio;
use crate::report::Report;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::time::Instant;
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_proto::agent::v1::command_response::Status as Outcome;
use yuzu_tests::fleet::Fate;
use yuzu_tests::operator::{Entry, Fanout, Operator};

/// Seconds that a call may last.
const TIMEOUT: i32 = 30;

/// A terminal entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// The agent's own answer.
    Success,
    /// The gateway's `not_connected`.
    NotConnected,
    /// The gateway's `outcome_unknown`.
    Unknown,
    /// The gateway's `agent_disconnected`.
    Disconnected,
    /// Any other.
    Other,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// With OK.
    Ok,
    /// With another status: refused.
    Refused,
    /// Without a status.
    Broken,
}

/// What came of one agent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    /// RUNNING frames.
    pub(crate) running: u32,
    /// The first terminal entry.
    pub(crate) end: Option<End>,
    /// Entries after it.
    pub(crate) more: u64,
}

/// A call and all that its caller was told.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) command_id: String,
    /// Agents that it named; none: all.
    named: Vec<String>,
    pub(crate) told: HashMap<String, Told>,
    /// Entries of other commands.
    strays: u64,
    pub(crate) over: Over,
    pub(crate) took: Duration,
    pub(crate) ended_at: Instant,
}

impl Call {
    fn note(&mut self, entry: &Entry) {
        if entry.response.command_id != self.command_id {
            self.strays += 1;
            return;
        }
        let told = self.told.entry(entry.agent_id.clone()).or_default();
        if told.end.is_some() {
            told.more += 1;
        } else if entry.response.status == Outcome::Running as i32 {
            told.running += 1;
        } else {
            told.end = Some(end(entry));
        }
    }

    /// Agents that ended so.
    pub(crate) fn ended(&self, end: End) -> usize {
        let told = self.told.values();
        told.filter(|told| told.end == Some(end)).count()
    }

    /// Whether it ended well, with the own answer of each of so many agents and nothing else.
    pub(crate) fn is_whole(&self, agents: usize) -> bool {
        self.over == Over::Ok
            && self.ended(End::Success) == agents
            && self.told.len() == agents
            && self.strays + self.told.values().map(|told| told.more).sum::<u64>() == 0
    }
}

fn end(entry: &Entry) -> End {
    if entry.response.status == Outcome::Success as i32 {
        return End::Success;
    }
    match &*entry.response.output {
        "not_connected" => End::NotConnected,
        "outcome_unknown" => End::Unknown,
        "agent_disconnected" => End::Disconnected,
        _ => End::Other,
    }
}

/// Sends a command to these agents (none: to all) and takes entries to the end, however it ends.
/// `each` sees the call after every entry.
pub(crate) async fn call(
    operator: &Operator,
    agents: &[&str],
    command: CommandRequest,
    mut each: impl FnMut(&Call),
) -> Call {
    let started = Instant::now();
    let mut call = Call {
        command_id: command.command_id.clone(),
        named: agents.iter().map(|&agent| agent.to_owned()).collect(),
        told: HashMap::new(),
        strays: 0,
        over: Over::Broken,
        took: Duration::ZERO,
        ended_at: started,
    };
    if let Ok(mut fanout) = operator.send(agents, command, TIMEOUT).await {
        call.over = take(&mut fanout, &mut call, &mut each).await;
    }
    call.ended_at = Instant::now();
    call.took = call.ended_at - started;
    call
}

async fn take(fanout: &mut Fanout, call: &mut Call, each: &mut impl FnMut(&Call)) -> Over {
    loop {
        match fanout.next().await {
            Ok(Ok(entry)) => call.note(&entry),
            Ok(Err(status)) if status.is_ok() => return Over::Ok,
            Ok(Err(_)) => return Over::Refused,
            Err(_) => return Over::Broken,
        }
        each(call);
    }
}

/// Many calls together.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Terminal entries by their kind.
    pub(crate) ends: BTreeMap<End, u64>,
    /// Commands without an entry that an agent took, or whose call ended well and named the agent.
    pub(crate) lost: u64,
    /// The same, where the caller lost its connection.
    pub(crate) cut: u64,
    /// Entries after an agent's terminal one, and of other commands.
    pub(crate) doubled: u64,
    /// SUCCESS that the agent never sent.
    pub(crate) invented: u64,
    /// Entries that say of a command that an answer came that it is not known whether it was carried
    /// out.
    pub(crate) unfit: u64,
    /// Calls that ended otherwise than with OK.
    pub(crate) refused: u64,
    pub(crate) broken: u64,
}

impl Account {
    /// Of these calls, once nothing more can come of them.
    pub(crate) fn of<'a>(trio: &Trio, calls: impl IntoIterator<Item = &'a Call>) -> Self {
        let mut account = Self::default();
        for call in calls {
            account.settle(trio, call);
        }
        account
    }

    pub(crate) fn count(&self, end: End) -> u64 {
        self.ends.get(&end).copied().unwrap_or(0)
    }

    /// Tells of them as `what`: all that must never be, and how the others ended.
    pub(crate) fn tell(&self, what: &str, report: &mut Report) {
        let told = [
            ("own answers", End::Success),
            ("not_connected", End::NotConnected),
            ("agent_disconnected", End::Disconnected),
            ("outcome_unknown", End::Unknown),
        ];
        for (name, end) in told {
            report.count(&format!("{what}: {name}"), self.count(end));
        }
        report.count(&format!("{what}: calls refused"), self.refused);
        report.count(&format!("{what}: calls without a status"), self.broken);
        let bad = [
            ("without an entry", self.lost),
            ("entries twice", self.doubled),
            ("SUCCESS that no agent sent", self.invented),
            ("outcome_unknown after an answer", self.unfit),
            ("entries of another kind", self.count(End::Other)),
        ];
        for (name, count) in bad {
            report.exactly(&format!("{what}: {name}"), count, 0);
        }
    }

    fn settle(&mut self, trio: &Trio, call: &Call) {
        self.doubled += call.strays;
        self.refused += u64::from(call.over == Over::Refused);
        self.broken += u64::from(call.over == Over::Broken);
        if call.named.is_empty() {
            for (group, index, id) in trio.ids() {
                let fate = group.fleet.diary().fate(index, &call.command_id);
                self.add(call.told.get(&id), fate, call.over, false);
            }
        }
        for id in &call.named {
            let fate = trio.fate(id, &call.command_id);
            self.add(call.told.get(id), fate, call.over, true);
        }
    }

    fn add(&mut self, told: Option<&Told>, fate: Fate, over: Over, is_named: bool) {
        let told = told.cloned().unwrap_or_default();
        self.doubled += told.more;
        match told.end {
            None if over == Over::Broken => self.cut += u64::from(fate.taken > 0),
            None => {
                let is_due = is_named && over == Over::Ok;
                self.lost += u64::from(is_due || fate.taken > 0);
            }
            Some(end) => {
                *self.ends.entry(end).or_default() += 1;
                self.invented += u64::from(end == End::Success && fate.answered == 0);
                self.unfit += u64::from(end == End::Unknown && told.running > 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(running: u32, end: Option<End>, more: u64) -> Told {
        Told { running, end, more }
    }

    #[test]
    fn each_command_of_an_agent_counts_as_what_it_is() {
        let fate = |taken, answered| Fate { taken, answered };
        let mut account = Account::default();
        let mut add = |told: Option<Told>, fate, over, is_named| {
            account.add(told.as_ref(), fate, over, is_named);
        };
        add(
            Some(told(0, Some(End::Success), 0)),
            fate(1, 1),
            Over::Ok,
            true,
        );
        add(
            Some(told(0, Some(End::Success), 0)),
            fate(1, 0),
            Over::Ok,
            true,
        );
        add(
            Some(told(0, Some(End::Success), 2)),
            fate(1, 1),
            Over::Ok,
            true,
        );
        add(
            Some(told(1, Some(End::Unknown), 0)),
            fate(1, 0),
            Over::Ok,
            true,
        );
        // Neither told nor taken: the call was refused, or did not name it.
        add(None, fate(0, 0), Over::Refused, true);
        add(None, fate(0, 0), Over::Ok, false);
        add(None, fate(0, 0), Over::Ok, true);
        add(Some(told(1, None, 0)), fate(1, 1), Over::Refused, false);
        add(None, fate(1, 1), Over::Broken, true);
        add(None, fate(0, 0), Over::Broken, true);
        let ends = (account.count(End::Success), account.count(End::Unknown));
        assert_eq!(ends, (3, 1));
        assert_eq!((account.lost, account.cut), (2, 1));
        assert_eq!(
            (account.invented, account.doubled, account.unfit),
            (1, 2, 1)
        );
    }
}
