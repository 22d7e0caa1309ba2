//! A broadcast that waits for answers, for benchmarks.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;

use super::callers::{CallerLimits, Callers};
use super::fanout::{Fanout, FanoutBody};
use super::metrics::MetricsOfCommands;
use crate::observe::metrics::Metrics;
use crate::session::{Reply, ReplySink};

const SUCCESS: i32 = 1;

/// One SendCommand, dispatched to all its targets.
pub struct Broadcast {
    fanout: Arc<Fanout>,
    body: FanoutBody,
}

impl Broadcast {
    /// To `targets` agents. Must be called inside a tokio runtime.
    ///
    /// # Panics
    /// When the metrics can not be made.
    #[must_use]
    pub fn new(targets: u32) -> Self {
        let metrics = Arc::new(Metrics::new("bench").expect("metrics"));
        let callers = Callers::new(CallerLimits {
            buffer_bytes: 4 << 20,
            slow_timeout: Duration::from_secs(5),
        });
        let metrics = MetricsOfCommands::new(metrics).of("shell");
        let fanout = Fanout::new(
            targets as usize,
            "command".to_owned(),
            metrics,
            &callers,
            Duration::from_secs(300),
        );
        fanout.expect(0..targets);
        fanout.dispatched();
        Self {
            body: FanoutBody::new(Arc::clone(&fanout)),
            fanout,
        }
    }

    /// The terminal answer of a target. False: there is no room.
    #[must_use]
    pub fn answer(&self, target: u32, frame: &Bytes) -> bool {
        let reply = Reply {
            frame: frame.clone(),
            terminal: Some(SUCCESS),
        };
        self.fanout.try_reply(target, &reply)
    }

    /// What HTTP/2 would take next, in bytes; `None` when nothing waits.
    #[must_use]
    pub fn take(&mut self) -> Option<usize> {
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(&mut self.body).poll_frame(&mut cx) {
            Poll::Ready(Some(Ok(frame))) => frame.data_ref().map(Bytes::len),
            _ => None,
        }
    }
}
