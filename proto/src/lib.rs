//! The contracts of the gateway.
//!
//! Responsible for the generated messages, clients and server traits of the four services
//! ([`agent`], [`server`], [`gateway`], [`node`]) and for what a relay needs besides:
//!
//! - [`verbatim`]: a message carried as the bytes that came in, through tonic as well;
//! - [`peek`]: the few fields that routing needs, read without decoding the rest;
//! - [`wire`]: the walk over an encoded message, edits that leave all else untouched, and gRPC
//!   frame prefixes.
//!
//! Must never re-encode a message that is only relayed: a field that these contracts do not know
//! passes through untouched. Must never print what LOG-3 forbids: messages that hold it have a
//! `Debug` that gives their size only.

pub mod peek;
mod redact;
pub mod verbatim;
pub mod wire;

/// Types shared by the services (`yuzu.common`).
pub mod common {
    /// Package `yuzu.common.v1`.
    #[allow(missing_docs, unreachable_pub, clippy::all)]
    pub mod v1 {
        tonic::include_proto!("yuzu.common.v1");
    }
}

/// The agent's side (`yuzu.agent`).
pub mod agent {
    /// Package `yuzu.agent.v1`.
    #[allow(missing_docs, unreachable_pub, clippy::all)]
    pub mod v1 {
        tonic::include_proto!("yuzu.agent.v1");
    }
}

/// The control plane's side, as seen by the gateway (`yuzu.gateway`).
pub mod gateway {
    /// Package `yuzu.gateway.v1`.
    #[allow(missing_docs, unreachable_pub, clippy::all)]
    pub mod v1 {
        tonic::include_proto!("yuzu.gateway.v1");
    }
}

/// The management API (`yuzu.server`).
pub mod server {
    /// Package `yuzu.server.v1`.
    #[allow(missing_docs, unreachable_pub, clippy::all)]
    pub mod v1 {
        tonic::include_proto!("yuzu.server.v1");
    }
}

/// Gateway node to gateway node (`yuzu.node`).
pub mod node {
    /// Package `yuzu.node.v1`.
    #[allow(missing_docs, unreachable_pub, clippy::all)]
    pub mod v1 {
        tonic::include_proto!("yuzu.node.v1");
    }
}

/// Full method paths, as they stand in `:path`.
pub mod path {
    /// `AgentService.Register`.
    pub const REGISTER: &str = "/yuzu.agent.v1.AgentService/Register";
    /// `AgentService.Subscribe`.
    pub const SUBSCRIBE: &str = "/yuzu.agent.v1.AgentService/Subscribe";
    /// `AgentService.Heartbeat`.
    pub const HEARTBEAT: &str = "/yuzu.agent.v1.AgentService/Heartbeat";
    /// `AgentService.ReportInventory`.
    pub const REPORT_INVENTORY: &str = "/yuzu.agent.v1.AgentService/ReportInventory";
    /// `ManagementService.ListAgents`.
    pub const LIST_AGENTS: &str = "/yuzu.server.v1.ManagementService/ListAgents";
    /// `ManagementService.GetAgent`.
    pub const GET_AGENT: &str = "/yuzu.server.v1.ManagementService/GetAgent";
    /// `ManagementService.SendCommand`.
    pub const SEND_COMMAND: &str = "/yuzu.server.v1.ManagementService/SendCommand";
    /// `ManagementService.WatchEvents`.
    pub const WATCH_EVENTS: &str = "/yuzu.server.v1.ManagementService/WatchEvents";
    /// `ManagementService.QueryInventory`.
    pub const QUERY_INVENTORY: &str = "/yuzu.server.v1.ManagementService/QueryInventory";
    /// `GatewayUpstream.ProxyRegister`.
    pub const PROXY_REGISTER: &str = "/yuzu.gateway.v1.GatewayUpstream/ProxyRegister";
    /// `GatewayUpstream.BatchHeartbeat`.
    pub const BATCH_HEARTBEAT: &str = "/yuzu.gateway.v1.GatewayUpstream/BatchHeartbeat";
    /// `GatewayUpstream.ProxyInventory`.
    pub const PROXY_INVENTORY: &str = "/yuzu.gateway.v1.GatewayUpstream/ProxyInventory";
    /// `GatewayUpstream.NotifyStreamStatus`.
    pub const NOTIFY_STREAM_STATUS: &str = "/yuzu.gateway.v1.GatewayUpstream/NotifyStreamStatus";
    /// `GatewayUpstream.ForwardGuardianMessage`.
    pub const FORWARD_GUARDIAN: &str = "/yuzu.gateway.v1.GatewayUpstream/ForwardGuardianMessage";
    /// `NodeService.Hello`.
    pub const NODE_HELLO: &str = "/yuzu.node.v1.NodeService/Hello";
    /// `NodeService.Prove`.
    pub const NODE_PROVE: &str = "/yuzu.node.v1.NodeService/Prove";
    /// `NodeService.ShareAgents`.
    pub const NODE_SHARE_AGENTS: &str = "/yuzu.node.v1.NodeService/ShareAgents";
    /// `NodeService.Forward`.
    pub const NODE_FORWARD: &str = "/yuzu.node.v1.NodeService/Forward";
    /// `NodeService.Offers`.
    pub const NODE_OFFERS: &str = "/yuzu.node.v1.NodeService/Offers";
    /// `NodeService.Accept`.
    pub const NODE_ACCEPT: &str = "/yuzu.node.v1.NodeService/Accept";
}

/// Metadata key of the session an agent attaches to, and of the session a replay presents.
pub const SESSION_HEADER: &str = "x-yuzu-session-id";

/// Reserved plugin name of Guardian frames.
pub const GUARDIAN_PLUGIN: &str = "__guard__";

/// The wire capability this gateway announces with every stream-status notice.
pub const WIRE_CAPABILITY_DISPATCH_TAG: &str = "command_dispatch_tag_v1";
