//! The calls of the upstream service, by name.
//!
//! Responsible for naming one RPC in code, paths, rules and JSON. Must never hold state.

use std::fmt;
use std::str::FromStr;

use yuzu_proto::path;

/// One RPC of `yuzu.gateway.v1.GatewayUpstream`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rpc {
    /// Registration, fresh or with a presented session.
    ProxyRegister,
    /// A chunk of heartbeats.
    BatchHeartbeat,
    /// An inventory report.
    ProxyInventory,
    /// CONNECTED or DISCONNECTED of an agent's stream.
    NotifyStreamStatus,
    /// An unsolicited Guardian frame.
    ForwardGuardianMessage,
}

impl Rpc {
    /// Every RPC, in the order of [`Rpc::index`].
    pub const ALL: [Rpc; 5] = [
        Rpc::ProxyRegister,
        Rpc::BatchHeartbeat,
        Rpc::ProxyInventory,
        Rpc::NotifyStreamStatus,
        Rpc::ForwardGuardianMessage,
    ];

    /// Name as in the service definition.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Rpc::ProxyRegister => "ProxyRegister",
            Rpc::BatchHeartbeat => "BatchHeartbeat",
            Rpc::ProxyInventory => "ProxyInventory",
            Rpc::NotifyStreamStatus => "NotifyStreamStatus",
            Rpc::ForwardGuardianMessage => "ForwardGuardianMessage",
        }
    }

    /// Full method path, as in `:path`.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Rpc::ProxyRegister => path::PROXY_REGISTER,
            Rpc::BatchHeartbeat => path::BATCH_HEARTBEAT,
            Rpc::ProxyInventory => path::PROXY_INVENTORY,
            Rpc::NotifyStreamStatus => path::NOTIFY_STREAM_STATUS,
            Rpc::ForwardGuardianMessage => path::FORWARD_GUARDIAN,
        }
    }

    /// The RPC with this method path.
    #[must_use]
    pub fn from_path(path: &str) -> Option<Rpc> {
        Rpc::ALL.into_iter().find(|rpc| rpc.path() == path)
    }

    /// Position in [`Rpc::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Rpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Rpc {
    type Err = String;

    /// Accepts the exact name; the error lists the names there are.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Rpc::ALL
            .into_iter()
            .find(|rpc| rpc.name() == text)
            .ok_or_else(|| {
                let names: Vec<&str> = Rpc::ALL.iter().map(|rpc| rpc.name()).collect();
                format!("use one of {}", names.join(", "))
            })
    }
}

/// One value per RPC.
#[derive(Debug, Clone, Default)]
pub(crate) struct PerRpc<T>([T; 5]);

impl<T> PerRpc<T> {
    pub(crate) fn build(make: impl Fn(Rpc) -> T) -> Self {
        PerRpc(Rpc::ALL.map(make))
    }

    pub(crate) fn get(&self, rpc: Rpc) -> &T {
        &self.0[rpc.index()]
    }

    pub(crate) fn get_mut(&mut self, rpc: Rpc) -> &mut T {
        &mut self.0[rpc.index()]
    }
}
