//! Helpers of the socket tests.
#![allow(dead_code, missing_docs)]

pub(crate) mod raw;

use std::time::Duration;

use tonic::transport::Channel;
use yuzu_proto::agent::v1::{AgentInfo, HeartbeatRequest, RegisterRequest};
use yuzu_proto::gateway::v1::gateway_upstream_client::GatewayUpstreamClient;
use yuzu_proto::gateway::v1::stream_status_notification::Event;
use yuzu_proto::gateway::v1::{BatchHeartbeatRequest, StreamStatusNotification};
use yuzu_server_stub::{StubConfig, StubServer};

pub(crate) const SOON: Duration = Duration::from_secs(10);

pub(crate) type Client = GatewayUpstreamClient<Channel>;

pub(crate) async fn start() -> (StubServer, Client) {
    start_with(StubConfig::default()).await
}

pub(crate) async fn start_with(config: StubConfig) -> (StubServer, Client) {
    let server = StubServer::start(config).await.unwrap();
    let client = dial(&server).await;
    (server, client)
}

pub(crate) async fn dial(server: &StubServer) -> Client {
    let channel = Channel::from_shared(server.uri())
        .unwrap()
        .connect()
        .await
        .unwrap();
    GatewayUpstreamClient::new(channel)
}

pub(crate) fn registration(agent: &str) -> RegisterRequest {
    let info = AgentInfo {
        agent_id: agent.into(),
        ..Default::default()
    };
    RegisterRequest {
        info: Some(info),
        ..Default::default()
    }
}

pub(crate) async fn enrol(client: &mut Client, agent: &str) -> String {
    let response = client
        .proxy_register(registration(agent))
        .await
        .unwrap()
        .into_inner();
    assert!(response.accepted);
    response.session_id
}

pub(crate) fn notice(agent: &str, session: &str, event: Event) -> StreamStatusNotification {
    StreamStatusNotification {
        agent_id: agent.into(),
        session_id: session.into(),
        event: event as i32,
        gateway_node: "yuzu_gw@10.0.0.1".into(),
        stream_home_id: "h1".into(),
        ..Default::default()
    }
}

pub(crate) fn batch(sessions: &[&str]) -> BatchHeartbeatRequest {
    let beat = |id: &&str| HeartbeatRequest {
        session_id: (*id).into(),
        ..Default::default()
    };
    BatchHeartbeatRequest {
        heartbeats: sessions.iter().map(beat).collect(),
        gateway_node: "yuzu_gw@10.0.0.1".into(),
    }
}
