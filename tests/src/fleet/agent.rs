//! The life of one agent: connect, register, subscribe, and again after a loss.

use super::backoff::Backoff;
use super::counters::{Held, Outcome, Rpc};
use super::session::{Ended, Session};
use super::{Misbehaviour, Shared, message};
use crate::raw::{Answer, CallError, Connection, Request};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use yuzu_proto::agent::v1::RegisterResponse;
use yuzu_proto::{SESSION_HEADER, path};

/// Why there is no session.
enum Failed {
    /// To be tried again after this wait.
    Retry(Duration),
    /// Refused for good.
    Denied,
}

/// An open connection, counted.
struct Link {
    connection: Connection,
    _connected: Held,
}

struct Agent {
    shared: Arc<Shared>,
    index: usize,
    id: String,
    backoff: Backoff,
    /// Gateways that it has turned its back on.
    tried: usize,
    /// Kept for the next attempt while it lives, as a gRPC channel does.
    link: Option<Link>,
}

/// Lives until told to stop or refused for good.
pub(super) async fn live(shared: Arc<Shared>, index: usize, mut stop: watch::Receiver<bool>) {
    let id = shared.options.agent_id(index);
    let backoff = Backoff::new(shared.options.backoff_scale);
    let mut agent = Agent {
        shared,
        index,
        id,
        backoff,
        tried: 0,
        link: None,
    };
    loop {
        let opened = tokio::select! {
            biased;
            () = stopped(&mut stop) => return,
            opened = agent.open() => opened,
        };
        let wait = match opened {
            Err(Failed::Denied) => {
                agent.shared.counters.add(&agent.shared.counters.denied);
                return;
            }
            Err(Failed::Retry(wait)) => wait,
            Ok(session) => {
                // Kept beside the session, so that the next attempt finds it.
                let Some(link) = &agent.link else { return };
                match session
                    .run(&link.connection, &mut agent.backoff, &mut stop)
                    .await
                {
                    Ended::Stopped => return,
                    Ended::Lost => agent.backoff.failed(),
                    Ended::Forced => agent.backoff.forced(),
                }
            }
        };
        agent.shared.counters.add(&agent.shared.counters.reconnects);
        tokio::select! {
            () = sleep(wait) => {}
            () = stopped(&mut stop) => return,
        }
    }
}

/// Completes when the fleet is told to stop, or is dropped.
pub(super) async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

impl Agent {
    /// Connect if needed, Register, Subscribe.
    async fn open(&mut self) -> Result<Session, Failed> {
        let shared = self.shared.clone();
        let counters = &shared.counters;
        self.connect().await?;
        let Some(link) = &self.link else {
            return Err(Failed::Denied);
        };
        if shared.options.misbehaviour == Misbehaviour::NeverRegister {
            link.connection.closed().await;
            return Err(self.retry());
        }
        let request = Request::new(path::REGISTER).timeout(shared.options.call_timeout);
        let options = &shared.options;
        let body = message::register(&options.enrollment_token, options.register_bytes, &self.id);
        let answer = link.connection.unary_framed(request, body).await;
        counters.ended(Rpc::Register, outcome_of(&answer));
        let session_id = self.accepted(answer)?;
        counters.add(&counters.registrations);
        self.backoff.registered();

        let Some(link) = &self.link else {
            return Err(self.retry());
        };
        let request = Request::new(path::SUBSCRIBE).metadata(SESSION_HEADER, session_id.as_bytes());
        match link.connection.stream(request).await {
            Ok((sender, receiver)) => match receiver.status() {
                Some(status) => {
                    counters.ended(Rpc::Subscribe, Outcome::Status(status.code));
                    Err(self.retry())
                }
                None => {
                    counters.add(&counters.subscriptions);
                    let gateway = shared.options.address(self.tried);
                    shared.diary.opened(self.index, gateway, &session_id);
                    Ok(Session::new(
                        &shared, self.index, session_id, sender, receiver,
                    ))
                }
            },
            Err(error) => {
                counters.ended(Rpc::Subscribe, Outcome::of(&error));
                Err(self.retry())
            }
        }
    }

    async fn connect(&mut self) -> Result<(), Failed> {
        if self
            .link
            .as_ref()
            .is_some_and(|link| !link.connection.is_closed())
        {
            return Ok(());
        }
        if self.link.take().is_some() {
            self.tried += 1;
        }
        sleep_until(self.shared.pacer.reserve(Instant::now())).await;
        let dialled = tokio::spawn(dial(Arc::clone(&self.shared), self.tried));
        match dialled.await {
            Ok(Some(link)) => {
                self.link = Some(link);
                Ok(())
            }
            Ok(None) | Err(_) => {
                self.tried += 1;
                Err(self.retry())
            }
        }
    }

    /// The session id, when the Register was accepted.
    fn accepted(&mut self, answer: Result<Answer, CallError>) -> Result<String, Failed> {
        let decoded = answer
            .ok()
            .and_then(|a| a.decode::<RegisterResponse>().ok());
        let Some(response) = decoded else {
            return Err(self.retry());
        };
        let pending =
            response.enrollment_status == "pending" || response.reject_reason.contains("pending");
        match response.accepted {
            true if !pending => Ok(response.session_id),
            false if !pending => Err(Failed::Denied),
            _ => Err(self.retry()),
        }
    }

    fn retry(&mut self) -> Failed {
        Failed::Retry(self.backoff.failed())
    }
}

/// A task of its own: the gateway has the connection of an agent that is told to stop meanwhile, so
/// it is counted as well.
async fn dial(shared: Arc<Shared>, tried: usize) -> Option<Link> {
    let (options, counters) = (&shared.options, &shared.counters);
    let opened = Connection::open(options.address(tried), &options.connection).await;
    let Ok(connection) = opened else {
        counters.add(&counters.connect_failures);
        return None;
    };
    counters.add(&counters.connects);
    Some(Link {
        connection,
        _connected: Held::new(counters, |c| &c.connected),
    })
}

/// How a unary call ended.
pub(super) fn outcome_of(answer: &Result<Answer, CallError>) -> Outcome {
    match answer {
        Ok(answer) => Outcome::Status(answer.status.code),
        Err(error) => Outcome::of(error),
    }
}
