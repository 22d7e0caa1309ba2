//! What talks to the server, on one runtime.
//!
//! Responsible for starting it in order, each part with what it needs of the others. Must never know
//! which runtime that is.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::config::Config;
use crate::gateways::Names;
use crate::heartbeat::Batcher;
use crate::notify::{Notifier, Sender};
use crate::observe::metrics::Metrics;
use crate::replay::Replayer;
use crate::session::Registry;
use crate::upstream::Upstream;

/// What talks to the server.
pub(super) struct ControlPlane {
    pub(super) upstream: Upstream,
    pub(super) notifier: Notifier,
    pub(super) replayer: Replayer,
    pub(super) batcher: Batcher,
}

impl ControlPlane {
    /// Starts their tasks on `runtime`.
    pub(super) fn start(
        config: &Config,
        names: &Names,
        registry: &Arc<Registry>,
        metrics: &Arc<Metrics>,
        runtime: &Handle,
    ) -> Self {
        let _entered = runtime.enter();
        let upstream = Upstream::start(&config.upstream, Arc::clone(metrics));
        let held = Arc::clone(registry);
        let notifier = Notifier::start(
            upstream.clone(),
            Sender::new(&config.node, names.clone()),
            &config.notify,
            Arc::clone(metrics),
            move |key| held.holds(&key.agent_id, &key.session_id, &key.stream_home_id),
        );
        let replayer = Replayer::start(
            config,
            Arc::clone(registry),
            upstream.clone(),
            notifier.clone(),
            Arc::clone(metrics),
        );
        let judge = replayer.clone();
        let batcher = Batcher::start(
            upstream.clone(),
            names.clone(),
            &config.heartbeat,
            Arc::clone(metrics),
            move |answer, heartbeats| judge.verdict(answer, heartbeats),
        );
        Self {
            upstream,
            notifier,
            replayer,
            batcher,
        }
    }
}
