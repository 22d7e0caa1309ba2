//! What really happened: every command that reached an agent, every answer it gave, every call and
//! what its caller was told.
//!
//! Responsible for keeping it and for the log of one seed. Must never judge: see [`crate::verdict`].

use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;

/// A command in an agent's hands.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// When.
    pub at: Duration,
    /// Its `command_id`.
    pub command: String,
    /// Who got it.
    pub agent: String,
    /// The node that it came from.
    pub node: usize,
}

/// An answer that an agent has given.
#[derive(Debug, Clone)]
pub struct Given {
    /// When.
    pub at: Duration,
    /// Whose.
    pub agent: String,
    /// To which `command_id`.
    pub command: String,
    /// Its text, which no other has.
    pub output: String,
    /// Whether it is the last one to this command.
    pub last: bool,
}

/// One entry that a caller got.
#[derive(Debug, Clone)]
pub struct Entry {
    /// When.
    pub at: Duration,
    /// About whom.
    pub agent: String,
    /// The id of the command in it.
    pub command: String,
    /// Its text.
    pub output: String,
    /// Whether nothing may come behind it.
    pub last: bool,
    /// Whether it says that the agent succeeded.
    pub success: bool,
    /// Whether the gateway made it.
    pub by_gateway: bool,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// With this status.
    Status(u16),
    /// Its connection broke.
    Broken,
    /// The caller waited for longer than it should have to.
    GaveUp,
}

/// A SendCommand.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its `command_id`.
    pub command: String,
    /// Which caller.
    pub caller: usize,
    /// When it began.
    pub at: Duration,
    /// The time that it was given.
    pub timeout: Duration,
    /// Whom it is for; `None`: everybody.
    pub targets: Option<Vec<String>>,
    /// What agents were asked for.
    pub order: Order,
    /// What came.
    pub entries: Vec<Entry>,
    /// When and how it ended.
    pub end: Option<(Duration, End)>,
}

/// What a command asks of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Answers before the last one.
    pub frames: u32,
    /// Before each answer.
    pub pause: Duration,
    /// Whether there is a last one.
    pub ends: bool,
}

/// A stream of an agent, from its headers to its end.
#[derive(Debug, Clone)]
pub struct Attached {
    /// Whose.
    pub agent: String,
    /// To which node.
    pub node: usize,
    /// The host name that it registered with, which no other has.
    pub label: String,
    /// Its session.
    pub session: String,
    /// When it had its headers.
    pub from: Duration,
    /// When it was over for the agent.
    pub until: Option<Duration>,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Book {
    /// Commands that arrived.
    pub deliveries: Vec<Delivery>,
    /// Answers.
    pub given: Vec<Given>,
    /// Calls.
    pub calls: Vec<Call>,
    /// Streams of agents.
    pub attached: Vec<Attached>,
    /// The stream that each agent has now, by its place.
    pub current: BTreeMap<String, usize>,
    /// What was seen to be wrong as it happened.
    pub wrong: Vec<String>,
    /// One line for each thing that happened.
    pub log: String,
    /// When the present step began.
    step: Duration,
    print: bool,
}

/// A handle to the book.
#[derive(Debug, Clone, Default)]
pub struct Ledger(Rc<RefCell<Book>>);

/// The simulation's time.
pub fn now() -> Duration {
    turmoil::sim_elapsed().expect("in a host")
}

impl Ledger {
    /// An empty one; with `print` its log goes to stderr as well.
    pub fn new(print: bool) -> Self {
        let book = Book {
            print,
            ..Book::default()
        };
        Self(Rc::new(RefCell::new(book)))
    }

    /// Reads.
    pub fn read(&self) -> Ref<'_, Book> {
        self.0.borrow()
    }

    /// A step begins.
    pub fn step(&self, at: Duration) {
        self.0.borrow_mut().step = at;
    }

    /// Something happened.
    pub fn say(&self, at: Duration, what: impl AsRef<str>) {
        self.0.borrow_mut().say(at, what.as_ref());
    }

    /// Something is wrong.
    pub fn wrong(&self, at: Duration, what: String) {
        let mut book = self.0.borrow_mut();
        book.say(at, &format!("WRONG {what}"));
        book.wrong.push(format!("{:.3} {what}", at.as_secs_f64()));
    }

    /// An agent has a stream; its place.
    pub fn attached(&self, agent: &str, node: usize, label: &str, session: &str) -> usize {
        let (mut book, from) = (self.0.borrow_mut(), now());
        book.say(from, &format!("{agent} attached to node {node} as {label}"));
        let place = book.attached.len();
        book.attached.push(Attached {
            agent: agent.into(),
            node,
            label: label.into(),
            session: session.into(),
            from,
            until: None,
        });
        book.current.insert(agent.into(), place);
        place
    }

    /// A stream is over. The time is that of the step: a host that crashes has none any more.
    pub fn detached(&self, place: usize, why: &str) {
        let mut book = self.0.borrow_mut();
        let at = book.step;
        let attached = &mut book.attached[place];
        attached.until = Some(at);
        let line = format!("{} detached: {why}", attached.label);
        let agent = attached.agent.clone();
        book.say(at, &line);
        if book.current.get(&agent) == Some(&place) {
            book.current.remove(&agent);
        }
    }

    /// A command arrived.
    pub fn delivered(&self, place: usize, command: &str) {
        let (mut book, at) = (self.0.borrow_mut(), now());
        let attached = &book.attached[place];
        let delivery = Delivery {
            at,
            command: command.into(),
            agent: attached.agent.clone(),
            node: attached.node,
        };
        let line = format!("{} got {command}", attached.label);
        book.say(at, &line);
        book.deliveries.push(delivery);
    }

    /// An answer was given.
    pub fn given(&self, agent: &str, command: &str, output: &str, last: bool) {
        let (mut book, at) = (self.0.borrow_mut(), now());
        book.say(at, &format!("{agent} gave {output}"));
        book.given.push(Given {
            at,
            agent: agent.into(),
            command: command.into(),
            output: output.into(),
            last,
        });
    }

    /// A call begins; its place.
    pub fn called(&self, call: Call) -> usize {
        let mut book = self.0.borrow_mut();
        let line = format!(
            "caller {} calls {} for {:?} within {:?}: {:?}",
            call.caller, call.command, call.targets, call.timeout, call.order
        );
        book.say(call.at, &line);
        book.calls.push(call);
        book.calls.len() - 1
    }

    /// A caller got an entry.
    pub fn told(&self, call: usize, entry: Entry) {
        let mut book = self.0.borrow_mut();
        let line = format!(
            "caller {} told of {}: {} {:?}{}",
            book.calls[call].caller,
            book.calls[call].command,
            entry.agent,
            entry.output,
            if entry.last { " (last)" } else { "" }
        );
        book.say(entry.at, &line);
        book.calls[call].entries.push(entry);
    }

    /// A call is over.
    pub fn ended(&self, call: usize, end: End) {
        let (mut book, at) = (self.0.borrow_mut(), now());
        let line = format!("{} ended: {end:?}", book.calls[call].command);
        book.say(at, &line);
        book.calls[call].end = Some((at, end));
    }
}

impl Book {
    fn say(&mut self, at: Duration, what: &str) {
        let line = format!("{:8.3} {what}", at.as_secs_f64());
        if self.print {
            eprintln!("{line}");
        }
        // Writing to a string does not fail.
        let _ = writeln!(self.log, "{line}");
    }
}
