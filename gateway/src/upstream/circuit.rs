//! The breaker as tasks see it: published state, admissions that settle themselves, log lines.
//!
//! Responsible for the clock, for `upstream_circuit_transitions_total` and for the lines of
//! BREAKER-11. Must never decide anything: [`super::breaker`] does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::breaker::{Breaker, BreakerState, CircuitOpen, Kind, Ticket, Transition, Verdict};
use super::rpc::Rpc;
use crate::config;
use crate::observe::metrics::Metrics;

/// The breaker, shared.
#[derive(Debug)]
pub(crate) struct Circuit {
    breaker: Mutex<Breaker>,
    state: watch::Sender<BreakerState>,
    metrics: Arc<Metrics>,
}

/// One admitted call. Dropped without a verdict it says nothing about the server.
#[derive(Debug)]
pub(crate) struct Admission {
    circuit: Arc<Circuit>,
    ticket: Option<Ticket>,
    probe: bool,
}

impl Circuit {
    pub(crate) fn new(config: &config::Breaker, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            breaker: Mutex::new(Breaker::new(config)),
            state: watch::Sender::new(BreakerState::Closed),
            metrics,
        })
    }

    /// Puts another configuration in force.
    pub(crate) fn retune(&self, config: &config::Breaker) {
        self.lock().retune(config);
    }

    /// The state last published (BREAKER-12).
    pub(crate) fn state(&self) -> BreakerState {
        *self.state.borrow()
    }

    /// Sees every transition, and a half-open breaker that admits the next call.
    pub(crate) fn watch(&self) -> watch::Receiver<BreakerState> {
        self.state.subscribe()
    }

    /// Whether a call would be admitted now; asked before a caller queues.
    pub(crate) fn admits(&self, kind: Kind) -> bool {
        self.lock().admits(kind)
    }

    /// Admits one call.
    pub(crate) fn admit(self: &Arc<Self>, rpc: Rpc, kind: Kind) -> Result<Admission, CircuitOpen> {
        let ticket = self.lock().admit(rpc, kind)?;
        Ok(Admission {
            circuit: Arc::clone(self),
            probe: ticket.is_probe(),
            ticket: Some(ticket),
        })
    }

    /// Ends open periods when their time is over; never returns.
    pub(crate) async fn run(&self) {
        let mut state = self.watch();
        loop {
            let now = *state.borrow_and_update();
            if let BreakerState::Open { until } = now {
                sleep_until(until).await;
                let mut breaker = self.lock();
                let transition = breaker.tick(Instant::now());
                self.publish(&breaker, transition);
            } else if state.changed().await.is_err() {
                return;
            }
        }
    }

    fn settle(&self, ticket: Ticket, verdict: Verdict) {
        let probe = ticket.is_probe();
        let mut breaker = self.lock();
        let transition = breaker.settle(ticket, verdict, Instant::now());
        self.publish(&breaker, transition);
        if probe && transition.is_none() {
            // It said nothing, and whoever waited for it may have its place.
            self.state.send_replace(breaker.state());
        }
    }

    /// Called under the lock, so that states are published in their order.
    fn publish(&self, breaker: &Breaker, transition: Option<Transition>) {
        let Some(transition) = transition else { return };
        let state = match transition {
            Transition::Tripped { probe_in } => {
                tracing::warn!(
                    "Circuit breaker: OPEN (will probe in {}ms)",
                    probe_in.as_millis()
                );
                "open"
            }
            Transition::HalfOpened => {
                tracing::info!("Circuit breaker: open -> half_open (allowing probe RPC)");
                "half_open"
            }
            Transition::Closed => {
                tracing::info!("Circuit breaker: half_open -> closed (probe succeeded)");
                "closed"
            }
            Transition::Reopened { .. } => {
                tracing::warn!(
                    "Circuit breaker: half_open -> open (probe failed, increasing backoff)"
                );
                "open"
            }
        };
        self.metrics
            .upstream_circuit_transitions_total
            .with_label_values(&[state])
            .inc();
        self.state.send_replace(breaker.state());
    }

    fn lock(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Admission {
    /// Whether this call is the probe of a half-open period.
    pub(crate) fn is_probe(&self) -> bool {
        self.probe
    }

    /// Tells how the call ended.
    pub(crate) fn settle(mut self, verdict: Verdict) {
        if let Some(ticket) = self.ticket.take() {
            self.circuit.settle(ticket, verdict);
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.circuit.settle(ticket, Verdict::Neutral);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;
    use crate::upstream::tests::{logged, metric, metrics};

    fn circuit(metrics: &Arc<Metrics>) -> Arc<Circuit> {
        let config = config::Breaker {
            failure_threshold: 1,
            reset_timeout: Duration::from_secs(10),
            max_reset_timeout: Duration::from_secs(30),
        };
        Circuit::new(&config, Arc::clone(metrics))
    }

    fn end(circuit: &Arc<Circuit>, verdict: Verdict) {
        let admission = circuit.admit(Rpc::Register, Kind::Call).unwrap();
        admission.settle(verdict);
    }

    fn half_open(circuit: &Circuit) {
        let BreakerState::Open { until } = circuit.state() else {
            panic!("{:?}", circuit.state());
        };
        let mut breaker = circuit.lock();
        let transition = breaker.tick(until);
        circuit.publish(&breaker, transition);
    }

    #[test]
    fn breaker_11_every_transition_is_told_and_counted() {
        let metrics = metrics();
        let circuit = circuit(&metrics);
        let text = logged(|| {
            end(&circuit, Verdict::Failure);
            half_open(&circuit);
            end(&circuit, Verdict::Failure);
            half_open(&circuit);
            end(&circuit, Verdict::Success);
        });
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "WARN Circuit breaker: OPEN (will probe in 10000ms)",
                "INFO Circuit breaker: open -> half_open (allowing probe RPC)",
                "WARN Circuit breaker: half_open -> open (probe failed, increasing backoff)",
                "INFO Circuit breaker: open -> half_open (allowing probe RPC)",
                "INFO Circuit breaker: half_open -> closed (probe succeeded)",
            ]
        );
        for (state, count) in [("open", 2.0), ("half_open", 2.0), ("closed", 1.0)] {
            let series = format!("upstream_circuit_transitions_total{{state=\"{state}\"}}");
            assert_eq!(metric(&metrics, &series), Some(count), "{state}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn breaker_12_readers_see_the_state_without_asking_anybody() {
        let circuit = circuit(&metrics());
        let running = tokio::spawn({
            let circuit = Arc::clone(&circuit);
            async move { circuit.run().await }
        });
        tokio::task::yield_now().await;
        let mut seen = circuit.watch();
        end(&circuit, Verdict::Failure);
        assert!(seen.has_changed().unwrap());
        assert!(matches!(circuit.state(), BreakerState::Open { .. }));
        advance(Duration::from_secs(10)).await;
        let half_open = |state: &BreakerState| *state == BreakerState::HalfOpen;
        seen.wait_for(half_open).await.unwrap();
        let admission = circuit.admit(Rpc::Register, Kind::Call).unwrap();
        assert!(admission.is_probe());
        drop(admission);
        assert_eq!(circuit.state(), BreakerState::HalfOpen, "it said nothing");
        assert!(seen.has_changed().unwrap(), "its place is free");
        end(&circuit, Verdict::Success);
        assert_eq!(circuit.state(), BreakerState::Closed);
        running.abort();
    }
}
