//! Scripted faults: rules that calls are held against.
//!
//! Responsible for deciding, call by call, what goes wrong. Pure and deterministic: a rule counts
//! the calls it matches and nothing else. Must never hold more rules than [`MAX_RULES`].

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use tonic::Code;
use yuzu_proto::gateway::v1::stream_status_notification::Event;

use crate::rpc::{PerRpc, Rpc};

/// Rules at once, over all RPCs.
const MAX_RULES: usize = 1024;

/// What a rule does to a call.
#[derive(Clone, PartialEq, Eq)]
pub enum Action {
    /// Waits this long, then goes on with the next rule or the ordinary answer.
    Delay(Duration),
    /// Answers with a status.
    Status(Code, String),
    /// Answers nothing until released, then as usual.
    Hang,
    /// Closes the connection, with every call on it.
    DropConnection,
    /// Resets the stream with this HTTP/2 error code.
    ResetStream(u32),
    /// Answers something that is no answer.
    Garbage(Garbage),
    /// Answers OK with a refusal in the message: `accepted=false`, `received=false`,
    /// `acknowledged=false`; for a batch of heartbeats every session is listed as unknown.
    Refuse,
    /// Answers OK with these bytes as the message, unknown fields and all.
    Answer(Bytes),
}

/// Kinds of answers that are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Garbage {
    /// Well framed bytes that no protobuf decoder accepts.
    Message,
    /// A gRPC frame that says it is longer than what follows.
    Frame,
    /// A compressed message, which the contract forbids.
    Compressed,
    /// HTTP 502 with an HTML page.
    Http,
    /// HTTP 200 with a message and no `grpc-status`.
    NoStatus,
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Delay(time) => write!(f, "Delay({time:?})"),
            Action::Status(code, _) => write!(f, "Status({code:?})"),
            Action::Hang => f.write_str("Hang"),
            Action::DropConnection => f.write_str("DropConnection"),
            Action::ResetStream(code) => write!(f, "ResetStream({code})"),
            Action::Garbage(kind) => write!(f, "Garbage({kind:?})"),
            Action::Refuse => f.write_str("Refuse"),
            Action::Answer(bytes) => write!(f, "Answer({} bytes)", bytes.len()),
        }
    }
}

/// Which calls of an RPC a rule matches; what is unset matches all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Agent id in the request (a heartbeat or an inventory report has none).
    pub agent_id: Option<String>,
    /// Event of a notice.
    pub event: Option<Event>,
    /// The call carries `x-yuzu-session-id`.
    pub replay: Option<bool>,
}

/// A rule. Rules of one RPC are asked in the order in which they were added: delays add up, the
/// first other action that fires decides, and later rules do not see the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The RPC.
    pub rpc: Rpc,
    /// What happens.
    pub action: Action,
    /// Matching calls let through before the rule begins to count.
    pub after: u64,
    /// Fires on every k-th matching call from then on; 1 is every call.
    pub every: u64,
    /// Fires this often, then the rule is gone; none: until it is removed.
    pub times: Option<u64>,
    /// Which calls.
    pub filter: Filter,
    /// The server does its work before the fault, so that only the answer is lost or late.
    /// Otherwise a call that ends in a fault changes nothing, and a late one works late.
    pub with_effect: bool,
}

impl Fault {
    /// A rule for every call of the RPC.
    #[must_use]
    pub fn new(rpc: Rpc, action: Action) -> Self {
        let filter = Filter::default();
        Fault {
            rpc,
            action,
            after: 0,
            every: 1,
            times: None,
            filter,
            with_effect: false,
        }
    }

    /// Fires `times` times.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    /// Lets `calls` matching calls through first.
    #[must_use]
    pub fn after(mut self, calls: u64) -> Self {
        self.after = calls;
        self
    }

    /// Fires on every `k`-th matching call.
    #[must_use]
    pub fn every(mut self, k: u64) -> Self {
        self.every = k;
        self
    }

    /// Only calls about this agent.
    #[must_use]
    pub fn agent(mut self, agent_id: &str) -> Self {
        self.filter.agent_id = Some(agent_id.into());
        self
    }

    /// Only notices of this event.
    #[must_use]
    pub fn event(mut self, event: Event) -> Self {
        self.filter.event = Some(event);
        self
    }

    /// Only registrations that present a session (true), or only the others (false).
    #[must_use]
    pub fn replay(mut self, replay: bool) -> Self {
        self.filter.replay = Some(replay);
        self
    }

    /// The server does its work first.
    #[must_use]
    pub fn with_effect(mut self) -> Self {
        self.with_effect = true;
        self
    }
}

/// Number of a rule, in the order of adding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FaultId(pub u64);

/// Why a rule was not taken.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FaultError {
    /// Too many rules.
    #[error("{MAX_RULES} rules are set already: remove some")]
    TooMany,
    /// A rule that could never fire.
    #[error("`{0}` must be at least 1")]
    Zero(&'static str),
}

/// A rule as it stands.
#[derive(Debug, Clone)]
pub struct FaultView {
    /// Its number.
    pub id: FaultId,
    /// The rule as it was given.
    pub fault: Fault,
    /// Calls that matched.
    pub matched: u64,
    /// Calls it fired on.
    pub fired: u64,
}

/// What the rules need to know of a call.
#[derive(Debug, Default)]
pub(crate) struct Facts<'a> {
    pub(crate) agent_id: Option<&'a str>,
    pub(crate) event: Option<i32>,
    pub(crate) replay: bool,
}

/// What happens to one call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) delay: Duration,
    pub(crate) effect_first: bool,
    /// None: the ordinary answer. Never a delay.
    pub(crate) end: Option<Action>,
    /// At least one rule fired.
    pub(crate) faulted: bool,
}

/// All rules.
#[derive(Default)]
pub(crate) struct FaultSet {
    rules: PerRpc<Vec<FaultView>>,
    last_id: u64,
}

impl FaultSet {
    pub(crate) fn add(&mut self, fault: Fault) -> Result<FaultId, FaultError> {
        if fault.every == 0 {
            return Err(FaultError::Zero("every"));
        }
        if fault.times == Some(0) {
            return Err(FaultError::Zero("times"));
        }
        if self.all().count() >= MAX_RULES {
            return Err(FaultError::TooMany);
        }
        self.last_id += 1;
        let id = FaultId(self.last_id);
        let rpc = fault.rpc;
        self.rules.get_mut(rpc).push(FaultView {
            id,
            fault,
            matched: 0,
            fired: 0,
        });
        Ok(id)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &FaultView> {
        Rpc::ALL.into_iter().flat_map(|rpc| self.rules.get(rpc))
    }

    /// Removes the rules that `which` picks; returns how many.
    pub(crate) fn remove(&mut self, which: impl Fn(&FaultView) -> bool) -> usize {
        let mut removed = 0;
        for rpc in Rpc::ALL {
            let rules = self.rules.get_mut(rpc);
            let before = rules.len();
            rules.retain(|rule| !which(rule));
            removed += before - rules.len();
        }
        removed
    }

    pub(crate) fn plan(&mut self, rpc: Rpc, facts: &Facts<'_>) -> Plan {
        let mut plan = Plan::default();
        let rules = self.rules.get_mut(rpc);
        for rule in rules.iter_mut() {
            if !rule.fault.filter.matches(facts) || !rule.fires() {
                continue;
            }
            plan.faulted = true;
            plan.effect_first |= rule.fault.with_effect;
            match &rule.fault.action {
                Action::Delay(time) => plan.delay = plan.delay.saturating_add(*time),
                action => {
                    plan.end = Some(action.clone());
                    break;
                }
            }
        }
        rules.retain(|rule| rule.fault.times.is_none_or(|times| rule.fired < times));
        plan
    }
}

impl FaultView {
    fn fires(&mut self) -> bool {
        self.matched += 1;
        let counted = self.matched.saturating_sub(self.fault.after);
        let fires = counted > 0 && counted.is_multiple_of(self.fault.every);
        self.fired += u64::from(fires);
        fires
    }
}

impl Filter {
    fn matches(&self, facts: &Facts<'_>) -> bool {
        let agent = self
            .agent_id
            .as_deref()
            .is_none_or(|id| facts.agent_id == Some(id));
        let event = self
            .event
            .is_none_or(|event| facts.event == Some(event as i32));
        let replay = self.replay.is_none_or(|replay| facts.replay == replay);
        agent && event && replay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse() -> Fault {
        Fault::new(Rpc::NotifyStreamStatus, Action::Refuse)
    }

    fn fired(set: &mut FaultSet, calls: usize) -> Vec<bool> {
        let facts = Facts::default();
        (0..calls)
            .map(|_| set.plan(Rpc::NotifyStreamStatus, &facts).end.is_some())
            .collect()
    }

    #[test]
    fn after_every_and_times_count_matching_calls() {
        let mut set = FaultSet::default();
        set.add(refuse().after(1).every(2).times(2)).unwrap();
        assert_eq!(
            fired(&mut set, 7),
            [false, false, true, false, true, false, false]
        );
        assert_eq!(set.all().count(), 0, "a rule that fired its times is gone");
    }

    #[test]
    fn delays_add_up_and_the_first_other_action_decides() {
        let rpc = Rpc::ProxyRegister;
        let mut set = FaultSet::default();
        let ms = Duration::from_millis;
        set.add(Fault::new(rpc, Action::Delay(ms(5)))).unwrap();
        set.add(Fault::new(rpc, Action::Delay(ms(7))).with_effect())
            .unwrap();
        set.add(Fault::new(rpc, Action::Hang).times(1)).unwrap();
        set.add(Fault::new(rpc, Action::Refuse)).unwrap();
        let first = set.plan(rpc, &Facts::default());
        assert_eq!((first.delay, first.end), (ms(12), Some(Action::Hang)));
        assert!(first.effect_first);
        assert_eq!(set.plan(rpc, &Facts::default()).end, Some(Action::Refuse));
    }

    #[test]
    fn a_filter_keeps_other_calls_out_of_the_count() {
        let mut set = FaultSet::default();
        set.add(
            refuse()
                .agent("a")
                .event(Event::Connected)
                .replay(false)
                .times(1),
        )
        .unwrap();
        let call = |agent, event: Event, replay| Facts {
            agent_id: Some(agent),
            event: Some(event as i32),
            replay,
        };
        let rpc = Rpc::NotifyStreamStatus;
        assert!(!set.plan(rpc, &call("b", Event::Connected, false)).faulted);
        assert!(
            !set.plan(rpc, &call("a", Event::Disconnected, false))
                .faulted
        );
        assert!(!set.plan(rpc, &call("a", Event::Connected, true)).faulted);
        assert!(!set.plan(rpc, &Facts::default()).faulted);
        assert!(set.plan(rpc, &call("a", Event::Connected, false)).faulted);
    }

    #[test]
    fn rules_that_never_fire_and_rules_beyond_the_bound_are_errors() {
        let mut set = FaultSet::default();
        assert_eq!(set.add(refuse().every(0)), Err(FaultError::Zero("every")));
        assert_eq!(set.add(refuse().times(0)), Err(FaultError::Zero("times")));
        for _ in 0..MAX_RULES {
            set.add(refuse()).unwrap();
        }
        assert_eq!(set.add(refuse()), Err(FaultError::TooMany));
        assert_eq!(set.remove(|rule| rule.id.0 <= 1000), 1000);
        assert_eq!(set.all().count(), 24);
    }
}
