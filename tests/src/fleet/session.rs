//! One open Subscribe stream: commands in, answers out, heartbeats beside it.
//!
//! Responsible for answering in the order of arrival and for never letting a slow send stop the
//! heartbeats. Bounded: at most [`COMMANDS_HELD`] commands wait for their answers, then the
//! stream is not read.

use super::agent::{outcome_of, stopped};
use super::backoff::Backoff;
use super::counters::{Held, Outcome, Rpc};
use super::options::{Misbehaviour, Periodic};
use super::order::{Arrival, Order};
use super::{Shared, message};
use crate::raw::{Answer, CallError, Connection, Receiver, Request, Sender, code};
use bytes::Bytes;
use prost::Message;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use yuzu_proto::agent::v1::{CommandRequest, InventoryAck};
use yuzu_proto::path;

/// Commands that may wait for their answers at one agent.
const COMMANDS_HELD: usize = 4_096;

/// How long a stopping agent waits for the gateway to end its stream.
pub(super) const FAREWELL: Duration = Duration::from_secs(5);

/// How a session ended.
pub(super) enum Ended {
    /// The fleet stops.
    Stopped,
    /// The stream or the connection is gone.
    Lost,
    /// A heartbeat said that the session is unknown.
    Forced,
}

/// What a session waits for.
enum Event {
    Stop,
    Frame(Result<Option<Bytes>, CallError>),
    Disconnected,
    Heartbeat(Result<Answer, CallError>),
    Inventory(Result<Answer, CallError>),
    Sent,
    Time,
}

type Call = Pin<Box<dyn Future<Output = Result<Answer, CallError>> + Send>>;

/// A command that waits for its answer.
struct Due {
    /// When its next frame is due.
    at: Instant,
    /// When its terminal frame is due.
    ends: Instant,
    command_id: String,
    /// Frames sent of it so far.
    sent: u32,
}

pub(super) struct Session {
    shared: Arc<Shared>,
    index: usize,
    id: String,
    sender: Sender,
    receiver: Receiver,
    order: Order,
    taken: u64,
    due: VecDeque<Due>,
    heartbeat: Timer,
    inventory: Timer,
    guardian: Timer,
    heartbeat_call: Option<Call>,
    inventory_call: Option<Call>,
    /// A frame that waits for the stream, before any answer.
    urgent: Option<Bytes>,
    _subscribed: Held,
}

impl Session {
    pub(super) fn new(
        shared: &Arc<Shared>,
        index: usize,
        id: String,
        sender: Sender,
        receiver: Receiver,
    ) -> Self {
        let options = &shared.options;
        let now = Instant::now();
        let interval = |periodic: Option<Periodic>| periodic.map(|p| p.interval);
        Self {
            index,
            id,
            sender,
            receiver,
            order: Order::default(),
            taken: 0,
            due: VecDeque::new(),
            heartbeat: Timer::new(options.heartbeat, now, phase(index)),
            inventory: Timer::new(interval(options.inventory), now, 1.0),
            guardian: Timer::new(interval(options.guardian), now, 1.0),
            heartbeat_call: None,
            inventory_call: None,
            urgent: None,
            _subscribed: Held::new(&shared.counters, |c| &c.subscribed),
            shared: shared.clone(),
        }
    }

    /// Runs until the stream ends, and counts its end.
    pub(super) async fn run(
        mut self,
        connection: &Connection,
        backoff: &mut Backoff,
        stop: &mut watch::Receiver<bool>,
    ) -> Ended {
        loop {
            if let Some(ended) = self.misbehave(connection).await {
                return ended;
            }
            match self.next_event(connection, stop).await {
                Event::Stop => return self.farewell().await,
                Event::Frame(Ok(Some(frame))) => self.command(frame),
                Event::Frame(Ok(None)) => return self.lost(Outcome::Status(self.status_code())),
                Event::Frame(Err(error)) => return self.lost(Outcome::of(&error)),
                Event::Disconnected => return self.lost(Outcome::Disconnected),
                Event::Heartbeat(answer) => {
                    if self.heartbeat_answered(&answer, backoff) {
                        return Ended::Forced;
                    }
                }
                Event::Inventory(answer) => self.inventory_answered(&answer),
                Event::Sent => {}
                Event::Time => self.timers(connection),
            }
        }
    }

    /// Waits for the next thing to handle. A frame that is due is sent here, since the place for
    /// it in the stream's queue borrows the stream.
    async fn next_event(
        &mut self,
        connection: &Connection,
        stop: &mut watch::Receiver<bool>,
    ) -> Event {
        let (reads, due_now, wake) = (self.reads(), self.is_due(), self.next_wake());
        let Self {
            shared,
            index,
            sender,
            receiver,
            due,
            urgent,
            heartbeat_call,
            inventory_call,
            ..
        } = self;
        tokio::select! {
            biased;
            () = stopped(stop) => Event::Stop,
            answer = ready(heartbeat_call), if heartbeat_call.is_some() => {
                Event::Heartbeat(answer)
            }
            answer = ready(inventory_call), if inventory_call.is_some() => {
                Event::Inventory(answer)
            }
            slot = sender.ready(), if due_now || urgent.is_some() => {
                match slot {
                    Ok(slot) => slot.send_raw(next_frame(shared, *index, urgent, due)),
                    // The receiving half says why.
                    Err(_) => {
                        due.clear();
                        *urgent = None;
                    }
                }
                Event::Sent
            }
            frame = receiver.message(), if reads => Event::Frame(frame),
            () = connection.closed(), if !reads => Event::Disconnected,
            () = sleep_until(wake) => Event::Time,
        }
    }

    /// Does what the misbehaviour asks for, once its time has come.
    async fn misbehave(&mut self, connection: &Connection) -> Option<Ended> {
        match self.shared.options.misbehaviour {
            Misbehaviour::HalfClose { after } if self.is_time(after) => {
                self.sender.half_close();
                let outcome = match self.receiver.finish().await {
                    Ok(status) => Outcome::Status(status.code),
                    Err(error) => Outcome::of(&error),
                };
                Some(self.lost(outcome))
            }
            // Ending the session drops both halves, which resets the stream.
            Misbehaviour::Reset { after } if self.is_time(after) => Some(Ended::Lost),
            Misbehaviour::Disconnect { after } if self.is_time(after) => {
                connection.cut();
                connection.closed().await;
                Some(self.lost(Outcome::Disconnected))
            }
            Misbehaviour::Abort { after } if self.is_time(after) => {
                connection.abort();
                connection.closed().await;
                Some(self.lost(Outcome::Disconnected))
            }
            _ => None,
        }
    }

    /// Whether a misbehaviour after this many commands begins: the answers to them are out.
    fn is_time(&self, after: u64) -> bool {
        self.taken >= after && self.due.is_empty()
    }

    fn reads(&self) -> bool {
        let stopped = match self.shared.options.misbehaviour {
            Misbehaviour::StopReading { after } => self.taken >= after,
            _ => false,
        };
        !stopped && self.due.len() < COMMANDS_HELD
    }

    fn command(&mut self, frame: Bytes) {
        let counters = &self.shared.counters;
        self.taken += 1;
        counters.add(&counters.commands);
        let Ok(command) = CommandRequest::decode(frame) else {
            return;
        };
        match self.order.arrived(&command.command_id) {
            Arrival::InOrder => {}
            Arrival::Duplicate => counters.add(&counters.duplicates),
            Arrival::Late => counters.add(&counters.out_of_order),
        }
        self.shared.diary.taken(self.index, &command.command_id);
        if self.shared.options.misbehaviour != Misbehaviour::NeverAnswer {
            let answer = self.shared.options.answer;
            let first = Instant::now() + answer.delay;
            let ends = first + spread(&command).mul_f64(phase(self.index));
            self.due.push_back(Due {
                at: if answer.running_frames > 0 {
                    first
                } else {
                    ends
                },
                ends,
                command_id: command.command_id,
                sent: 0,
            });
        }
    }

    fn is_due(&self) -> bool {
        self.due.front().is_some_and(|due| due.at <= Instant::now())
    }

    /// When something has to be done that no other event announces.
    fn next_wake(&self) -> Instant {
        let far = Instant::now() + Duration::from_secs(3_600);
        // A head that is due already waits for the stream, not for the clock.
        let answer = self
            .due
            .front()
            .map(|due| due.at)
            .filter(|_| !self.is_due());
        [
            answer,
            self.heartbeat.at,
            self.inventory.at,
            self.guardian.at,
        ]
        .into_iter()
        .flatten()
        .fold(far, Instant::min)
    }

    fn timers(&mut self, connection: &Connection) {
        let shared = self.shared.clone();
        let (options, counters) = (&shared.options, &shared.counters);
        let now = Instant::now();
        // The real agent has one heartbeat thread: a beat that is not answered holds the next.
        if self.heartbeat.fires(now) && self.heartbeat_call.is_none() {
            counters.add(&counters.heartbeats_sent);
            let body = message::heartbeat(&self.id);
            let call = connection.begin_unary(&Request::new(path::HEARTBEAT), body);
            self.heartbeat_call = Some(Box::pin(call));
        }
        if self.inventory.fires(now) && self.inventory_call.is_none() {
            counters.add(&counters.inventories_sent);
            let body = message::inventory(&self.id, options.inventory.map_or(0, |p| p.bytes));
            let request = Request::new(path::REPORT_INVENTORY).timeout(options.call_timeout);
            self.inventory_call = Some(Box::pin(connection.begin_unary(&request, body)));
        }
        if self.guardian.fires(now) && self.urgent.is_none() {
            counters.add(&counters.guardian_frames);
            self.urgent = Some(message::guardian(options.guardian.map_or(0, |p| p.bytes)));
        }
    }

    /// Whether the agent has to register again.
    fn heartbeat_answered(
        &mut self,
        answer: &Result<Answer, CallError>,
        backoff: &mut Backoff,
    ) -> bool {
        self.heartbeat_call = None;
        let counters = &self.shared.counters;
        let outcome = outcome_of(answer);
        counters.ended(Rpc::Heartbeat, outcome);
        match outcome {
            Outcome::Status(code::OK) => {
                counters.add(&counters.heartbeats_acked);
                backoff.heartbeat_acknowledged();
                false
            }
            Outcome::Status(code::NOT_FOUND | code::UNAUTHENTICATED) => true,
            _ => false,
        }
    }

    fn inventory_answered(&mut self, answer: &Result<Answer, CallError>) {
        self.inventory_call = None;
        let counters = &self.shared.counters;
        counters.ended(Rpc::Inventory, outcome_of(answer));
        let ack = answer
            .as_ref()
            .ok()
            .and_then(|a| a.decode::<InventoryAck>().ok());
        if ack.is_some_and(|ack| ack.received) {
            counters.add(&counters.inventories_acked);
        }
    }

    fn status_code(&self) -> u16 {
        self.receiver
            .status()
            .map_or(code::INTERNAL, |status| status.code)
    }

    fn lost(&self, outcome: Outcome) -> Ended {
        self.shared.counters.ended(Rpc::Subscribe, outcome);
        Ended::Lost
    }

    /// Half-closes and waits a moment for the gateway to end the stream.
    async fn farewell(mut self) -> Ended {
        self.sender.half_close();
        if let Ok(Ok(status)) = tokio::time::timeout(FAREWELL, self.receiver.finish()).await {
            self.shared
                .counters
                .ended(Rpc::Subscribe, Outcome::Status(status.code));
        }
        Ended::Stopped
    }
}

/// The next frame for the stream: an urgent one, else the next one of the oldest command.
fn next_frame(
    shared: &Shared,
    index: usize,
    urgent: &mut Option<Bytes>,
    due: &mut VecDeque<Due>,
) -> Bytes {
    let counters = &shared.counters;
    if let Some(frame) = urgent.take() {
        return frame;
    }
    let Some(head) = due.front_mut() else {
        return Bytes::new();
    };
    if head.sent < shared.options.answer.running_frames {
        head.sent += 1;
        if head.sent == shared.options.answer.running_frames {
            head.at = head.ends;
        }
        counters.add(&counters.running_frames);
        return message::running(&head.command_id, head.sent);
    }
    let frame = message::success(&head.command_id, &shared.filler);
    shared.diary.answered(index, &head.command_id);
    due.pop_front();
    counters.add(&counters.answers);
    frame
}

async fn ready(call: &mut Option<Call>) -> Result<Answer, CallError> {
    match call {
        Some(call) => call.await,
        None => std::future::pending().await,
    }
}

/// The time over which the agents are to spread their answers to this command.
fn spread(command: &CommandRequest) -> Duration {
    let spread = command.parameters.get("spread_ms");
    let spread = spread.and_then(|ms| ms.parse().ok());
    spread.map_or(Duration::ZERO, Duration::from_millis)
}

/// Where in the first interval an agent starts: spread evenly by the golden ratio.
fn phase(index: usize) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    (index as f64 * GOLDEN).fract().max(0.01)
}

/// Fires once per interval; a late one is not made up for.
struct Timer {
    interval: Duration,
    at: Option<Instant>,
}

impl Timer {
    /// First fires after `phase` of an interval.
    fn new(interval: Option<Duration>, now: Instant, phase: f64) -> Self {
        let at = interval.map(|interval| now + interval.mul_f64(phase));
        Self {
            interval: interval.unwrap_or_default(),
            at,
        }
    }

    fn fires(&mut self, now: Instant) -> bool {
        let fires = self.at.is_some_and(|at| at <= now);
        if fires {
            self.at = Some(now + self.interval);
        }
        fires
    }
}
