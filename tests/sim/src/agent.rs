//! Agents: they connect, beat, answer, and come back when they have lost their stream.
//!
//! Responsible for writing down each command that arrives, as often as it does. Must never carry
//! out what a test would have to know of: what they do with a command stands in the command.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use prost::Message;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use yuzu_proto::agent::v1::command_response::Status;
use yuzu_proto::agent::v1::{
    AgentInfo, CommandRequest, CommandResponse, RegisterRequest, RegisterResponse,
};
use yuzu_tests::agent::Agent;
use yuzu_tests::random::Random;
use yuzu_tests::raw::{Options, Receiver, Sender};

use crate::ledger::{Ledger, Order, now};
use crate::node::AGENTS;
use crate::pipe::dialer;

/// Between two heartbeats.
const BEAT: Duration = Duration::from_secs(2);
/// An agent that has no answer for this long leaves.
pub const PATIENCE: Duration = Duration::from_secs(3);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(1_000));

/// One agent.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its id.
    pub id: String,
    /// The nodes it knows, by number and host, in its order.
    pub nodes: Vec<(usize, String)>,
    /// Rung to have it go to the next node.
    pub leave: Rc<Notify>,
    /// Streams it has tried to open.
    pub attempts: Rc<Cell<usize>>,
}

/// Lives until the host crashes.
pub async fn run(member: Member, ledger: Ledger, mut random: Random) {
    let mut next = 0;
    loop {
        let number = member.attempts.replace(member.attempts.get() + 1);
        let (node, host) = &member.nodes[next % member.nodes.len()];
        let why = match attach(&member, host, number).await {
            Ok((agent, label)) => {
                let place = ledger.attached(&member.id, *node, &label, &agent.session_id);
                // Also when the host crashes.
                let mut attached = Attached {
                    ledger: ledger.clone(),
                    place,
                    why: None,
                };
                let why = serve(&member, agent, place, &ledger).await;
                attached.why = Some(why.clone());
                why
            }
            Err(why) => why,
        };
        // A stream that the node has ended, or that nobody answers on: elsewhere.
        if why != "cut" {
            next += 1;
        }
        sleep(random.between(BACKOFF.0, BACKOFF.1)).await;
    }
}

struct Attached {
    ledger: Ledger,
    place: usize,
    why: Option<String>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        let why = self.why.as_deref().unwrap_or("crash");
        self.ledger.detached(self.place, why);
    }
}

async fn attach(member: &Member, host: &str, number: usize) -> Result<(Agent, String), String> {
    let options = Options {
        keepalive: None,
        dialer: Some(dialer(host, AGENTS)),
        ..Options::default()
    };
    // Not looked at: the dialer knows where to go.
    let nowhere = ([0, 0, 0, 0], AGENTS).into();
    let mut agent = Agent::connect_with(nowhere, &member.id, &options)
        .await
        .map_err(|error| error.to_string())?;
    let label = format!("{}#{number}", member.id);
    let request = RegisterRequest {
        info: Some(AgentInfo {
            agent_id: member.id.clone(),
            hostname: label.clone(),
            ..AgentInfo::default()
        }),
        ..RegisterRequest::default()
    };
    let registered = timeout(PATIENCE, agent.register_raw(&request.encode_to_vec())).await;
    let answer = registered
        .map_err(|_| "no answer to Register")?
        .map_err(|error| error.to_string())?;
    let answer: RegisterResponse = answer.decode()?;
    if !answer.accepted {
        return Err(answer.reject_reason);
    }
    agent.session_id = answer.session_id;
    let subscribed = timeout(PATIENCE, agent.subscribe()).await;
    subscribed.map_err(|_| "no answer to Subscribe")??;
    Ok((agent, label))
}

/// Serves a stream until it ends; why it did.
async fn serve(member: &Member, mut agent: Agent, place: usize, ledger: &Ledger) -> String {
    let (sender, receiver) = agent.take_stream().expect("it has subscribed");
    let why = tokio::select! {
        why = answer(&member.id, Rc::new(sender), receiver, place, ledger) => why,
        why = beat(&agent) => why,
        () = member.leave.notified() => "it leaves".into(),
    };
    agent.connection.cut();
    why
}

async fn beat(agent: &Agent) -> String {
    loop {
        sleep(BEAT).await;
        match timeout(PATIENCE, agent.heartbeat()).await {
            Err(_) => return "no answer to Heartbeat".into(),
            Ok(Err(error)) => return error.to_string(),
            Ok(Ok(answer)) if !answer.status.is_ok() => return answer.status.to_string(),
            Ok(Ok(_)) => {}
        }
    }
}

async fn answer(
    id: &str,
    sender: Rc<Sender>,
    mut receiver: Receiver,
    place: usize,
    ledger: &Ledger,
) -> String {
    let mut running = JoinSet::new();
    loop {
        match receiver.message().await {
            Ok(Some(message)) => {
                let Ok(command) = CommandRequest::decode(message) else {
                    let what = format!("{id} got what is no command");
                    ledger.wrong(now(), what);
                    continue;
                };
                ledger.delivered(place, &command.command_id);
                let (id, sender, ledger) = (id.to_owned(), Rc::clone(&sender), ledger.clone());
                running.spawn_local(carry_out(id, command, sender, ledger));
            }
            Ok(None) => return format!("ended: {:?}", receiver.status()),
            Err(error) => return error.to_string(),
        }
        while running.try_join_next().is_some() {}
    }
}

async fn carry_out(id: String, command: CommandRequest, sender: Rc<Sender>, ledger: Ledger) {
    let Some(order) = Order::parse(&command.action) else {
        return ledger.wrong(now(), format!("{id} got the action {:?}", command.action));
    };
    let last = u32::from(order.ends);
    for frame in 0..order.frames + last {
        sleep(order.pause).await;
        let is_last = frame == order.frames;
        let output = format!("{}/{id}/{frame}", command.command_id);
        let answer = CommandResponse {
            command_id: command.command_id.clone(),
            status: match is_last {
                true => Status::Success,
                false => Status::Running,
            }
            .into(),
            output: output.clone(),
            ..CommandResponse::default()
        };
        if sender.send(&answer.encode_to_vec()).await.is_err() {
            return;
        }
        ledger.given(&id, &command.command_id, &output, is_last);
    }
}

impl Order {
    /// As it stands in a command.
    pub fn text(self) -> String {
        format!("{} {} {}", self.frames, self.pause.as_millis(), self.ends)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        Some(Self {
            frames: words.next()?.parse().ok()?,
            pause: Duration::from_millis(words.next()?.parse().ok()?),
            ends: words.next()?.parse().ok()?,
        })
    }
}
