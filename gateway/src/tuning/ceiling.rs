//! A number of places that can be raised and lowered while some are held.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, watch};

/// So many may hold a place at once; the others wait, first come, first served.
#[derive(Debug)]
pub(crate) struct Ceiling {
    places: Semaphore,
    size: Mutex<Size>,
    resized: watch::Sender<()>,
}

#[derive(Debug)]
struct Size {
    most: usize,
    /// Places that are held and will not be free again: the ceiling was lowered meanwhile.
    owed: usize,
}

/// A place, given back on drop.
#[derive(Debug)]
pub(crate) struct Slot(Arc<Ceiling>);

impl Ceiling {
    /// `most` places, or as many as can be counted.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let most = most.min(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            places: Semaphore::new(most),
            size: Mutex::new(Size { most, owed: 0 }),
            resized: watch::Sender::new(()),
        })
    }

    /// Waits for a place.
    pub(crate) async fn take(self: &Arc<Self>) -> Slot {
        // Never closed, so there is always a permit.
        if let Ok(permit) = self.places.acquire().await {
            permit.forget();
        }
        Slot(Arc::clone(self))
    }

    /// From now on there are `most` places. Nothing is taken from who holds one: over a lowered
    /// ceiling nobody gets a place until enough have been given back.
    pub(crate) fn resize(&self, most: usize) {
        let most = most.min(Semaphore::MAX_PERMITS);
        let mut size = self.size();
        let (more, fewer) = (
            most.saturating_sub(size.most),
            size.most.saturating_sub(most),
        );
        size.most = most;
        let settled = more.min(size.owed);
        size.owed -= settled;
        self.places.add_permits(more - settled);
        size.owed += fewer - self.places.forget_permits(fewer);
        drop(size);
        self.resized.send_replace(());
    }

    /// Sees that it was resized. Who holds a place and has no use for it yet gives it back then, and
    /// asks for another.
    pub(crate) fn watch(&self) -> watch::Receiver<()> {
        self.resized.subscribe()
    }

    fn size(&self) -> MutexGuard<'_, Size> {
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut size = self.0.size();
        match size.owed.checked_sub(1) {
            Some(owed) => size.owed = owed,
            None => self.0.places.add_permits(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn take(ceiling: &Arc<Ceiling>) -> Option<Slot> {
        ceiling.take().now_or_never()
    }

    #[test]
    fn a_raised_ceiling_lets_those_in_who_wait() {
        let ceiling = Ceiling::new(1);
        let _held = take(&ceiling).unwrap();
        let mut waits = Box::pin(ceiling.take());
        assert!(waits.as_mut().now_or_never().is_none());
        ceiling.resize(2);
        let _second = waits.now_or_never().unwrap();
        assert!(take(&ceiling).is_none());
    }

    #[test]
    fn a_lowered_ceiling_takes_nothing_and_admits_nobody_until_it_holds() {
        let ceiling = Ceiling::new(4);
        let mut held: Vec<_> = (0..3).map(|_| take(&ceiling).unwrap()).collect();
        ceiling.resize(1);
        assert!(take(&ceiling).is_none(), "the free place is gone");
        held.pop();
        held.pop();
        assert!(take(&ceiling).is_none(), "one is held");
        held.pop();
        let last = take(&ceiling).unwrap();
        assert!(take(&ceiling).is_none());
        drop(last);
        assert!(take(&ceiling).is_some());
    }

    #[test]
    fn a_ceiling_that_goes_down_and_up_again_has_its_places() {
        let ceiling = Ceiling::new(3);
        let held: Vec<_> = (0..3).map(|_| take(&ceiling).unwrap()).collect();
        ceiling.resize(1);
        ceiling.resize(4);
        let fourth = take(&ceiling).unwrap();
        assert!(take(&ceiling).is_none());
        drop((held, fourth));
        let all: Vec<_> = std::iter::from_fn(|| take(&ceiling)).collect();
        assert_eq!(all.len(), 4);
    }
}
