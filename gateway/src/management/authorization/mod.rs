//! Who may manage: the one gate before the management calls (MGMT-6).
//!
//! Responsible for admitting a call by what is published in memory, and for counting every
//! decision (MGMT-AUTH-1). Must never touch a file (CERT-7), and never tell a peer why it was
//! refused.

mod pins;
mod policy;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use arc_swap::ArcSwap;
use tonic::Status;

pub(crate) use pins::{PinChange, Pins};
pub(crate) use policy::{PinnedKeys, Policy};

use crate::edge::connection::Connection;
use crate::edge::tls::ServerTls;
use crate::observe::log::{limit, limited};
use crate::observe::metrics::Metrics;
use policy::{Method, Reason};

/// What is in force for all listeners of this node.
#[derive(Debug)]
pub(crate) struct Authorization {
    judge: ArcSwap<Judge>,
    metrics: Arc<Metrics>,
}

/// Swapped as a whole: no call is judged by an old mode and new pins.
#[derive(Debug, Clone)]
struct Judge {
    policy: Policy,
    pins: PinnedKeys,
}

impl Authorization {
    pub(crate) fn new(policy: Policy, pins: PinnedKeys, metrics: Arc<Metrics>) -> Self {
        Self {
            judge: ArcSwap::from_pointee(Judge { policy, pins }),
            metrics,
        }
    }

    /// Every call from now on is judged by these keys.
    pub(crate) fn pin(&self, pins: PinnedKeys) {
        let policy = self.judge.load().policy.clone();
        self.replace(policy, pins);
    }

    /// Every call from now on is judged by this identity.
    pub(crate) fn identify(&self, identity: Option<String>) {
        let now = self.judge.load();
        self.replace(now.policy.with_identity(identity), now.pins.clone());
    }

    /// Every call from now on is judged by these. For one caller at a time, as the others.
    pub(crate) fn replace(&self, policy: Policy, pins: PinnedKeys) {
        self.judge.store(Arc::new(Judge { policy, pins }));
    }
}

/// The gate of one listener.
#[derive(Debug)]
pub(crate) struct Gate {
    authorization: Arc<Authorization>,
    /// Knows the revocation lists.
    tls: Arc<ServerTls>,
}

impl Gate {
    pub(crate) fn new(authorization: Arc<Authorization>, tls: Arc<ServerTls>) -> Self {
        Self { authorization, tls }
    }

    /// Judges the peer of this connection by what is in force now.
    pub(crate) fn judge(&self, connection: &Connection) -> Result<Method, Reason> {
        let judge = self.authorization.judge.load();
        let peer = connection.peer_certificate();
        let method = judge.policy.judge(&judge.pins, peer)?;
        let listed = peer.is_some_and(|peer| peer.is_ok_and(|peer| self.tls.has_revoked(peer)));
        match listed {
            true => Err(Reason::Revoked),
            false => Ok(method),
        }
    }

    /// How the peer of this connection was admitted, for other nodes (FWD-3): the URI that it is known
    /// by or the digest of its key, never a secret.
    pub(crate) fn identity(&self, method: Method, connection: &Connection) -> String {
        let judge = self.authorization.judge.load();
        match (method, connection.peer_certificate()) {
            (Method::Identity, _) => {
                let uri = judge.policy.identity().unwrap_or_default();
                format!("identity:{uri}")
            }
            (Method::Pin, Some(Ok(peer))) => format!("pin:{}", peer.key),
            (Method::Pin, _) => "pin:".to_owned(),
        }
    }

    /// Judges one call of this connection, and counts it.
    ///
    /// # Errors
    /// Status 16, the same for every reason.
    pub(crate) fn admit(&self, connection: &Connection) -> Result<Method, Status> {
        let metrics = &self.authorization.metrics;
        if self.authorization.judge.load().pins.unresolved() > 0 {
            metrics.mgmt_auth_pin_unresolved_total.inc();
        }
        match self.judge(connection) {
            Ok(method) => {
                metrics
                    .mgmt_auth_admitted_total
                    .with_label_values(&[method.label()])
                    .inc();
                Ok(method)
            }
            Err(reason) => {
                let reason = reason.label();
                metrics
                    .mgmt_auth_rejected_total
                    .with_label_values(&[reason])
                    .inc();
                limited!(
                    warn,
                    limit::MANAGEMENT_PEER_REFUSED,
                    "Management peer refused: {reason}"
                );
                Err(Status::unauthenticated("the peer is not authorized"))
            }
        }
    }
}
