//! What the boot lines say about who is trusted (BOOT-22, MGMT-AUTH-12).
//!
//! Responsible for the wording. Must never show more of a file than that it is used.

use tracing::{info, warn};

use super::listeners::Listeners;
use crate::config::{
    ClientAuth, Listener, Management, PeerAuthMode, ResolvedPeer, Scheme, Upstream,
};

/// Denied serials that are shown.
const MAX_SHOWN: usize = 20;

/// How a listener is secured.
pub(in super::super) fn transport(listener: &Listener) -> &'static str {
    match listener.tls.as_ref().map(|tls| tls.client_auth) {
        None => "plaintext",
        Some(ClientAuth::None) => "one-way TLS (no client certificate is asked for)",
        Some(ClientAuth::Request) => "TLS, client certificate requested",
        Some(ClientAuth::Require) => "mutual TLS",
    }
}

/// How the server is spoken to.
pub(in super::super) fn upstream_transport(upstream: &Upstream) -> &'static str {
    let named = |path: &std::path::Path| !path.as_os_str().is_empty();
    let tls = &upstream.tls;
    match upstream.scheme {
        Scheme::Http => "plaintext",
        Scheme::Https if !named(&tls.ca_file) => "unverified TLS (lab)",
        Scheme::Https if named(&tls.cert_file) => "mutual TLS",
        Scheme::Https => "server-authenticated TLS (no client certificate)",
    }
}

/// Who may manage, once, where that is asked.
pub(super) fn say_authorization(
    management: &Management,
    listeners: &Listeners,
    peer: &ResolvedPeer,
) {
    if !listeners.guard_management() {
        return;
    }
    let mode = management.peer_auth_mode;
    let identity = match (mode, &peer.identity) {
        (PeerAuthMode::Pin, _) => "not used (mode pin)",
        (_, Some(_)) => "resolved",
        (_, None) => "unresolved",
    };
    let (pins, denied) = (management.peer_pins.len(), management.peer_denied.len());
    info!(
        "Management peer authorization: mode={mode} identity={identity} pins={pins} \
         denied_serials={denied}"
    );
    if denied > 0 {
        let serials = management.peer_denied.iter().take(MAX_SHOWN);
        let shown: Vec<_> = serials.map(ToString::to_string).collect();
        let more = if denied > MAX_SHOWN { " ..." } else { "" };
        info!(
            "Management peers with these serials are refused: {}{more}",
            shown.join(" ")
        );
    }
    for warning in &peer.warnings {
        warn!("{warning}");
    }
}
