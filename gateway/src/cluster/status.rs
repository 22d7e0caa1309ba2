//! The page that shows the cluster as this node sees it.
//!
//! Responsible for its JSON. Must never wait, nor show anything of the secret.

use std::sync::atomic::Ordering;

use http::StatusCode;
use serde_json::{Value, json};

use super::Parts;
use super::members::view::Member;
use crate::observe::http::Reply;

impl Parts {
    pub(super) fn page(&self) -> Reply {
        let mut members: Vec<Value> = {
            let view = self.view();
            view.members().map(row).collect()
        };
        let own = self.mesh.own();
        let (forwarding, forwarded) = self.channels.open_now();
        members.push(json!({
            "name": &*own.name,
            "incarnation": own.incarnation,
            "self": true,
            "address": Some(&*self.mesh.address()).filter(|address| !address.is_empty()),
            "version": env!("CARGO_PKG_VERSION"),
            "protocol": super::PROTOCOL,
            "visibility": visibility(self.names.is_private()),
            "draining": self.draining.load(Ordering::Relaxed),
            "advertise": self.node.advertise.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "sessions": self.registry.len(),
            "forwarding": forwarding,
            "forwarded": forwarded,
        }));
        let state = match self.mesh.has_left() {
            true => "left: the name belongs to an older node",
            false if members.len() == 1 => "alone",
            false => "joined",
        };
        let page = json!({
            "node": &*own.name,
            "state": state,
            "seed_addresses": self.seeds.borrow().addresses.len(),
            "members": members,
        });
        Reply::json(StatusCode::OK, &page)
    }
}

/// The word of VIS-1.
fn visibility(is_private: bool) -> &'static str {
    match is_private {
        true => "private",
        false => "public",
    }
}

fn row(member: &Member) -> Value {
    let labels = &member.labels;
    json!({
        "name": &*member.name,
        "incarnation": member.incarnation,
        "self": false,
        "address": member.address(),
        "version": labels.version,
        "protocol": labels.protocol,
        "visibility": visibility(labels.is_private),
        "draining": labels.draining,
        "advertise": labels.advertise,
        "sessions": labels.sessions,
        "forwarding": labels.forwarding,
        "forwarded": labels.forwarded,
    })
}
