//! What scenarios of several nodes share: a public gateway and two private ones as processes on
//! 127.0.0.1 to 127.0.0.3, a server as a process, and agents that keep diaries.
//!
//! Callers know the public node alone: the private ones have no management listener.

pub(crate) mod answers;
pub(crate) mod load;

use crate::bed::{self, Binaries};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use yuzu_proto::agent::v1::CommandRequest;
use yuzu_tests::fleet::{Fate, Fleet, Opened, Options};
use yuzu_tests::http;
use yuzu_tests::operator::Operator;
use yuzu_tests::process::{GatewayProcess, Lines, Member, free_addresses};
use yuzu_tests::stub_process::StubProcess;

/// The public node.
pub(crate) const PUBLIC: usize = 0;
/// The private nodes.
pub(crate) const PRIVATE: [usize; 2] = [1, 2];
/// For whatever has to happen at all.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// How old a figure of what a node knows may be.
const GAUGE: Duration = Duration::from_millis(1_200);
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Routes of one page.
const PAGE: usize = 1_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Trio {
    server: StubProcess,
    /// By their place in [`PUBLIC`] and [`PRIVATE`].
    pub(crate) nodes: [GatewayProcess; 3],
    pub(crate) groups: Vec<Group>,
}

/// Agents that began at one node.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) home: usize,
    pub(crate) fleet: Fleet,
}

/// Which gateway the server's directory is to name for the agents (VIS-3, VIS-6).
#[derive(Debug, Clone, Copy)]
pub(crate) enum Named {
    /// The public node, for all.
    Public,
    /// The public node is away: the node that each of the others is at.
    Own,
}

/// A route of the server's directory: session and gateway.
type Route = (String, String);

impl Trio {
    /// Three nodes that list each other, without agents.
    pub(crate) async fn start(binaries: &Binaries) -> Result<Self, String> {
        let server = StubProcess::start(&binaries.stub).await?;
        let mut members = Vec::new();
        for number in 1..=3_u8 {
            let address = Ipv4Addr::new(127, 0, 0, number);
            let [node] = free_addresses(address).map_err(|e| format!("{address}: {e}"))?;
            members.push(Member {
                name: name(usize::from(number) - 1),
                address,
                private: number > 1,
                node,
                seeds: Vec::new(),
                secret: "the secret of a trio, 32 characters".into(),
            });
        }
        let seeds = vec![members[PUBLIC].node];
        let start = |member: &Member| {
            let member = Member {
                seeds: seeds.clone(),
                ..member.clone()
            };
            let address = server.address;
            async move {
                let lines = Lines {
                    more: "[command]\nbroadcast = \"mesh\"",
                    agent: "",
                };
                let (gateway, limit) = (&binaries.gateway, LIMIT);
                GatewayProcess::start_member(gateway, address, lines, &member, limit).await
            }
        };
        let [a, b, c] = [&members[0], &members[1], &members[2]].map(start);
        let (a, b, c) = tokio::try_join!(a, b, c)?;
        let trio = Self {
            server,
            nodes: [a, b, c],
            groups: Vec::new(),
        };
        trio.joined().await?;
        Ok(trio)
    }

    /// Adds agents at a node. Those of a private node know the other private one too.
    pub(crate) fn add(&mut self, home: usize, agents: usize, running_frames: u32) {
        let others = match PRIVATE.contains(&home) {
            true => PRIVATE.iter().filter(|&&node| node != home).collect(),
            false => Vec::new(),
        };
        let mut options = Options {
            others: others
                .into_iter()
                .map(|&node| self.nodes[node].agents)
                .collect(),
            prefix: format!("group-{}-", self.groups.len()),
            heartbeat: Some(HEARTBEAT),
            keeps_diary: true,
            ..Options::new(self.nodes[home].agents, agents)
        };
        options.answer.running_frames = running_frames;
        let fleet = Fleet::start(options);
        self.groups.push(Group { home, fleet });
    }

    /// Agents in all.
    pub(crate) fn agents(&self) -> usize {
        self.ids().count()
    }

    /// All agents: group, number in it, id.
    pub(crate) fn ids(&self) -> impl Iterator<Item = (&Group, usize, String)> {
        self.groups.iter().flat_map(|group| {
            let options = group.fleet.options();
            (0..options.agents).map(move |index| (group, index, options.agent_id(index)))
        })
    }

    /// What became of a command at an agent, by its id.
    pub(crate) fn fate(&self, id: &str, command_id: &str) -> Fate {
        let place = id
            .strip_prefix("group-")
            .and_then(|rest| rest.split_once('-'));
        let place =
            place.and_then(|(group, index)| Some((group.parse().ok()?, index.parse().ok()?)));
        let found = place.and_then(|(group, index): (usize, usize)| {
            Some(
                self.groups
                    .get(group)?
                    .fleet
                    .diary()
                    .fate(index, command_id),
            )
        });
        found.unwrap_or_default()
    }

    /// Waits until all agents are subscribed and the server knows exactly their newest sessions, under
    /// the public node's name.
    pub(crate) async fn settled(&self, limit: Duration) -> Result<(), String> {
        for group in &self.groups {
            let all = group.fleet.all_subscribed(limit).await;
            all.map_err(|now| self.failed(&format!("{} agents subscribed", now.subscribed)))?;
        }
        self.told(Named::Public, limit).await
    }

    /// Waits until the server's directory is right.
    pub(crate) async fn told(&self, named: Named, limit: Duration) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        loop {
            let wrong = self.wrong_routes(named).await?;
            if wrong == 0 {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(self.failed(&format!("{wrong} routes of the directory are wrong")));
            }
            sleep(POLL).await;
        }
    }

    /// Waits until the public node knows of all agents of the others. The server may hear of an agent
    /// a moment before that.
    pub(crate) async fn known(&self) -> Result<(), String> {
        // The figure is a second old at most.
        sleep(GAUGE).await;
        let others = self.groups.iter().filter(|group| group.home != PUBLIC);
        let others = others.map(|group| group.fleet.options().agents as u64);
        let wanted = others.sum();
        let known =
            |metrics: &_| bed::value(metrics, "adjacency_agents", &[("node", "all")]) == Ok(wanted);
        let what = "the public node to know all agents";
        bed::gateway_has(&self.nodes[PUBLIC], what, LIMIT, known).await?;
        Ok(())
    }

    /// Agents of which the server's directory does not say what it should, and routes of others.
    pub(crate) async fn wrong_routes(&self, named: Named) -> Result<u64, String> {
        let mut routes = self.routes().await?;
        let mut wrong = 0;
        for (group, index, id) in self.ids() {
            let route = routes.remove(&id);
            let newest = group.fleet.diary().session(index);
            let is_right = match (named, newest) {
                // It stopped, and has said that its own are gone.
                (Named::Own, _) if group.home == PUBLIC => route.is_none(),
                (Named::Own, Some(newest)) => {
                    route == Some((newest.session_id, self.at(newest.gateway)))
                }
                (Named::Public, Some(newest)) => route == Some((newest.session_id, name(PUBLIC))),
                (_, None) => false,
            };
            wrong += u64::from(!is_right);
        }
        Ok(wrong + routes.len() as u64)
    }

    /// The name of the node that agents find here.
    fn at(&self, agents: SocketAddr) -> String {
        let found = self.nodes.iter().position(|node| node.agents == agents);
        found.map(name).unwrap_or_default()
    }

    /// Connected agents as the server knows them.
    async fn routes(&self) -> Result<BTreeMap<String, Route>, String> {
        let mut routes = BTreeMap::new();
        let mut after = String::new();
        loop {
            let path = format!("/routes?state=connected&limit={PAGE}&after={after}");
            let page = self.server.read(&path).await?;
            for route in page["routes"].as_array().ok_or("no routes")? {
                let text = |field: &str| route[field].as_str().unwrap_or_default().to_owned();
                routes.insert(text("agent_id"), (text("session_id"), text("gateway_node")));
            }
            match page["next"].as_str() {
                Some(next) => after = next.to_owned(),
                None => return Ok(routes),
            }
        }
    }

    /// Waits until every node lists all three.
    pub(crate) async fn joined(&self) -> Result<(), String> {
        let deadline = Instant::now() + LIMIT;
        for node in &self.nodes {
            while members(node).await != [name(0), name(1), name(2)] {
                if Instant::now() >= deadline {
                    return Err(self.failed("the nodes do not find each other"));
                }
                sleep(POLL).await;
            }
        }
        Ok(())
    }

    /// A caller at the public node.
    pub(crate) async fn caller(&self) -> Result<Operator, String> {
        let operator = Operator::connect(self.callers()).await;
        operator.map_err(|e| self.failed(&e.to_string()))
    }

    /// Where callers connect.
    pub(crate) fn callers(&self) -> SocketAddr {
        self.nodes[PUBLIC].management
    }

    /// Commands that came twice to an agent, whatever stream they came by.
    pub(crate) fn repeated(&self) -> u64 {
        let diaries = self.groups.iter().map(|group| group.fleet.diary());
        diaries.map(|diary| diary.repeated()).sum()
    }

    /// What went wrong, with the ends of the logs.
    pub(crate) fn failed(&self, what: &str) -> String {
        let logs = self.nodes.iter().enumerate();
        let logs: Vec<_> = logs
            .map(|(node, process)| format!("{}:\n{}", name(node), process.log_end()))
            .collect();
        format!("{what}\n{}", logs.join("\n"))
    }

    /// Ends the agents; the processes end when it is dropped.
    pub(crate) async fn stop(self) {
        for group in self.groups {
            group.fleet.stop().await;
        }
    }
}

impl Group {
    /// The agent's newest stream, if it was opened after this moment.
    pub(crate) fn came_back(&self, index: usize, after: Instant) -> Option<Opened> {
        let newest = self.fleet.diary().session(index);
        newest.filter(|opened| opened.at > after)
    }
}

/// The name of a node.
pub(crate) fn name(node: usize) -> String {
    format!("gw-{}", node + 1)
}

/// The names that a node lists; none while it does not answer.
async fn members(node: &GatewayProcess) -> Vec<String> {
    let Ok(answer) = http::get(node.health, "/cluster").await else {
        return Vec::new();
    };
    let page: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    let rows = page["members"].as_array().cloned().unwrap_or_default();
    let names = rows.iter().filter_map(|row| row["name"].as_str());
    let mut names: Vec<_> = names.map(str::to_owned).collect();
    names.sort_unstable();
    names
}

/// A command that agents answer over this time, each at a moment of its own.
pub(crate) fn command(id: &str, spread: Duration) -> CommandRequest {
    let spread = ("spread_ms".to_owned(), spread.as_millis().to_string());
    CommandRequest {
        command_id: id.into(),
        plugin: "shell".into(),
        parameters: [spread].into(),
        ..CommandRequest::default()
    }
}
