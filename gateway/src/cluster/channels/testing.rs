//! Channels that no socket carries.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http_body::Body;

use super::outgoing::{Outgoing, outgoing};
use super::source::{Lost, MAX_FIRST, Source};
use super::{Channel, Counted};
use crate::edge::deframe::Deframer;

/// What the other end sends, until the link is cut.
pub(crate) struct Near {
    frames: Outgoing,
    deframer: Box<Deframer>,
    link: Arc<Link>,
}

/// A link that may be cut.
#[derive(Default)]
pub(crate) struct Link(Mutex<(bool, Vec<Waker>)>);

impl Link {
    /// From now on neither end gets anything, what is on its way included.
    pub(crate) fn cut(&self) {
        let mut state = self.0.lock().unwrap();
        state.0 = true;
        state.1.drain(..).for_each(Waker::wake);
    }

    fn is_cut(&self, cx: &Context<'_>) -> bool {
        let mut state = self.0.lock().unwrap();
        state.1.push(cx.waker().clone());
        state.0
    }
}

impl Near {
    pub(super) fn limit(&mut self, bytes: usize) {
        self.deframer.limit(bytes);
    }

    pub(super) fn unfinished(&self) -> usize {
        self.deframer.held()
    }

    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Lost>> {
        if self.link.is_cut(cx) {
            return Poll::Ready(Err(Lost::Broken));
        }
        loop {
            if let Some(message) = self.deframer.next().map_err(|_| Lost::NoMessage)? {
                return Poll::Ready(Ok(Some(message)));
            }
            let frame = ready!(Pin::new(&mut self.frames).poll_frame(cx));
            match frame.and_then(|frame| frame.unwrap().into_data().ok()) {
                Some(data) => self.deframer.push(data),
                None => return Poll::Ready(Ok(None)),
            }
        }
    }
}

/// Both ends of a channel, and the link below it.
pub(crate) fn pair() -> (Channel, Channel, Arc<Link>) {
    let link = Arc::<Link>::default();
    let ((near, far_body), (far, near_body)) = (outgoing(None), outgoing(None));
    let channel = |sink, frames| Channel {
        sink,
        source: Source::near(Near {
            frames,
            deframer: Box::new(Deframer::new(MAX_FIRST)),
            link: Arc::clone(&link),
        }),
        _counted: Counted::new(&Arc::default()),
    };
    (
        channel(near, near_body),
        channel(far, far_body),
        Arc::clone(&link),
    )
}
