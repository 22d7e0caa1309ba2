//! Whether the gateway is alive and ready, as named checks.
//!
//! Responsible for asking every check and for the answers of `/healthz` and `/readyz`. Must never
//! wait: a check reads a published value, whatever the server does (READY-5).

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::http::{Reply, Routes};

type Check = Box<dyn Fn() -> bool + Send + Sync>;

/// The checks behind `/readyz` (READY-2, READY-3).
pub struct Readiness {
    checks: Vec<(&'static str, Check)>,
}

/// The answers of all checks at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Name and answer, in the order in which the checks were added.
    pub checks: Vec<(&'static str, bool)>,
}

impl Readiness {
    /// Starts without a check.
    pub fn builder() -> ReadinessBuilder {
        ReadinessBuilder { checks: Vec::new() }
    }

    /// Asks every check once. One that panics has failed.
    pub fn report(&self) -> Report {
        let ask = |check: &Check| catch_unwind(AssertUnwindSafe(check)).unwrap_or(false);
        Report {
            checks: self
                .checks
                .iter()
                .map(|(name, check)| (*name, ask(check)))
                .collect(),
        }
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.checks.iter().map(|(name, _)| name))
            .finish()
    }
}

/// Collects checks for a [`Readiness`].
pub struct ReadinessBuilder {
    checks: Vec<(&'static str, Check)>,
}

impl ReadinessBuilder {
    /// Adds a check under a name of READY-3: `registry`, `upstream`, `agent_sup`, `router`,
    /// `sessions_index`, `upstream_tls_files`, `circuit_breaker` or `listeners`. It runs on the
    /// task that answers, so it must return at once.
    #[must_use]
    pub fn check(
        mut self,
        name: &'static str,
        check: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        self.checks.push((name, Box::new(check)));
        self
    }

    /// The finished set.
    pub fn build(self) -> Readiness {
        Readiness {
            checks: self.checks,
        }
    }
}

impl fmt::Debug for ReadinessBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.checks.iter().map(|(name, _)| name))
            .finish()
    }
}

impl Report {
    /// Ready when every check is true. Without any check nothing is known, which is not ready.
    pub fn is_ready(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|(_, passed)| *passed)
    }

    fn reply(&self) -> Reply {
        let checks: Map<String, Value> = self
            .checks
            .iter()
            .map(|(name, passed)| (String::from(*name), json!(passed)))
            .collect();
        let (status, word) = if self.is_ready() {
            (StatusCode::OK, "ready")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "not_ready")
        };
        Reply::json(status, &json!({ "status": word, "checks": checks }))
    }
}

/// `/healthz` (READY-1) and `/readyz` (READY-2). `node` is the gateway's node name.
pub fn routes(node: &str, readiness: Arc<Readiness>) -> Routes {
    let alive = Reply::json(StatusCode::OK, &json!({ "status": "ok", "node": node }));
    Routes::new()
        .get("/healthz", move || alive.clone())
        .get("/readyz", move || readiness.report().reply())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn body(reply: &Reply) -> Value {
        serde_json::from_slice(&reply.body).unwrap()
    }

    #[test]
    fn ready_1_healthz_is_ok_and_names_the_node() {
        let routes = routes("yuzu_gw@\"a", Arc::new(Readiness::builder().build()));
        let reply = routes.call("/healthz").unwrap();
        assert_eq!(reply.status, 200);
        assert_eq!(reply.content_type, "application/json");
        assert_eq!(
            body(&reply),
            json!({ "status": "ok", "node": "yuzu_gw@\"a" })
        );
    }

    #[test]
    fn ready_2_readyz_follows_its_checks() {
        let breaker = Arc::new(AtomicBool::new(true));
        let closed = breaker.clone();
        let readiness = Readiness::builder()
            .check("registry", || true)
            .check("circuit_breaker", move || closed.load(Ordering::Relaxed))
            .build();
        let routes = routes("gw1", Arc::new(readiness));

        let reply = routes.call("/readyz").unwrap();
        assert_eq!(reply.status, 200);
        let checks = json!({ "registry": true, "circuit_breaker": true });
        assert_eq!(body(&reply), json!({ "status": "ready", "checks": checks }));

        breaker.store(false, Ordering::Relaxed);
        let reply = routes.call("/readyz").unwrap();
        assert_eq!(reply.status, 503);
        assert_eq!(reply.content_type, "application/json");
        let checks = json!({ "registry": true, "circuit_breaker": false });
        assert_eq!(
            body(&reply),
            json!({ "status": "not_ready", "checks": checks })
        );

        breaker.store(true, Ordering::Relaxed);
        assert_eq!(routes.call("/readyz").unwrap().status, 200);
        assert_eq!(routes.call("/healthz").unwrap().status, 200);
    }

    #[test]
    fn ready_2_no_checks_is_not_ready() {
        let report = Readiness::builder().build().report();
        assert!(!report.is_ready());
        assert_eq!(
            body(&report.reply()),
            json!({ "status": "not_ready", "checks": {} })
        );
    }

    #[test]
    fn ready_2_a_check_that_panics_has_failed_and_the_others_are_asked() {
        let readiness = Readiness::builder()
            .check("registry", || panic!("broken check"))
            .check("router", || true)
            .build();
        assert_eq!(
            readiness.report().checks,
            [("registry", false), ("router", true)]
        );
    }
}
