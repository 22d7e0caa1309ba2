//! `yuzu-gateway run`: configuration, log, runtime, serve, stop.
//!
//! Responsible for the order of these and for the exit code. Must never hold logic worth a test of
//! its own.

use std::process::ExitCode;

use tokio::runtime::{Handle, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use yuzu_gateway::config::{Config, Effect, Loaded};
use yuzu_gateway::{Gateway, observe};

use crate::cli::{self, FileArgument};
use crate::systemd;

/// Serves until a signal, or until it is no longer worth it; then stops as planned.
pub(crate) fn run(file: &FileArgument) -> ExitCode {
    let Loaded {
        config, warnings, ..
    } = match file.load() {
        Ok(loaded) => loaded,
        Err(refused) => return cli::refuse(&refused),
    };
    if let Err(error) = observe::log::init(&config.observe.log_level, config.observe.log_format) {
        cli::complain(&format!(
            "CRITICAL Refusing to start: observe.log_level: {error}"
        ));
        return cli::REFUSED.into();
    }
    for warning in warnings
        .iter()
        .filter(|warning| warning.effect == Effect::Warns)
    {
        tracing::warn!("{warning}");
    }
    match (runtime("agents", None), runtime("control", Some(1))) {
        (Ok(agents), Ok(control)) => agents.block_on(serve(config, file, control.handle())),
        (Err(error), _) | (_, Err(error)) => failed(&format!("no runtime can start: {error}")),
    }
}

/// `workers`: as many as there are cores unless given.
fn runtime(name: &str, workers: Option<usize>) -> std::io::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = workers {
        builder.worker_threads(workers);
    }
    #[cfg(feature = "jemalloc")]
    builder.on_thread_park(crate::caches::thread_waits);
    builder.thread_name(name).enable_all().build()
}

async fn serve(config: Config, file: &FileArgument, control: &Handle) -> ExitCode {
    let (mut stop, mut again) = match (Stop::new(), signal(SignalKind::hangup())) {
        (Ok(stop), Ok(again)) => (stop, again),
        (Err(error), _) | (_, Err(error)) => {
            return failed(&format!("signals can not be received: {error}"));
        }
    };
    let gateway = match Gateway::start_with(config, control).await {
        Ok(gateway) => gateway,
        Err(error) => return failed(&error.to_string()),
    };
    systemd::ready();
    systemd::feed_watchdog(gateway.pulse());
    let given_up = tokio::select! {
        () = stop.asked() => false,
        () = gateway.given_up() => true,
        () = reload_when_asked(&gateway, &mut again, file) => true,
    };
    systemd::stopping();
    tokio::select! {
        // Agents are told to go elsewhere, and the server of each of them, whatever has failed.
        report = gateway.shutdown() => match report.unsent {
            _ if given_up => cli::GAVE_UP.into(),
            0 => ExitCode::SUCCESS,
            _ => cli::INCOMPLETE.into(),
        },
        () = stop.asked() => {
            tracing::warn!("second signal: stopping at once");
            cli::INCOMPLETE.into()
        }
    }
}

/// Reloads at every SIGHUP, one after the other; never returns. Several that come during a reload
/// are one.
async fn reload_when_asked(gateway: &Gateway, again: &mut Signal, file: &FileArgument) {
    loop {
        if again.recv().await.is_none() {
            return std::future::pending().await;
        }
        let file = file.clone();
        match tokio::task::spawn_blocking(move || file.load()).await {
            // What came of it was logged.
            Ok(loaded) => drop(gateway.reload(loaded).await),
            Err(_panic) => tracing::error!("Reload refused, nothing has changed: it panicked"),
        }
    }
}

fn failed(reason: &str) -> ExitCode {
    tracing::error!("CRITICAL Refusing to start: {reason}");
    cli::FAILED.into()
}

/// SIGTERM or Ctrl-C.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
