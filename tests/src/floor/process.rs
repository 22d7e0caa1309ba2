//! A floor as its own process.
//!
//! Must never leave the process behind: it is killed when dropped.

use super::Kind;
use super::transport::Certificates;
use crate::usage;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

const START_LIMIT: Duration = Duration::from_secs(10);

/// A running `yuzu-floor`.
#[derive(Debug)]
pub struct FloorProcess {
    /// Killed when dropped.
    _child: Child,
    /// Its process id.
    pub id: u32,
    /// Where agents connect.
    pub agents: SocketAddr,
    /// Where operators connect.
    pub management: SocketAddr,
}

impl FloorProcess {
    /// Starts `binary` on free ports; `server` is where Registers go. With certificates agents
    /// speak TLS.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(super) async fn start(
        binary: &Path,
        kind: Kind,
        server: SocketAddr,
        certificates: Option<&Certificates>,
    ) -> Result<Self, String> {
        let free = "127.0.0.1:0";
        let mut command = Command::new(binary);
        if let Some(files) = certificates {
            command.arg("--cert-file").arg(&files.cert_file);
            command.arg("--key-file").arg(&files.key_file);
        }
        let mut child = command
            .args(["--kind", kind.name(), "--server", &server.to_string()])
            .args(["--agents-address", free, "--management-address", free])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| format!("{} does not start: {e}", binary.display()))?;
        let id = child.id().ok_or("the floor has ended")?;
        usage::started("floor", id);
        let output = child.stdout.take().ok_or("the floor has no output")?;
        let mut lines = BufReader::new(output).lines();
        let told = async { Ok::<_, String>((told(&mut lines).await?, told(&mut lines).await?)) };
        let (agents, management) = tokio::time::timeout(START_LIMIT, told)
            .await
            .map_err(|_| "the floor tells no address")??;
        Ok(Self {
            _child: child,
            id,
            agents,
            management,
        })
    }
}

/// The address at the end of the next line.
async fn told(lines: &mut Lines<BufReader<ChildStdout>>) -> Result<SocketAddr, String> {
    let line = lines.next_line().await.map_err(|e| e.to_string())?;
    let line = line.ok_or("the floor ended at its start")?;
    let address = line.rsplit(' ').next().and_then(|word| word.parse().ok());
    address.ok_or_else(|| format!("no address in `{line}`"))
}
