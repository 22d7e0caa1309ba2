//! Connections of the simulated network for clients that know tokio's streams alone.
//!
//! Responsible for carrying bytes and ends in both directions. Must never hold what one side has
//! closed open for the other.

use std::net::SocketAddr;

use tokio::io::{AsyncWriteExt, DuplexStream, copy, split};
use turmoil::net::TcpStream;
use yuzu_tests::raw::Dialer;

const PIPE_BYTES: usize = 64 << 10;

/// Dials `host`, by its name, at `port`.
pub fn dialer(host: &str, port: u16) -> Dialer {
    let address = SocketAddr::new(turmoil::lookup(host), port);
    Dialer::new(move || {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        tokio::spawn(carry(address, far));
        Ok(near)
    })
}

async fn carry(address: SocketAddr, pipe: DuplexStream) {
    // A connection that does not come about ends the pipe.
    let Ok(socket) = TcpStream::connect(address).await else {
        return;
    };
    let (mut near, mut here) = split(pipe);
    let (mut from, mut to) = split(socket);
    tokio::select! {
        _ = copy(&mut from, &mut here) => {}
        _ = async {
            let _ = copy(&mut near, &mut to).await;
            let _ = to.shutdown().await;
        } => {}
    }
}
