//! What the service manager is told (sd_notify): ready, stopping, still alive.
//!
//! Responsible for the pace of the watchdog. Does nothing in a process that was not started by
//! systemd. Must never fail a start or a stop.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

/// The node serves: units that wait for it may start.
pub(crate) fn ready() {
    tell(&NotifyState::Ready);
}

/// A planned stop has begun; the unit's stop timeout runs.
pub(crate) fn stopping() {
    tell(&NotifyState::Stopping);
}

/// Feeds the watchdog of the unit, if it has one, for as long as `pulse` returns. Goes on during
/// the stop, which has a budget of its own.
pub(crate) fn feed_watchdog(pulse: impl Fn() + Send + 'static) {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return;
    };
    let pace = (limit / 3).max(Duration::from_millis(1));
    tokio::spawn(async move {
        let mut ticks = interval(pace);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            pulse();
            tell(&NotifyState::Watchdog);
        }
    });
}

fn tell(state: &NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(std::slice::from_ref(state)) {
        tracing::warn!(%error, "the service manager could not be told {state}");
    }
}
