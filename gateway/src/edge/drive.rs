//! One HTTP/2 connection from its first byte to its end.
//!
//! Responsible for carrying out what its verdict and the signals of this side say. Must never
//! decide: the verdict is [`Connection`]'s.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use pin_project_lite::pin_project;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::debug;

use super::close::CloseReason;
use super::connection::{Connection, Signal, Verdict};
use super::flood;
use super::late::SecondLook;
use super::tasks::{Part, Tasks, Woken};

/// An idle peer that was sent GOAWAY has this long to leave by itself.
const LEAVE_TIME: Duration = Duration::from_secs(3);

/// Looks of a connection at what woke it before other connections have their turn.
const LOOKS: u8 = 16;

pin_project! {
    /// Runs one connection until it ends, or until its verdict or a signal ends it; with it its tasks,
    /// unless they are the runtime's.
    ///
    /// Not an async block: what each run touches lies together, and first.
    #[repr(C)]
    pub(super) struct Drive<C> {
        connection: Arc<Connection>,
        for_served: Waker,
        for_check: Waker,
        looks: u8,
        seen: Signal,
        leaving: Option<CloseReason>,
        look: SecondLook,
        tasks: Option<Tasks>,
        #[pin]
        check: Sleep,
        #[pin]
        served: C,
    }
}

impl<C: GracefulConnection> Drive<C> {
    pub(super) fn new(served: C, connection: &Arc<Connection>, tasks: Option<Tasks>) -> Self {
        connection.turn().set(Part::SERVED);
        connection.turn().set(Part::CHECK);
        Self {
            connection: Arc::clone(connection),
            // Of newcomers as well, which have no place yet.
            for_served: Waker::from(Arc::clone(connection)),
            for_check: Waker::from(Woken::of(connection, Part::CHECK)),
            // What the runtime's tasks are woken for is to have its turn before this.
            looks: if tasks.is_some() { LOOKS } else { 1 },
            seen: Signal::Serve,
            leaving: None,
            look: SecondLook::default(),
            tasks,
            check: sleep_until(connection.first_check()),
            served,
        }
    }
}

impl<C: GracefulConnection> Future for Drive<C> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let me = self.project();
        let (connection, tasks) = (&*me.connection, me.tasks);
        if let Some(tasks) = tasks {
            tasks.prefetch();
        }
        let mut driver = Driver {
            served: me.served,
            connection,
            check: me.check,
            look: me.look,
            seen: me.seen,
            leaving: me.leaving,
        };
        connection.turn().begin();
        for _ in 0..*me.looks {
            if let Some(tasks) = tasks {
                tasks.run(&mut Context::from_waker(me.for_served));
            }
            // After them: what one of them ends is not served any more.
            let for_check = &mut Context::from_waker(me.for_check);
            if driver.judge(cx, for_check).is_ready() {
                *tasks = None;
                return Poll::Ready(());
            }
            let for_served = &mut Context::from_waker(me.for_served);
            if let Poll::Ready(ended) = driver.serve(for_served, tasks.is_some()) {
                *tasks = None;
                tell_end(connection, ended);
                return Poll::Ready(());
            }
            driver.watch_answers(for_check);
            if connection.turn().end() {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

fn tell_end(connection: &Connection, ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        if flood::ended_by_http2(&error) {
            connection.closed_for(CloseReason::Http2Flood);
        }
        debug!(%error, "connection ended");
    }
}

/// A connection as it is driven.
struct Driver<'a, C> {
    served: Pin<&'a mut C>,
    connection: &'a Arc<Connection>,
    /// When it is judged next.
    check: Pin<&'a mut Sleep>,
    look: &'a mut SecondLook,
    seen: &'a mut Signal,
    /// Why it was sent GOAWAY by its verdict.
    leaving: &'a mut Option<CloseReason>,
}

impl<C: GracefulConnection> Driver<'_, C> {
    /// Does what the signals and the verdict say. Ready: the connection ends.
    fn judge(&mut self, cx: &mut Context<'_>, for_check: &mut Context<'_>) -> Poll<()> {
        if let Poll::Ready(signal) = self.connection.poll_signal(cx, *self.seen) {
            *self.seen = signal;
            match signal {
                // Whoever asked for it counts it.
                Signal::Kill => return Poll::Ready(()),
                Signal::Drain | Signal::Serve => self.drain(),
            }
        }
        // A timer costs more than a look whether it has gone off.
        let check_woken = self.connection.turn().take(Part::CHECK);
        while check_woken && self.check.as_mut().poll(for_check).is_ready() {
            let now = Instant::now();
            let due = self.check.deadline().into_std();
            if let Some(later) = self.look.at(due, now.into_std()) {
                self.check.as_mut().reset(later.into());
                continue;
            }
            match self.connection.verdict(now) {
                // What it subscribes meanwhile comes too late: its calls would go elsewhere.
                _ if *self.leaving == Some(CloseReason::Unregistered) => return Poll::Ready(()),
                // A peer that lives is told, so that it sends no call into a closed socket.
                Verdict::Close(reason @ (CloseReason::Idle | CloseReason::Unregistered))
                    if self.leaving.is_none() =>
                {
                    self.connection.closed_for(reason);
                    *self.leaving = Some(reason);
                    self.drain();
                    self.check.as_mut().reset(Instant::now() + LEAVE_TIME);
                }
                Verdict::Close(reason) => {
                    if self.leaving.is_none() {
                        self.connection.closed_for(reason);
                    }
                    return Poll::Ready(());
                }
                Verdict::Ask(until) => {
                    self.connection.ask(now);
                    self.check.as_mut().reset(until);
                }
                Verdict::CheckAt(at) => self.check.as_mut().reset(at),
            }
        }
        Poll::Pending
    }

    fn drain(&mut self) {
        self.served.as_mut().drain();
        self.connection.turn().set(Part::SERVED);
    }

    /// Serves the connection, if that was woken. Ready: it has ended.
    fn serve(&mut self, cx: &mut Context<'_>, after_tasks: bool) -> Poll<Result<(), hyper::Error>> {
        if !self.connection.turn().take(Part::SERVED) {
            return Poll::Pending;
        }
        if !after_tasks {
            return self.served.as_mut().poll(cx);
        }
        // The tasks may have used up what the runtime lets one task do at a time. What is read in
        // one go is bounded below HTTP/2.
        let served = poll_fn(|cx| self.served.as_mut().poll(cx));
        pin!(unconstrained(served)).poll(cx)
    }

    /// An answer that was handed over just now has to be watched.
    fn watch_answers(&mut self, for_check: &mut Context<'_>) {
        if !self.connection.has_answers() {
            return;
        }
        let soon = Instant::now() + self.connection.limits().answer_patience;
        if self.check.deadline() > soon {
            self.check.as_mut().reset(soon);
            if self.check.as_mut().poll(for_check).is_ready() {
                for_check.waker().wake_by_ref();
            }
        }
    }
}

/// What [`Drive`] needs of hyper's connection.
pub(super) trait GracefulConnection: Future<Output = Result<(), hyper::Error>> {
    fn drain(self: Pin<&mut Self>);
}

impl<I, S, E> GracefulConnection for http2::Connection<I, S, E>
where
    Self: Future<Output = Result<(), hyper::Error>>,
    S: hyper::service::HttpService<Incoming>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    S::ResBody: hyper::body::Body + 'static,
    <S::ResBody as hyper::body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    E: hyper::rt::bounds::Http2ServerConnExec<S::Future, S::ResBody>,
{
    fn drain(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

#[cfg(test)]
mod tests;
