//! Rules about several keys at once: what refuses the start although every value fits (BOOT).
//!
//! Responsible for judging the configuration in force. Must never change it.

mod cluster;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use super::document::numbered;
use super::effective::Loader;
use super::origin::OriginMode;
use super::problem::Problem;
use super::refusal::Refusal;
use super::schema::{ClientAuth, Config, Listener, ListenerTls, PeerPin, Scheme, Service};
use super::shedding::Defect;

/// An inventory report can reach 5.6 MiB.
const LARGEST_REPORT_BYTES: usize = 5_872_026;

/// The server keeps no more of a `cluster_id`.
const CLUSTER_ID_BYTES: usize = 64;

/// Judges what is in force and adds what it finds to the problems.
pub(super) fn judge(loader: &mut Loader<'_>, config: &Config) {
    let mut found = Vec::new();
    {
        let mut judge = Judge {
            loader,
            config,
            found: &mut found,
        };
        judge.agents_are_served();
        judge.names_and_ports();
        for (index, listener) in config.listeners.iter().enumerate() {
            judge.services(index, listener);
            judge.tls(index, listener);
            judge.management_is_guarded(index, listener);
            judge.limits(index, listener);
            judge.origin(index, listener);
        }
        judge.upstream();
        judge.upstream_tls();
        judge.peers();
        judge.cluster_id();
        judge.cluster();
        judge.shedding();
    }
    loader.problems.append(&mut found);
}

struct Judge<'a, 's> {
    loader: &'a Loader<'s>,
    config: &'a Config,
    found: &'a mut Vec<Problem>,
}

impl Judge<'_, '_> {
    fn refuse(&mut self, why: Refusal, key: &str, fault: String, fix: &str) {
        self.found.push(Problem::refuses(
            why,
            self.loader.place_of(key),
            key,
            fault,
            fix,
        ));
    }

    fn warn(&mut self, key: &str, fault: String, fix: &str) {
        self.found
            .push(Problem::warns(self.loader.place_of(key), key, fault, fix));
    }

    /// Whether a value was refused before: what follows from it would only confuse.
    fn is_refused(&self, key: &str) -> bool {
        self.loader.problems.iter().any(|problem| {
            problem.is_refusal() && problem.key.strip_prefix(key).is_some_and(is_item)
        })
    }

    /// The same of all keys of a table.
    fn is_any_refused(&self, table: &str) -> bool {
        let problems = &self.loader.problems;
        problems
            .iter()
            .any(|problem| problem.is_refusal() && problem.key.starts_with(table))
    }

    /// Whether a key of this table was refused before.
    fn is_refused_inside(&self, table: &str) -> bool {
        self.loader.problems.iter().any(|problem| {
            let rest = problem.key.strip_prefix(table);
            problem.is_refusal() && rest.is_some_and(|rest| rest.starts_with('.'))
        })
    }

    /// BOOT-1.
    fn agents_are_served(&mut self) {
        let listeners = &self.config.listeners;
        let unknown =
            self.is_refused("listener") || listeners.iter().any(|l| l.services.is_empty());
        let served = listeners
            .iter()
            .any(|listener| listener.serves(Service::Agent));
        if !served && !unknown && !self.config.lab.allow_no_listeners {
            let fix = "add a [[listener]] with services = [\"agent\"]";
            self.refuse(
                Refusal::NoListeners,
                "listener",
                "serves no agents anywhere".into(),
                fix,
            );
        }
    }

    /// BOOT-7: what a listener serves is never guessed.
    fn services(&mut self, index: usize, listener: &Listener) {
        let key = numbered("listener.services", index);
        if listener.services.is_empty() && !self.is_refused(&key) {
            let fix = "add services = [\"agent\"], [\"management\"] or [\"node\"]";
            self.refuse(Refusal::NoServices, &key, "is missing".into(), fix);
        }
    }

    /// BOOT-6, and the same for the ports of metrics and health.
    fn names_and_ports(&mut self) {
        let mut names = HashMap::new();
        let mut ports: Vec<(String, SocketAddr)> = Vec::new();
        for (index, listener) in self.config.listeners.iter().enumerate() {
            let key = numbered("listener.name", index);
            if let Some(first) = names.insert(&listener.name, index) {
                let fault = format!("is the name of listener[{first}] too");
                self.refuse(
                    Refusal::DuplicateName,
                    &key,
                    fault,
                    "give each listener its own name",
                );
            }
            self.port(
                &mut ports,
                numbered("listener.address", index),
                listener.address,
            );
        }
        let observe = &self.config.observe;
        self.port(
            &mut ports,
            "observe.metrics_address".into(),
            observe.metrics_address,
        );
        self.port(
            &mut ports,
            "observe.health_address".into(),
            observe.health_address,
        );
    }

    fn port(&mut self, ports: &mut Vec<(String, SocketAddr)>, key: String, address: SocketAddr) {
        if address.port() == 0 || self.is_refused(&key) {
            return;
        }
        let of_listener = |key: &str| key.starts_with("listener");
        let clash = ports.iter().find(|(other_key, other)| {
            other.port() == address.port()
                && ((of_listener(&key) && of_listener(other_key))
                    || overlap(other.ip(), address.ip()))
        });
        if let Some((other, _)) = clash {
            let fault = format!("has port {}, as {other} has", address.port());
            self.refuse(
                Refusal::DuplicatePort,
                &key,
                fault,
                "give each its own port",
            );
        }
        ports.push((key, address));
    }

    /// BOOT-4.
    fn tls(&mut self, index: usize, listener: &Listener) {
        let table = numbered("listener.tls", index);
        let there = self.loader.document.tables.contains_key(&table);
        let complete = listener.tls.as_ref().is_some_and(|tls| tls.is_complete());
        if there && !complete && !self.is_refused_inside(&table) {
            let fault = "lacks cert_file, key_file or ca_file: it needs all three".to_owned();
            let fix = "name the three files, or delete the table and serve plaintext";
            self.refuse(Refusal::TlsIncomplete, &table, fault, fix);
        }
        let Some(tls) = &listener.tls else { return };
        let key = numbered("listener.tls.enforce_agent_identity", index);
        if tls.enforce_agent_identity && !listener.serves(Service::Agent) {
            self.warn(&key, "has no effect: no agents are served here".into(), "");
        } else if tls.enforce_agent_identity && tls.client_auth == ClientAuth::None {
            let fault = "is true, and no certificate is asked for".to_owned();
            let fix = "set client_auth = \"request\", so that agents can enrol without one";
            self.refuse(Refusal::AgentIdentityWithoutCertificate, &key, fault, fix);
        }
        if tls.client_auth == ClientAuth::None && !tls.crl_files.is_empty() {
            let key = numbered("listener.tls.crl_files", index);
            let fault = "has no effect: client_auth = \"none\" asks for no certificate".to_owned();
            self.warn(&key, fault, "");
        }
    }

    /// BOOT-9, but for MGMT-AUTH-13: that needs the files.
    fn management_is_guarded(&mut self, index: usize, listener: &Listener) {
        if !listener.serves(Service::Management) || !listener.is_exposed() {
            return;
        }
        let there = numbered("listener.tls", index);
        let there = self.loader.document.tables.contains_key(&there);
        let (why, fault, fix) = match &listener.tls {
            Some(tls) if tls.client_auth == ClientAuth::Require => return,
            Some(_) => (
                Refusal::ManagementWithoutClientAuth,
                "serves management beyond loopback to peers without a certificate",
                "set client_auth = \"require\"",
            ),
            None if there => return,
            None => (
                Refusal::ManagementWithoutTls,
                "serves management beyond loopback without mutual TLS",
                "add [listener.tls] with client_auth = \"require\", or listen on 127.0.0.1",
            ),
        };
        let key = numbered("listener.address", index);
        if self.config.lab.allow_insecure_management {
            self.warn(
                &key,
                fault.into(),
                "lab.allow_insecure_management lets it start",
            );
        } else if !self.is_refused(&key) {
            self.refuse(why, &key, fault.into(), fix);
        }
    }

    /// ORIGIN-8, BOOT-8.
    fn origin(&mut self, index: usize, listener: &Listener) {
        let origin = &listener.origin;
        let mode_key = numbered("listener.origin.mode", index);
        let mode = origin.mode.name();
        let sources_key = numbered("listener.origin.sources", index);
        if origin.mode == OriginMode::Transport {
            if !origin.sources.is_empty() {
                self.warn(&sources_key, "has no effect in mode transport".into(), "");
            }
        } else if origin.sources.is_empty() && !self.is_refused(&sources_key) {
            let fault = format!("is empty: mode {mode} believes nobody then");
            self.refuse(
                Refusal::OriginWithoutSources,
                &sources_key,
                fault,
                "name the proxies",
            );
        }
        if origin.trusted_hops > 0 && origin.mode != OriginMode::ForwardedFor {
            let key = numbered("listener.origin.trusted_hops", index);
            self.warn(&key, format!("has no effect in mode {mode}"), "");
        }
        let guarded = [
            (Service::Management, "management", "a management caller"),
            (Service::Node, "nodes", "a node"),
        ];
        let guarded = guarded
            .into_iter()
            .find(|(service, ..)| listener.serves(*service));
        if origin.mode != OriginMode::Transport
            && let Some((_, what, caller)) = guarded
        {
            let fault = format!("is {mode} on a listener that serves {what}");
            let fix = &format!("use transport: {caller} is who connects");
            self.refuse(Refusal::OriginOfManagement, &mode_key, fault, fix);
        }
        // LSN-11: a router that ends the agents' HTTP/2 would show its own certificate.
        let asks = |tls: &ListenerTls| tls.client_auth != ClientAuth::None;
        if origin.mode == OriginMode::ForwardedFor && listener.tls.as_ref().is_some_and(asks) {
            let fault =
                "is forwarded_for on a listener that asks for client certificates".to_owned();
            let fix = "set client_auth = \"none\", or use proxy_protocol";
            self.refuse(Refusal::OriginBesideCertificates, &mode_key, fault, fix);
        }
    }

    fn limits(&mut self, index: usize, listener: &Listener) {
        let limits = &listener.limits;
        let message = limits.max_message_bytes;
        let memory = limits.max_connection_memory_bytes;
        if memory < message {
            let key = numbered("listener.limits.max_connection_memory_bytes", index);
            let fault = format!("is {memory}, less than max_message_bytes {message}");
            self.refuse(
                Refusal::BadLimits,
                &key,
                fault,
                "raise it or lower max_message_bytes",
            );
        }
        if listener.serves(Service::Agent) && message < LARGEST_REPORT_BYTES {
            let key = numbered("listener.limits.max_message_bytes", index);
            let fault = format!("is {message}, less than an inventory report can have");
            self.warn(&key, fault, "at least 5872026 lets every report pass");
        }
        if listener.serves(Service::Agent) && limits.reserved_connections > 0 {
            let key = numbered("listener.limits.reserved_connections", index);
            let fault = "has no effect on a listener that serves agents".to_owned();
            self.warn(&key, fault, "serve management on a listener of its own");
        }
    }

    /// BOOT-12.
    fn upstream(&mut self) {
        let key = "upstream.endpoints";
        let upstream = &self.config.upstream;
        let allowed = self.config.lab.allow_no_upstream;
        if upstream.endpoints.is_empty() && !allowed && !self.is_refused(key) {
            let fix = "add endpoints = [\"http://host:port\"]";
            self.refuse(Refusal::NoUpstream, key, "names no server".into(), fix);
        }
    }

    /// BOOT-17, and the files that SHED-5 skips.
    fn shedding(&mut self) {
        let memory = &self.config.memory;
        for (path, why) in &self.loader.source.machine.unreadable {
            let fault = format!("skips a limit: {} {why}", path.display());
            let fix = "set high_water_bytes below the limit";
            self.warn("memory.shedding", fault, fix);
        }
        let both = [
            (
                "high_water",
                memory.shedding.high_fraction,
                memory.shedding.high_bytes,
            ),
            (
                "low_water",
                memory.shedding.low_fraction,
                memory.shedding.low_bytes,
            ),
        ];
        for (mark, fraction, bytes) in both {
            if fraction.is_some() && bytes.is_some() {
                let key = format!("memory.shedding.{mark}_fraction");
                let fault = format!("has no effect beside {mark}_bytes");
                self.warn(&key, fault, "delete one of them");
            }
        }
        let refused = self.is_any_refused("memory.shedding.");
        if let Err(Defect { key, fault }) = memory.shedding.judge(memory.limit)
            && !refused
        {
            self.refuse(Refusal::SheddingMarks, key, fault, "correct the marks");
        }
    }

    /// BOOT-13, and what does not go together.
    fn upstream_tls(&mut self) {
        let upstream = &self.config.upstream;
        let tls = &upstream.tls;
        let (ca, cert, key) = (&tls.ca_file, &tls.cert_file, &tls.key_file);
        let named = |path: &std::path::Path| !path.as_os_str().is_empty();
        if named(cert) != named(key) {
            let key = "upstream.tls.cert_file";
            let fault = "and key_file go together: one of them is missing".to_owned();
            self.refuse(
                Refusal::HalfUpstreamCertificate,
                key,
                fault,
                "name both, or neither",
            );
        }
        if upstream.scheme == Scheme::Http {
            if named(ca) || named(cert) {
                let fault = "has no effect: the endpoints are http://".to_owned();
                let fix = "use https:// endpoints for TLS to the server";
                self.warn("upstream.tls", fault, fix);
            }
            return;
        }
        if named(ca) {
            return;
        }
        let key = "upstream.tls.ca_file";
        if self.config.lab.allow_unverified_upstream {
            let fault = "is missing: whoever answers at an endpoint is taken for the server".into();
            self.warn(key, fault, "lab.allow_unverified_upstream lets it start");
        } else if !self.is_refused(key) {
            let fault = "is missing: https endpoints are verified by a CA of their own".into();
            self.refuse(
                Refusal::UnverifiedUpstream,
                key,
                fault,
                "name the server's CA",
            );
        }
    }

    /// What of `[management]` would only show when a peer is refused.
    fn peers(&mut self) {
        let management = &self.config.management;
        let identity = &management.peer_identity;
        let digits = identity.strip_prefix("yuzu://").unwrap_or_default();
        if digits
            .trim_end_matches("/server")
            .contains(|c: char| c.is_ascii_lowercase())
        {
            let fault = "has hex digits in lower case: no certificate matches them".to_owned();
            self.warn(
                "management.peer_identity",
                fault,
                "write them in upper case",
            );
        }
        for (index, pin) in management.peer_pins.iter().enumerate() {
            if *pin == PeerPin::Malformed {
                let key = format!("management.peer_pins[{index}]");
                let fault = "can't be read and pins nothing".to_owned();
                let fix = "write { cert_file = \"path\" } or { spki_sha256 = \"64 hex digits\" }";
                self.warn(&key, fault, fix);
            }
        }
    }

    fn cluster_id(&mut self) {
        let bytes = self.config.node.cluster_id.len();
        if bytes > CLUSTER_ID_BYTES {
            let fault = format!("is a string of {bytes} bytes, more than {CLUSTER_ID_BYTES}");
            self.warn("node.cluster_id", fault, "the server shows it as unknown");
        }
    }
}

/// Whether what follows a key is nothing or an item of its list.
fn is_item(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('[')
}

fn overlap(a: IpAddr, b: IpAddr) -> bool {
    let (a, b) = (a.to_canonical(), b.to_canonical());
    a == b || a.is_unspecified() || b.is_unspecified()
}
