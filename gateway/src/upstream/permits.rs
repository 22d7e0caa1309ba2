//! Permits: how many register, inventory and replay calls are in flight, and who waits (PERMIT-*).
//!
//! Responsible for the split of the server's stream limit, for the order in which waiting callers
//! are served, and for the bound of each queue. Live registrations and replays share one pool, in
//! which replays have a cap and go last (PERMIT-1, PERMIT-6). Must never read a clock, wake a
//! task, log or count: [`super::lane`] does.

use std::collections::BTreeMap;

/// What a permit is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// A registration that an agent waits for.
    Register,
    /// An inventory report.
    Inventory,
    /// A registration that the gateway repeats; it takes its permit from the register pool.
    Replay,
}

impl Class {
    /// All of them, in the order in which they are served.
    pub(crate) const ALL: [Class; 3] = [Class::Register, Class::Inventory, Class::Replay];

    /// Value of the metric label `class`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Class::Register => "register",
            Class::Inventory => "inventory",
            Class::Replay => "replay",
        }
    }
}

/// Calls in flight at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Registrations, replays included.
    pub(crate) register: usize,
    /// Inventory reports.
    pub(crate) inventory: usize,
    /// Replays among the registrations.
    pub(crate) replay: usize,
}

impl Limits {
    /// These limits, lowered so that they fit beside `reserved` streams when the server allows
    /// `server` of them; `None` is unknown or unlimited (PERMIT-8). At least one call of each
    /// class stays possible, though there may be no stream for it.
    pub(crate) fn within(self, server: Option<u32>, reserved: usize) -> Limits {
        let wanted = self.register + self.inventory;
        let Some(left) = server.map(|server| (server as usize).saturating_sub(reserved)) else {
            return self;
        };
        if left >= wanted {
            return self;
        }
        let register = (left * self.register / wanted).clamp(1, self.register);
        let inventory = left.saturating_sub(register).clamp(1, self.inventory);
        Limits {
            register,
            inventory,
            replay: (register / 2).clamp(1, self.replay),
        }
    }

    fn of(self, class: Class) -> usize {
        match class {
            Class::Register => self.register,
            Class::Inventory => self.inventory,
            Class::Replay => self.replay,
        }
    }
}

/// A place in a queue; a greater one is younger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// The answer to a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It holds a permit.
    Granted,
    /// It waits, until [`Pool::next`] returns its waiter or it leaves.
    Queued(Ticket),
    /// The queue is full.
    Full,
    /// No permit is granted any more.
    Stopped,
}

/// The permits. `W` is how a waiting caller is reached.
///
/// After each call of [`Pool::release`], [`Pool::leave`] and [`Pool::limit`] the caller takes
/// from [`Pool::next`] until it is empty.
#[derive(Debug)]
pub(crate) struct Pool<W> {
    limits: Limits,
    queues: [Queue<W>; 3],
    held: [usize; 3],
    next_ticket: u64,
    stopped: bool,
}

#[derive(Debug)]
struct Queue<W> {
    most: usize,
    /// After the stop the waiters are gone, their places stay until they leave.
    waiting: BTreeMap<Ticket, Option<W>>,
}

impl<W> Pool<W> {
    /// A pool without a caller; `queues` callers of each class wait at most.
    pub(crate) fn new(limits: Limits, queues: Limits) -> Self {
        let queue = |class| Queue {
            most: queues.of(class),
            waiting: BTreeMap::new(),
        };
        Self {
            limits,
            queues: Class::ALL.map(queue),
            held: [0; 3],
            next_ticket: 0,
            stopped: false,
        }
    }

    /// A permit, a place in the queue, or neither.
    pub(crate) fn ask(&mut self, class: Class, waiter: W) -> Asked {
        if self.stopped {
            return Asked::Stopped;
        }
        if self.waiting(class) == 0 && self.has_room(class) {
            self.held[class as usize] += 1;
            return Asked::Granted;
        }
        let queue = &mut self.queues[class as usize];
        if queue.waiting.len() >= queue.most {
            return Asked::Full;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        queue.waiting.insert(ticket, Some(waiter));
        Asked::Queued(ticket)
    }

    /// The next waiter that holds a permit from now on.
    pub(crate) fn next(&mut self) -> Option<W> {
        if self.stopped {
            return None;
        }
        let served = |class: &Class| self.waiting(*class) > 0 && self.has_room(*class);
        let class = Class::ALL.into_iter().find(served)?;
        let (_ticket, waiter) = self.queues[class as usize].waiting.pop_first()?;
        self.held[class as usize] += 1;
        waiter
    }

    /// A permit comes back.
    pub(crate) fn release(&mut self, class: Class) {
        self.held[class as usize] -= 1;
    }

    /// A caller no longer wants what it was queued for: its place in the queue, or the permit it
    /// was served with.
    pub(crate) fn leave(&mut self, class: Class, ticket: Ticket) {
        if self.queues[class as usize]
            .waiting
            .remove(&ticket)
            .is_none()
        {
            self.release(class);
        }
    }

    /// Puts other limits in force. Nothing is taken back (PERMIT-10).
    pub(crate) fn limit(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// At most so many callers of each class wait. Nobody who waits is sent away.
    pub(crate) fn limit_queues(&mut self, queues: Limits) {
        for (class, queue) in Class::ALL.into_iter().zip(&mut self.queues) {
            queue.most = queues.of(class);
        }
    }

    /// Grants nothing from now on; the waiters are dropped (PERMIT-13).
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        for queue in &mut self.queues {
            queue.waiting.values_mut().for_each(|waiter| *waiter = None);
        }
    }

    /// The limits in force.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Permits held.
    pub(crate) fn held(&self, class: Class) -> usize {
        self.held[class as usize]
    }

    /// Callers in the queue.
    pub(crate) fn waiting(&self, class: Class) -> usize {
        self.queues[class as usize].waiting.len()
    }

    fn has_room(&self, class: Class) -> bool {
        let registers = self.held(Class::Register) + self.held(Class::Replay);
        match class {
            Class::Register => registers < self.limits.register,
            Class::Inventory => self.held(Class::Inventory) < self.limits.inventory,
            Class::Replay => {
                registers < self.limits.register && self.held(Class::Replay) < self.limits.replay
            }
        }
    }
}

#[cfg(test)]
mod tests;
