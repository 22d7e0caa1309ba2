//! Callers at the management listener of a node: single commands, a few targets, broadcasts.
//!
//! Responsible for writing down all that a caller is told, and when. Must never send a command
//! twice: what arrives twice was sent again by a gateway.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_proto::agent::v1::command_response::Status;
use yuzu_tests::operator::{self, Operator};
use yuzu_tests::random::Random;
use yuzu_tests::raw::Options;

use crate::ledger::{Call, End, Entry, Ledger, Order, now};
use crate::node::MANAGEMENT;
use crate::pipe::dialer;

/// A caller is told the end of a call this long after its timeout at the latest: the second that the
/// entry node waits for owners, and what the network may take.
pub const GRACE: Duration = Duration::from_millis(1_500);
/// Before a connection is made again.
const REDIAL: Duration = Duration::from_millis(300);
/// Calls at once.
const CALLS: usize = 4;

/// How one caller behaves.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Its number.
    pub number: usize,
    /// The host of its node.
    pub entry: String,
    /// Whom it may name.
    pub agents: Rc<Vec<String>>,
    /// When it stops to call.
    pub until: Duration,
}

/// Calls until its time is over; when its host was restarted, under new ids (`life`).
pub async fn run(caller: Caller, life: u32, ledger: Ledger, mut random: Random) {
    let connection = Rc::new(RefCell::new(None));
    let mut running = JoinSet::new();
    let mut number = 0;
    while now() < caller.until {
        sleep(random.between(Duration::from_millis(50), Duration::from_millis(700))).await;
        while running.try_join_next().is_some() {}
        if running.len() >= CALLS {
            running.join_next().await;
        }
        if connection.borrow().is_none() {
            match connect(&caller.entry).await {
                Some(operator) => *connection.borrow_mut() = Some(Rc::new(operator)),
                None => {
                    sleep(REDIAL).await;
                    continue;
                }
            }
        }
        number += 1;
        let call = Call {
            command: format!("c{}.{life}.{number}", caller.number),
            caller: caller.number,
            at: now(),
            timeout: Duration::from_secs(1 + random.below(8) as u64),
            targets: targets(&caller.agents, &mut random),
            order: order(&mut random),
            entries: Vec::new(),
            end: None,
        };
        let operator = connection.borrow().clone().expect("it was just made");
        let (ledger, connection) = (ledger.clone(), Rc::clone(&connection));
        running.spawn_local(async move {
            if one(&operator, call, &ledger).await != End::Status(0) {
                // Another may have made a new one meanwhile.
                let mut connection = connection.borrow_mut();
                if connection
                    .as_ref()
                    .is_some_and(|now| Rc::ptr_eq(now, &operator))
                {
                    operator.connection.cut();
                    *connection = None;
                }
            }
        });
    }
    while running.join_next().await.is_some() {}
}

/// A connection to the management listener of a node.
pub async fn connect(host: &str) -> Option<Operator> {
    let options = Options {
        keepalive: None,
        dialer: Some(dialer(host, MANAGEMENT)),
        ..Options::default()
    };
    let nowhere = ([0, 0, 0, 0], MANAGEMENT).into();
    Operator::connect_with(nowhere, &options).await.ok()
}

fn targets(agents: &[String], random: &mut Random) -> Option<Vec<String>> {
    let count = match random.below(10) {
        0 => return None,
        1..=2 => 2 + random.below(6),
        _ => 1,
    };
    let mut chosen: Vec<String> = Vec::new();
    for _ in 0..count {
        let agent = &agents[random.below(agents.len())];
        if !chosen.contains(agent) {
            chosen.push(agent.clone());
        }
    }
    Some(chosen)
}

fn order(random: &mut Random) -> Order {
    Order {
        frames: match random.below(3) {
            0 => random.below(6) as u32,
            _ => 0,
        },
        pause: match random.below(3) {
            0 => random.between(Duration::ZERO, Duration::from_millis(1_500)),
            _ => random.between(Duration::ZERO, Duration::from_millis(50)),
        },
        ends: random.below(8) > 0,
    }
}

/// One call, from its beginning to its end.
pub async fn one(operator: &Operator, call: Call, ledger: &Ledger) -> End {
    let given_up = Instant::now() + call.timeout + GRACE;
    let command = CommandRequest {
        command_id: call.command.clone(),
        plugin: "sim".into(),
        action: call.order.text(),
        ..CommandRequest::default()
    };
    let seconds = call.timeout.as_secs() as i32;
    let targets = call.targets.clone().unwrap_or_default();
    let place = ledger.called(call);
    let told = async {
        let ids: Vec<_> = targets.iter().map(String::as_str).collect();
        let Ok(mut fanout) = operator.send(&ids, command, seconds).await else {
            return End::Broken;
        };
        loop {
            match fanout.next().await {
                Ok(Ok(told)) => ledger.told(place, entry(told)),
                Ok(Err(status)) => return End::Status(status.code),
                Err(_) => return End::Broken,
            }
        }
    };
    let end = timeout_at(given_up, told).await.unwrap_or(End::GaveUp);
    ledger.ended(place, end.clone());
    end
}

fn entry(told: operator::Entry) -> Entry {
    let status = told.response.status();
    Entry {
        at: now(),
        agent: told.agent_id,
        command: told.response.command_id,
        last: status != Status::Running,
        success: status == Status::Success,
        by_gateway: status == Status::Failure && told.response.exit_code == -1,
        output: told.response.output,
    }
}
