//! The RPCs of `GatewayUpstream`, by name, path and label.

use bytes::Bytes;
use prost::Message;
use yuzu_proto::agent::v1::{InventoryAck, RegisterResponse};
use yuzu_proto::gateway::v1::{ForwardGuardianAck, StreamStatusAck};
use yuzu_proto::path;

/// One RPC of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rpc {
    /// `ProxyRegister`.
    Register,
    /// `ProxyInventory`.
    Inventory,
    /// `NotifyStreamStatus`.
    Notify,
    /// `ForwardGuardianMessage`.
    Guardian,
    /// `BatchHeartbeat`.
    BatchHeartbeat,
}

impl Rpc {
    /// All of them, in the order of the metric labels.
    pub const ALL: [Rpc; 5] = [
        Rpc::Register,
        Rpc::Inventory,
        Rpc::Notify,
        Rpc::Guardian,
        Rpc::BatchHeartbeat,
    ];

    /// Value of the metric label `rpc_name`.
    pub fn label(self) -> &'static str {
        match self {
            Rpc::Register => "register",
            Rpc::Inventory => "inventory",
            Rpc::Notify => "notify_stream",
            Rpc::Guardian => "guardian",
            Rpc::BatchHeartbeat => "batch_heartbeat",
        }
    }

    /// The method's name in log lines.
    pub fn method(self) -> &'static str {
        match self {
            Rpc::Register => "ProxyRegister",
            Rpc::Inventory => "ProxyInventory",
            Rpc::Notify => "NotifyStreamStatus",
            Rpc::Guardian => "ForwardGuardianMessage",
            Rpc::BatchHeartbeat => "BatchHeartbeat",
        }
    }

    /// The value of `:path`.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Rpc::Register => path::PROXY_REGISTER,
            Rpc::Inventory => path::PROXY_INVENTORY,
            Rpc::Notify => path::NOTIFY_STREAM_STATUS,
            Rpc::Guardian => path::FORWARD_GUARDIAN,
            Rpc::BatchHeartbeat => path::BATCH_HEARTBEAT,
        }
    }

    /// Whether `answer` is a message of this RPC (REG-13). A heartbeat answer that is none is
    /// no verdict, yet the batch was taken (REPLAY-20).
    pub(crate) fn understands(self, answer: &Bytes) -> bool {
        let answer = answer.clone();
        match self {
            Rpc::Register => RegisterResponse::decode(answer).is_ok(),
            Rpc::Inventory => InventoryAck::decode(answer).is_ok(),
            Rpc::Notify => StreamStatusAck::decode(answer).is_ok(),
            Rpc::Guardian => ForwardGuardianAck::decode(answer).is_ok(),
            Rpc::BatchHeartbeat => true,
        }
    }
}
