//! Callers at the public node that send one command after the other, and connect again when they
//! have lost it.

use super::answers::{Call, End, Over, call};
use super::{Trio, command};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use yuzu_tests::operator::Operator;

/// Callers that send commands to one agent after the other.
const SINGLE: usize = 8;
/// Between two of their commands.
const PAUSE: Duration = Duration::from_millis(5);
/// Between two broadcasts of the one that sends them.
const BROADCASTS: Duration = Duration::from_millis(500);
/// Over which agents answer a broadcast.
const SPREAD: Duration = Duration::from_millis(300);

/// See the module.
pub(crate) struct Load {
    callers: JoinSet<Done>,
    end: watch::Sender<bool>,
}

#[derive(Clone)]
struct Caller {
    /// What its commands are called by.
    name: String,
    address: SocketAddr,
    agents: Arc<[String]>,
    ends: watch::Receiver<bool>,
}

/// What one caller did.
pub(crate) struct Done {
    pub(crate) calls: Vec<Call>,
    /// Whether its commands were for one agent each.
    pub(crate) is_single: bool,
    pub(crate) connections: u64,
}

impl Load {
    /// Begins. No two loads of a trio have the same name.
    pub(crate) fn start(trio: &Trio, name: &str) -> Self {
        let (end, ends) = watch::channel(false);
        let caller = Caller {
            name: name.to_owned(),
            address: trio.callers(),
            agents: trio.ids().map(|(.., id)| id).collect(),
            ends,
        };
        let mut callers = JoinSet::new();
        for number in 0..SINGLE {
            callers.spawn(caller.clone().singles(number));
        }
        callers.spawn(caller.broadcasts());
        Self { callers, end }
    }

    /// Lets every call come to its end.
    pub(crate) async fn end(self) -> Vec<Done> {
        self.end.send_replace(true);
        self.callers.join_all().await
    }
}

impl Caller {
    async fn singles(self, number: usize) -> Done {
        let named = |sent: usize| {
            let agent = &*self.agents[(number + sent * SINGLE) % self.agents.len()];
            (vec![agent], Duration::ZERO, PAUSE)
        };
        self.send(&format!("{}-{number}", self.name), true, named)
            .await
    }

    async fn broadcasts(self) -> Done {
        let all = |_| (Vec::new(), SPREAD, BROADCASTS);
        self.send(&format!("{}-all", self.name), false, all).await
    }

    /// Sends commands until the end: to whom, answered over what time, and the pause after each are
    /// what `next` says.
    async fn send<'a>(
        &'a self,
        id: &str,
        is_single: bool,
        next: impl Fn(usize) -> (Vec<&'a str>, Duration, Duration),
    ) -> Done {
        let mut done = Done {
            calls: Vec::new(),
            is_single,
            connections: 0,
        };
        let mut operator = None;
        while !*self.ends.borrow() {
            let Some(connected) = &operator else {
                operator = Operator::connect(self.address).await.ok();
                done.connections += u64::from(operator.is_some());
                sleep(PAUSE).await;
                continue;
            };
            let number = done.calls.len();
            let (named, spread, pause) = next(number);
            let command = command(&format!("{id}-{number}"), spread);
            done.calls
                .push(call(connected, &named, command, |_| ()).await);
            if connected.connection.is_closed() {
                operator = None;
            }
            sleep(pause).await;
        }
        done
    }
}

/// The longest time in which no caller had the own answer of an agent.
pub(crate) fn longest_silence(done: &[Done]) -> Duration {
    let calls = done.iter().flat_map(|done| &done.calls);
    let answered = calls.filter(|call| call.over == Over::Ok && call.ended(End::Success) > 0);
    let mut times: Vec<_> = answered.map(|call| call.ended_at).collect();
    times.sort_unstable();
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or_default()
}
