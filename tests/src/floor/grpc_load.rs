//! The load over gRPC: the simulated fleet and an operator that counts answers.

use super::load::{Load, Target};
use crate::fleet::{Fleet, Options};
use crate::operator::Operator;
use crate::raw;
use std::time::Duration;
use yuzu_proto::agent::v1::CommandRequest;

const ATTACH_LIMIT: Duration = Duration::from_secs(120);
const COMMAND_TIMEOUT_S: i32 = 60;

#[derive(Debug)]
pub(super) struct GrpcLoad {
    fleet: Fleet,
    operator: Operator,
}

impl Load for GrpcLoad {
    async fn attach(
        target: &Target,
        prefix: &str,
        agents: usize,
        heartbeat: Option<Duration>,
    ) -> Result<Self, String> {
        let fleet = Fleet::start(Options {
            prefix: prefix.into(),
            heartbeat,
            register_bytes: target.register_bytes,
            connection: raw::Options {
                tls: target.tls.clone(),
                ..raw::Options::default()
            },
            ..Options::new(target.agents, agents)
        });
        fleet
            .all_subscribed(ATTACH_LIMIT)
            .await
            .map_err(|now| format!("only {} agents are subscribed", now.subscribed))?;
        let operator = Operator::connect(target.management).await;
        let operator = operator.map_err(|e| e.to_string())?;
        Ok(Self { fleet, operator })
    }

    async fn broadcast(&self, name: u64) -> Result<usize, String> {
        self.send(&[], name).await
    }

    async fn multicast(&self, name: u64, first: usize) -> Result<Option<usize>, String> {
        let options = self.fleet.options();
        let ids: Vec<_> = (0..first).map(|agent| options.agent_id(agent)).collect();
        let ids: Vec<_> = ids.iter().map(|id| &**id).collect();
        self.send(&ids, name).await.map(Some)
    }

    async fn command(&self, name: u64, agent: usize, _caller: usize) -> Result<(), String> {
        let agent_id = self.fleet.options().agent_id(agent);
        match self.send(&[&agent_id], name).await? {
            1 => Ok(()),
            other => Err(format!("{other} answers of one agent")),
        }
    }

    fn heartbeats(&self) -> u64 {
        self.fleet.snapshot().heartbeats_acked
    }

    async fn detach(self) -> Result<(), String> {
        match self.fleet.stop().await.running {
            0 => Ok(()),
            left => Err(format!("{left} agents do not end")),
        }
    }
}

impl GrpcLoad {
    async fn send(&self, agents: &[&str], name: u64) -> Result<usize, String> {
        let command = CommandRequest {
            command_id: format!("command-{name}"),
            plugin: "shell".into(),
            ..CommandRequest::default()
        };
        let fanout = self.operator.send(agents, command, COMMAND_TIMEOUT_S).await;
        fanout.map_err(|e| e.to_string())?.successes().await
    }
}
