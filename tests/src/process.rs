//! A gateway as its own process, for what can only be measured from outside.
//!
//! Responsible for a configuration file, for the process and its log, for its memory and its end.
//! Must never leave the process behind: it is killed when dropped.

use crate::http;
use crate::usage;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

/// Lines of the log shown when the process fails.
const LOG_LINES: usize = 20;
const CONFIG: &str = "gateway.toml";
const LOG: &str = "log";

/// Lines of configuration beside those that every process has.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lines<'a> {
    /// Keys of the agent listener.
    pub agent: &'a str,
    /// Keys of `[upstream]` first, then tables but for `[observe]`.
    pub more: &'a str,
}

/// A node of a cluster, with an address of its own for all its listeners.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its name, which no other process of this one has.
    pub name: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Whether it is a private one: such a node has no management listener.
    pub private: bool,
    /// Where other nodes connect; free.
    pub node: SocketAddr,
    /// Where it looks for others.
    pub seeds: Vec<SocketAddr>,
    /// What all nodes know.
    pub secret: String,
}

/// A running `yuzu-gateway run`.
#[derive(Debug)]
pub struct GatewayProcess {
    child: Child,
    binary: PathBuf,
    directory: PathBuf,
    /// What the nodes of its cluster know; empty when it is none of a cluster.
    secret: String,
    /// Its agent listener.
    pub agents: SocketAddr,
    /// Its management listener, unless it is a private node.
    pub management: SocketAddr,
    /// Its health endpoint.
    pub health: SocketAddr,
    /// Its metrics endpoint.
    pub metrics: SocketAddr,
}

impl GatewayProcess {
    /// Starts `binary` with a configuration of its own, and waits until it is ready.
    ///
    /// # Errors
    /// A sentence for the user, with the end of the log.
    pub async fn start(binary: &Path, server: SocketAddr, limit: Duration) -> Result<Self, String> {
        Self::start_with(binary, server, "", limit).await
    }

    /// As [`GatewayProcess::start`], with more lines of configuration: keys of `[upstream]`
    /// first, then tables but for `[observe]`.
    ///
    /// # Errors
    /// As [`GatewayProcess::start`].
    pub async fn start_with(
        binary: &Path,
        server: SocketAddr,
        more: &str,
        limit: Duration,
    ) -> Result<Self, String> {
        let lines = Lines { more, agent: "" };
        Self::start_configured(binary, server, lines, limit).await
    }

    /// As [`GatewayProcess::start`], with these lines of configuration.
    ///
    /// # Errors
    /// As [`GatewayProcess::start`].
    pub async fn start_configured(
        binary: &Path,
        server: SocketAddr,
        lines: Lines<'_>,
        limit: Duration,
    ) -> Result<Self, String> {
        Self::start_one(binary, server, lines, None, limit).await
    }

    /// As [`GatewayProcess::start_configured`], as a node of a cluster.
    ///
    /// # Errors
    /// As [`GatewayProcess::start`].
    pub async fn start_member(
        binary: &Path,
        server: SocketAddr,
        lines: Lines<'_>,
        member: &Member,
        limit: Duration,
    ) -> Result<Self, String> {
        Self::start_one(binary, server, lines, Some(member), limit).await
    }

    async fn start_one(
        binary: &Path,
        server: SocketAddr,
        Lines { agent, more }: Lines<'_>,
        member: Option<&Member>,
        limit: Duration,
    ) -> Result<Self, String> {
        let (id, port) = (std::process::id(), server.port());
        let name = member.map_or("", |member| &member.name);
        let directory = std::env::temp_dir().join(format!("yuzu-gateway-{id}-{port}{name}"));
        let io = |e: std::io::Error| format!("{}: {e}", directory.display());
        fs::create_dir_all(&directory).map_err(io)?;
        let address = member.map_or(Ipv4Addr::LOCALHOST, |member| member.address);
        let [agents, management, health, metrics] = free_addresses(address).map_err(io)?;
        let operators = format!(
            "[[listener]]\nname = \"management\"\nservices = [\"management\"]\n\
             address = \"{management}\"\n\n"
        );
        let operators = match member {
            Some(member) if member.private => "",
            _ => &operators,
        };
        let cluster = member.map(Member::lines).unwrap_or_default();
        let text = format!(
            "{cluster}[[listener]]\nname = \"agent\"\nservices = [\"agent\"]\n\
             address = \"{agents}\"\n{agent}\n{operators}\
             [observe]\nmetrics_address = \"{metrics}\"\nhealth_address = \"{health}\"\n\
             log_level = \"warn\"\n\n\
             [upstream]\nendpoints = [\"http://{server}\"]\n{more}\n"
        );
        fs::write(directory.join(CONFIG), text).map_err(io)?;
        let secret = member.map_or("", |member| &member.secret).to_owned();
        let mut process = Self {
            child: spawn(binary, &directory, &secret)?,
            binary: binary.to_owned(),
            directory,
            secret,
            agents,
            management,
            health,
            metrics,
        };
        process.wait_ready(limit).await?;
        Ok(process)
    }

    /// Kills the process with SIGKILL, and waits until it is gone.
    ///
    /// # Errors
    /// What the system says.
    pub async fn kill(&mut self) -> Result<(), String> {
        self.child.kill().await.map_err(|e| e.to_string())
    }

    /// Starts it again after its end, with the same configuration and addresses, and waits until
    /// it is ready.
    ///
    /// # Errors
    /// As [`GatewayProcess::start`].
    pub async fn start_again(&mut self, limit: Duration) -> Result<(), String> {
        self.child = spawn(&self.binary, &self.directory, &self.secret)?;
        self.wait_ready(limit).await
    }

    async fn wait_ready(&mut self, limit: Duration) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!(
                    "the gateway ended with {status}\n{}",
                    self.log_end()
                ));
            }
            if http::get(self.health, "/readyz")
                .await
                .is_ok_and(|answer| answer.status == 200)
            {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(format!("the gateway is not ready\n{}", self.log_end()));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Its process id.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn id(&self) -> Result<u32, String> {
        self.child
            .id()
            .ok_or_else(|| "the gateway has ended".to_owned())
    }

    /// Anonymous resident memory in bytes.
    ///
    /// # Errors
    /// When the process is gone or the system does not tell.
    pub fn anonymous_memory(&self) -> Result<u64, String> {
        anonymous_memory_of(self.id()?)
    }

    /// Processor time so far, of all threads that live.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn processor_time(&self) -> Result<Duration, String> {
        let pid = self.child.id().ok_or("the gateway has ended")?;
        time_of(pid, |_| true)
    }

    /// Sends SIGTERM and waits for the end; the log is still there afterwards.
    ///
    /// # Errors
    /// When it has not ended within `limit`.
    pub async fn terminate(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        let pid = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()));
        kill_process(pid.ok_or("the gateway has ended")?, Signal::TERM)
            .map_err(|e| e.to_string())?;
        let ended = tokio::time::timeout(limit, self.child.wait()).await;
        ended
            .map_err(|_| "the gateway does not end".to_owned())?
            .map_err(|e| e.to_string())
    }

    /// Its log so far; with the level that it has here, warnings and errors.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join(LOG)).unwrap_or_default()
    }

    /// The last lines of its log.
    pub fn log_end(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        // What is left behind is a few small files in the temporary directory.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Member {
    /// What its configuration begins with.
    fn lines(&self) -> String {
        let Self {
            name,
            address,
            node,
            ..
        } = self;
        let visibility = if self.private { "private" } else { "public" };
        let seeds: Vec<_> = self
            .seeds
            .iter()
            .map(|seed| format!("\"{seed}\""))
            .collect();
        format!(
            "[node]\nname = \"{name}\"\nvisibility = \"{visibility}\"\n\
             peer_advertise = \"{address}\"\n\n\
             [cluster]\nseed_nodes = [{}]\n\n\
             [[listener]]\nname = \"node\"\nservices = [\"node\"]\naddress = \"{node}\"\n\n",
            seeds.join(", ")
        )
    }
}

/// Starts the process with the configuration of its directory; its log goes there too.
fn spawn(binary: &Path, directory: &Path, secret: &str) -> Result<Child, String> {
    let io = |e: std::io::Error| format!("{}: {e}", directory.display());
    let log = File::options()
        .create(true)
        .append(true)
        .open(directory.join(LOG))
        .map_err(io)?;
    let mut command = Command::new(binary);
    if !secret.is_empty() {
        command.env("YUZU_GW_COOKIE", secret);
    }
    let child = command
        .arg("run")
        .arg("--config")
        .arg(directory.join(CONFIG))
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(io)?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| format!("{} does not start: {e}", binary.display()))?;
    child.id().inspect(|id| usage::started("gateway", *id));
    Ok(child)
}

/// Anonymous resident memory of a process, in bytes.
///
/// # Errors
/// When the process is gone or the system does not tell.
pub fn anonymous_memory_of(process: u32) -> Result<u64, String> {
    let path = format!("/proc/{process}/status");
    let status = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    bytes_of("RssAnon:", &status).ok_or_else(|| format!("{path} tells no RssAnon"))
}

/// `yuzu-gateway` beside the running binary.
///
/// # Errors
/// A sentence for the user, when it is not there.
pub fn gateway_binary() -> Result<PathBuf, String> {
    beside("yuzu-gateway", "--gateway-binary")
}

/// The program that the user names with `option`, otherwise the one beside the running one.
///
/// # Errors
/// A sentence for the user, when it is not there.
pub fn program(named: Option<&Path>, name: &str, option: &str) -> Result<PathBuf, String> {
    match named {
        None => beside(name, option),
        Some(named) if named.is_file() => Ok(named.to_owned()),
        Some(named) => Err(format!(
            "{option} {}: there is no such file; it is to be a path of {name}",
            named.display()
        )),
    }
}

/// A program beside the running one; the user may name another with `option`.
///
/// # Errors
/// A sentence for the user, when it is not there.
pub fn beside(name: &str, option: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let binary = own.with_file_name(name);
    if binary.is_file() {
        return Ok(binary);
    }
    let profile = match own.parent().and_then(Path::file_name) {
        Some(name) if name == "dist" => " --profile dist --features yuzu-tests/jemalloc",
        Some(name) if name == "debug" => "",
        _ => " --release --features yuzu-tests/jemalloc",
    };
    Err(format!(
        "{} is not there: build it with `cargo build{profile} --bin {name}`, or name another with \
         {option}",
        binary.display()
    ))
}

/// Free ports of an address of this machine. Another process may take one before it is used; then the gateway says
/// so.
///
/// # Errors
/// What the system says.
pub fn free_addresses<const N: usize>(address: Ipv4Addr) -> std::io::Result<[SocketAddr; N]> {
    let mut held = Vec::new();
    let mut addresses = [SocketAddr::from((address, 0)); N];
    for address in &mut addresses {
        let listener = TcpListener::bind(*address)?;
        *address = listener.local_addr()?;
        held.push(listener);
    }
    Ok(addresses)
}

/// What the system says of `name`, which ends in a colon, in a text like `/proc/meminfo`: bytes.
pub fn bytes_of(name: &str, text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Processor time so far of the threads of this process that have this name.
///
/// # Errors
/// When the system does not tell it.
pub fn time_of_threads(name: &str) -> Result<Duration, String> {
    time_of(std::process::id(), |thread| {
        let comm = fs::read_to_string(thread.join("comm"));
        comm.is_ok_and(|comm| comm.trim_end() == name)
    })
}

/// Processor time so far of this process.
///
/// # Errors
/// When the system does not tell it.
pub fn time_of_this_process() -> Result<Duration, String> {
    time_of(std::process::id(), |_| true)
}

fn time_of(pid: u32, counts: impl Fn(&Path) -> bool) -> Result<Duration, String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_err(|e| e.to_string())?;
    let mut nanoseconds = 0;
    for thread in threads {
        let thread = thread.map_err(|e| e.to_string())?.path();
        if !counts(&thread) {
            continue;
        }
        let text = fs::read_to_string(thread.join("schedstat")).map_err(|e| e.to_string())?;
        let ran = text.split_whitespace().next();
        let ran: Option<u64> = ran.and_then(|n| n.parse().ok());
        nanoseconds += ran.ok_or_else(|| format!("no time in {text:?}"))?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_anonymous_memory() {
        let status = "VmRSS:\t  200 kB\nRssAnon:\t     124 kB\nRssFile:\t 76 kB\n";
        assert_eq!(bytes_of("RssAnon:", status), Some(124 * 1024));
        assert_eq!(bytes_of("RssAnon:", "VmRSS: 1 kB"), None);
    }

    #[test]
    fn free_addresses_differ() {
        let [a, b, c] = free_addresses(Ipv4Addr::LOCALHOST).unwrap();
        assert!(a != b && b != c && a != c && a.port() != 0);
    }
}
