//! A server stub as its own process, for what only a whole process can do: stand still, and die.
//!
//! Responsible for the process, its signals and its control endpoint. Must never leave the
//! process behind, stopped or not: it is killed when dropped.

use crate::http;
use crate::usage;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

const START_LIMIT: Duration = Duration::from_secs(10);

/// A running `yuzu-server-stub serve`.
#[derive(Debug)]
pub struct StubProcess {
    child: Child,
    /// Where gateways connect.
    pub address: SocketAddr,
    /// Its control endpoint.
    pub control: SocketAddr,
}

impl StubProcess {
    /// Starts `binary` on free ports.
    ///
    /// # Errors
    /// A sentence for the user.
    pub async fn start(binary: &Path) -> Result<Self, String> {
        Self::start_at(binary, Ipv4Addr::LOCALHOST).await
    }

    /// As [`StubProcess::start`], where gateways connect to this address of the machine.
    ///
    /// # Errors
    /// A sentence for the user.
    pub async fn start_at(binary: &Path, address: Ipv4Addr) -> Result<Self, String> {
        let mut child = Command::new(binary)
            .args(["serve", "--listen", &format!("{address}:0")])
            .args(["--control", "127.0.0.1:0"])
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| format!("{} does not start: {e}", binary.display()))?;
        child.id().inspect(|id| usage::started("server", *id));
        let output = child.stdout.take().ok_or("the stub has no output")?;
        let mut lines = BufReader::new(output).lines();
        let told = async { Ok((told(&mut lines).await?, told(&mut lines).await?)) };
        let (address, control) = tokio::time::timeout(START_LIMIT, told)
            .await
            .unwrap_or_else(|_| Err("the stub tells no address".to_owned()))?;
        Ok(Self {
            child,
            address,
            control,
        })
    }

    /// Kills the process with SIGKILL, and waits until it is gone.
    ///
    /// # Errors
    /// What the system says.
    pub async fn kill(mut self) -> Result<(), String> {
        self.child.kill().await.map_err(|e| e.to_string())
    }

    /// Stops the process (SIGSTOP): its sockets stay, nothing is read or answered.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn freeze(&self) -> Result<(), String> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on (SIGCONT).
    ///
    /// # Errors
    /// When the process is gone.
    pub fn thaw(&self) -> Result<(), String> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        let pid = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()));
        kill_process(pid.ok_or("the stub has ended")?, signal).map_err(|e| e.to_string())
    }

    /// Reads from the control endpoint.
    ///
    /// # Errors
    /// When there is no answer, or it is not JSON.
    pub async fn read(&self, path: &str) -> Result<Value, String> {
        let answer = http::get(self.control, path).await?;
        serde_json::from_str(&answer.body).map_err(|e| e.to_string())
    }
}

/// The address in the next line, such as `gateways connect to 127.0.0.1:50055` or
/// `control endpoint on http://127.0.0.1:50056/state`.
async fn told(lines: &mut Lines<BufReader<ChildStdout>>) -> Result<SocketAddr, String> {
    let line = lines.next_line().await.map_err(|e| e.to_string())?;
    let line = line.ok_or("the stub ended at its start")?;
    address_in(&line).ok_or_else(|| format!("no address in `{line}`"))
}

fn address_in(line: &str) -> Option<SocketAddr> {
    let word = line.split_whitespace().last()?;
    let word = word.trim_start_matches("http://");
    word.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_stub_tells() {
        let wanted = Some(SocketAddr::from(([127, 0, 0, 1], 50_056)));
        let control = "control endpoint on http://127.0.0.1:50056/state";
        assert_eq!(address_in(control), wanted);
        assert_eq!(address_in("gateways connect to 127.0.0.1:50056"), wanted);
        assert_eq!(address_in("nothing here"), None);
    }
}
