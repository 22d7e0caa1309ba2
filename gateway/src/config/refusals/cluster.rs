//! What refuses a clustered node (BOOT-18, MESH-2).

use super::Judge;
use crate::config::document::numbered;
use crate::config::environment;
use crate::config::refusal::Refusal;
use crate::config::schema::{ClientAuth, Listener, Service, Visibility};

const TLS_TABLE: &str = "cluster.tls";

impl Judge<'_, '_> {
    pub(super) fn cluster(&mut self) {
        self.private_node_has_seeds();
        self.node_listeners_stand_alone();
        let Some((index, listener)) = self.config.node_listener() else {
            return self.seeds_have_a_listener();
        };
        self.secret();
        self.cluster_tls(index, listener);
        let limits = numbered("listener.limits.unregistered_timeout_ms", index);
        if listener.limits.unregistered_timeout.is_zero() {
            let fault = "is 0: whoever does not prove the secret keeps its place".to_owned();
            self.warn(&limits, fault, "the default is 10000");
        }
    }

    /// VIS-2. Nobody else knows of it: it has to look for the others.
    fn private_node_has_seeds(&mut self) {
        let refused = ["cluster.seed_nodes", "cluster.seed_dns_name"];
        let refused = refused.iter().any(|key| self.is_refused(key));
        if self.config.node.visibility == Visibility::Public || refused {
            return;
        }
        if self.config.cluster.seeds().is_empty() {
            let fault = "is private, and no seeds are named: no public node would find it";
            let fix = "name public nodes in cluster.seed_nodes or cluster.seed_dns_name";
            self.refuse(
                Refusal::PrivateWithoutSeeds,
                "node.visibility",
                fault.into(),
                fix,
            );
        }
        if !self.config.node.advertise.is_empty() {
            let fault = "is given to nobody: the node is private".to_owned();
            self.warn("node.advertise", fault, "delete it");
        }
    }

    /// Whoever may speak to a node must not come in by the door of agents.
    fn node_listeners_stand_alone(&mut self) {
        let mut seen = false;
        for (index, listener) in self.config.listeners.iter().enumerate() {
            if !listener.serves(Service::Node) {
                continue;
            }
            let fault = match (listener.services.len() > 1, seen) {
                (true, _) => "serves nodes and something else",
                (false, true) => "is a second listener that serves nodes",
                (false, false) => {
                    seen = true;
                    continue;
                }
            };
            let key = numbered("listener.services", index);
            let fix = "give nodes one listener of their own";
            self.refuse(Refusal::NodeListenerNotAlone, &key, fault.into(), fix);
        }
    }

    fn seeds_have_a_listener(&mut self) {
        let cluster = &self.config.cluster;
        let key = match (cluster.seed_nodes.is_empty(), &cluster.seed_dns_name) {
            (false, _) => "cluster.seed_nodes",
            (true, Some(_)) => "cluster.seed_dns_name",
            (true, None) => return,
        };
        // A listener whose services are not known may be the one.
        let unknown = self.config.listeners.iter().any(|l| l.services.is_empty());
        if !unknown {
            let fault = "names other gateways, and no listener serves nodes".to_owned();
            let fix = "add a [[listener]] with services = [\"node\"], or delete it";
            self.refuse(Refusal::SeedsWithoutListener, key, fault, fix);
        }
    }

    /// BOOT-18. The value is never shown, nor its length.
    fn secret(&mut self) {
        let secret = self.config.cluster.secret.as_ref();
        let Some(weakness) = secret.and_then(|secret| secret.weakness()) else {
            return;
        };
        let key = environment::SECRET;
        if environment::allows_any_secret(self.loader.source) {
            let fix = "YUZU_GW_ALLOW_DEFAULT_COOKIE lets it start";
            self.warn(key, weakness.into(), fix);
        } else {
            let fix = "set it to the same random text on every node: openssl rand -hex 32";
            self.refuse(Refusal::InsecureSecret, key, weakness.into(), fix);
        }
    }

    fn cluster_tls(&mut self, index: usize, listener: &Listener) {
        let tls = &self.config.cluster.tls;
        let table = numbered("listener.tls", index);
        let refused = self.is_refused_inside(TLS_TABLE) || self.is_refused_inside(&table);
        if tls.is_set() && !tls.is_complete() {
            let fault = "lacks ca_file, cert_file or key_file: it needs all three".to_owned();
            let fix = "name the three files, or delete the table";
            self.refuse(Refusal::BadClusterTls, TLS_TABLE, fault, fix);
            return;
        }
        if refused {
            return;
        }
        match &listener.tls {
            Some(served) if tls.is_set() && served.client_auth != ClientAuth::Require => {
                let key = numbered("listener.tls.client_auth", index);
                let fault = "lets nodes in without a certificate".to_owned();
                let fix = "set client_auth = \"require\"";
                self.refuse(Refusal::NodesWithoutClientAuth, &key, fault, fix);
            }
            Some(_) if tls.is_set() => {}
            Some(_) => {
                let fault = "is missing, and the node listener speaks TLS".to_owned();
                let fix = "name ca_file, cert_file and key_file for the way to other gateways";
                self.refuse(Refusal::HalfClusterTls, TLS_TABLE, fault, fix);
            }
            None if tls.is_set() => {
                let key = numbered("listener.tls", index);
                let fault =
                    "is missing, and [cluster.tls] dials other gateways with TLS".to_owned();
                let fix = "add [listener.tls] with client_auth = \"require\"";
                self.refuse(Refusal::HalfClusterTls, &key, fault, fix);
            }
            None if listener.is_exposed() => {
                let key = numbered("listener.address", index);
                let fault = "serves nodes beyond loopback in plaintext".to_owned();
                let fix = "add [listener.tls] and [cluster.tls]";
                self.warn(&key, fault, fix);
            }
            None => {}
        }
    }
}
