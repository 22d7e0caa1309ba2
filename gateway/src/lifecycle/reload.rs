//! Another configuration for a running node.
//!
//! Responsible for all or nothing: what would refuse the start refuses the reload, and then nothing
//! has changed (RELOAD-1). Hands each room its part; no connection and no session is touched. Must
//! never read the configuration itself, nor know which key is live: that is [`config::reload`].

use tracing::{error, info, warn};

use super::Gateway;
use super::certificates::Reading;
use super::start::{as_served, say_ceiling, table_limits};
use crate::config::{self, Changes, Config, Effect, Loaded, PeerRefusal, Problem, Refused};
use crate::observe::log;

impl Gateway {
    /// Puts a configuration that was loaded again in force, as far as that goes without a restart,
    /// and reads all certificate files again. Reloads are made one after the other.
    ///
    /// # Errors
    /// The loaded configuration was refused, or does not go with what stays in force. Nothing has
    /// changed then. Each reason was logged.
    pub async fn reload(&self, loaded: Result<Loaded, Refused>) -> Result<Changes, Refused> {
        let outcome = match loaded {
            Ok(loaded) => self.replace(loaded).await,
            Err(refused) => Err(refused),
        };
        let metrics = &self.metrics;
        metrics
            .config_last_reload_failed
            .set(outcome.is_err().into());
        match &outcome {
            Ok(changes) => {
                metrics.config_generation.inc();
                say_changes(changes, metrics.config_generation.get());
            }
            Err(refused) => say_refused(refused),
        }
        outcome
    }

    async fn replace(&self, loaded: Loaded) -> Result<Changes, Refused> {
        let wanted = loaded.config;
        // Files of `wanted` that wait for a restart are not those that are served.
        let followed = config::reload(&self.in_force(), &wanted).config;
        let reading = Reading::of(&followed).await;
        for warning in &loaded.warnings {
            if warning.effect == Effect::Warns {
                warn!("{warning}");
            }
        }
        let mut in_force = self.in_force();
        let changes = config::reload(&in_force, &wanted);
        let certificates = &self.tasks.certificates;
        certificates
            .renew(&changes.config, reading)
            .map_err(refused_by_files)?;
        self.retune(&in_force, &changes.config);
        in_force.clone_from(&changes.config);
        Ok(changes)
    }

    /// Gives every room its part.
    fn retune(&self, before: &Config, config: &Config) {
        let Config {
            node: _,
            listeners,
            upstream,
            notify,
            heartbeat,
            replay: _,
            session,
            command,
            memory,
            // Its part of the certificates.
            management: _,
            // Read when it is needed.
            shutdown: _,
            observe,
            cluster,
            shift,
            routing,
            lab: _,
        } = config;
        let config::Observe {
            metrics_address: _,
            health_address: _,
            gauge_interval,
            metrics_per_peer: _,
            log_level,
            log_format: _,
        } = observe;
        // The most verbose first, or last: what follows is to be read.
        if let Err(error) = log::set_level(log_level) {
            warn!("observe.log_level: {error}; the level stays as it is");
        }
        for (index, lowered) in as_served(listeners, cluster).enumerate() {
            let (before, wanted) = (&before.listeners[index], &listeners[index]);
            if before.limits.max_connections != wanted.limits.max_connections {
                say_ceiling(wanted, &lowered);
            }
            self.listeners[index].1.retune(&lowered);
        }
        self.upstream.retune(upstream);
        self.owners.recovery.retune(upstream);
        self.owners.supervisor.retune(session);
        self.registry.retune(table_limits(session));
        self.notifier.retune(notify);
        self.batcher.retune(heartbeat);
        self.replayer.retune(config);
        self.router.retune(command, routing);
        if let Some(served) = &self.served {
            served.retune(routing);
        }
        self.memory.retune(memory.max_unfinished_request_bytes);
        self.tasks.shedder.retune(memory);
        self.tasks.sampler.retune(*gauge_interval);
        self.agents.retune(*gauge_interval);
        if let Some(shifter) = &self.shifter {
            shifter.retune(*shift);
        }
    }
}

fn refused_by_files(refusals: Vec<PeerRefusal>) -> Refused {
    Refused {
        problems: refusals.into_iter().map(Problem::from).collect(),
    }
}

fn say_changes(changes: &Changes, generation: i64) {
    let live = match changes.live.is_empty() {
        true => "nothing".to_owned(),
        false => changes.live.join(", "),
    };
    info!("Configuration reloaded, generation {generation}; changed: {live}");
    if !changes.restart.is_empty() {
        warn!(
            "Configuration reloaded, but these keep their values until a restart: {}",
            changes.restart.join(", ")
        );
    }
}

fn say_refused(refused: &Refused) {
    for problem in &refused.problems {
        match problem.effect {
            Effect::Refuses(why) => {
                error!("Reload refused, nothing has changed: {why}: {problem}");
            }
            Effect::Warns => warn!("{problem}"),
            Effect::SaidAtStart => {}
        }
    }
}
