//! A wire between gateway and server that remembers what the gateway sent.
//!
//! The server handles calls at the same time, so the order in which it had them says nothing
//! about the order in which they were sent.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// More than a scenario sends.
const KEPT_BYTES: usize = 4 << 20;
const CHUNK_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(crate) struct Tap {
    /// Where the gateway connects.
    pub(crate) address: SocketAddr,
    sent: Arc<Mutex<Vec<u8>>>,
    accepting: JoinHandle<()>,
}

impl Tap {
    pub(crate) async fn start(server: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let sent = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&sent);
        let accepting = tokio::spawn(async move {
            while let Ok((gateway, _)) = listener.accept().await {
                // An end on either side ends both, which the gateway sees.
                tokio::spawn(carry(gateway, server, Arc::clone(&kept)));
            }
        });
        Ok(Self {
            address,
            sent,
            accepting,
        })
    }

    /// Forgets what was sent so far.
    pub(crate) fn forget(&self) {
        self.sent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// The positions among `words` of every word that was sent, in the order on the wire. All
    /// words have one length.
    pub(crate) fn order(&self, words: &[String]) -> Vec<usize> {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let length = words.first().map_or(1, String::len);
        let windows = sent.windows(length);
        windows
            .filter_map(|window| words.iter().position(|word| word.as_bytes() == window))
            .collect()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn carry(
    gateway: TcpStream,
    server: SocketAddr,
    sent: Arc<Mutex<Vec<u8>>>,
) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    gateway.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_gateway, mut to_gateway) = gateway.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let length = from_gateway.read(&mut chunk).await?;
            if length == 0 {
                return Ok(());
            }
            keep(&sent, &chunk[..length]);
            to_server.write_all(&chunk[..length]).await?;
        }
    };
    let down = async { tokio::io::copy(&mut from_server, &mut to_gateway).await };
    tokio::select! {
        ended = up => ended,
        ended = down => ended.map(|_| ()),
    }
}

fn keep(sent: &Mutex<Vec<u8>>, chunk: &[u8]) {
    let mut sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
    let room = KEPT_BYTES.saturating_sub(sent.len());
    sent.extend_from_slice(&chunk[..chunk.len().min(room)]);
}
