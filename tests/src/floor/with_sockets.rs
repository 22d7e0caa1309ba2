//! The floor of the machine: frames of a length and a body on plain sockets.
//!
//! Both ends: [`serve`] is the server, [`Link`] is what the load uses as well. The first byte of a
//! body says what it is; a command and its answer carry eight bytes that name the command.

use super::Listeners;
use super::board::Board;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};

/// An agent's id, and the confirmation.
pub(super) const ATTACH: u8 = b'a';
pub(super) const HEARTBEAT: u8 = b'h';
/// From an operator: name and agent's id, or nothing for all. To an agent: name and filler.
pub(super) const COMMAND: u8 = b'c';
/// Name and filler.
pub(super) const ANSWER: u8 = b'r';
/// No more answers will come.
pub(super) const END: u8 = b'e';

const LENGTH_BYTES: usize = 4;
const NAME_BYTES: usize = 8;
/// About what a command of the gRPC load takes.
const COMMAND_FILLER: [u8; 24] = [b'c'; 24];
const BUFFER_BYTES: usize = 512;
const ANSWERS_AT_ONCE: usize = 128;

/// A socket and what was read of it. Writers share the socket.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: Arc<TcpStream>,
    buffer: BytesMut,
}

impl Link {
    pub(super) async fn open(address: SocketAddr) -> io::Result<Self> {
        Self::new(TcpStream::connect(address).await?)
    }

    fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        Ok(Self {
            socket: Arc::new(socket),
            buffer: BytesMut::with_capacity(BUFFER_BYTES),
        })
    }

    /// The next body. Safe to drop while it waits.
    pub(super) async fn body(&mut self) -> io::Result<Bytes> {
        loop {
            if let Some(&prefix) = self.buffer.first_chunk::<LENGTH_BYTES>() {
                let length = u32::from_be_bytes(prefix) as usize;
                if self.buffer.len() >= LENGTH_BYTES + length {
                    self.buffer.advance(LENGTH_BYTES);
                    return Ok(self.buffer.split_to(length).freeze());
                }
            }
            self.buffer.reserve(BUFFER_BYTES);
            self.socket.readable().await?;
            match self.socket.try_read_buf(&mut self.buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// A frame with this body.
pub(super) fn framed(kind: u8, name: &[u8], rest: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(LENGTH_BYTES + 1 + name.len() + rest.len());
    frame.put_u32(1 + (name.len() + rest.len()) as u32);
    frame.put_u8(kind);
    frame.put_slice(name);
    frame.put_slice(rest);
    frame.freeze()
}

/// Writes a small frame to a socket whose buffer has room for it.
pub(super) fn write(socket: &TcpStream, frame: &[u8]) -> io::Result<()> {
    match socket.try_write(frame)? {
        whole if whole == frame.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Kind, name and the rest of a body; the name is empty where there is none.
pub(super) fn parts(body: &Bytes) -> (u8, Bytes, Bytes) {
    let kind = body.first().copied().unwrap_or_default();
    let rest = body.slice(body.len().min(1)..);
    match kind {
        COMMAND | ANSWER => {
            let at = rest.len().min(NAME_BYTES);
            (kind, rest.slice(..at), rest.slice(at..))
        }
        _ => (kind, Bytes::new(), rest),
    }
}

type Floor = Board<Arc<TcpStream>, Bytes, Bytes>;

pub(super) async fn serve(listeners: Listeners) -> Result<(), String> {
    let floor = Arc::new(Floor::default());
    let agents = accept(listeners.agents, Arc::clone(&floor), agent);
    let operators = accept(listeners.management, floor, operator);
    tokio::try_join!(agents, operators)
        .map(|_| ())
        .map_err(|e| e.to_string())
}

async fn accept<F>(
    listener: TcpListener,
    floor: Arc<Floor>,
    serve: fn(Link, Arc<Floor>) -> F,
) -> io::Result<()>
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    loop {
        let (socket, _) = listener.accept().await?;
        tokio::spawn(serve(Link::new(socket)?, Arc::clone(&floor)));
    }
}

async fn agent(mut link: Link, floor: Arc<Floor>) -> io::Result<()> {
    let (_, _, id) = parts(&link.body().await?);
    let id: Arc<str> = String::from_utf8_lossy(&id).into();
    floor.attach(Arc::clone(&id), Arc::clone(&link.socket));
    write(&link.socket, &framed(ATTACH, &[], &[]))?;
    let ended = answers(&mut link, &floor).await;
    floor.detach(&id);
    ended
}

async fn answers(link: &mut Link, floor: &Floor) -> io::Result<()> {
    loop {
        let body = link.body().await?;
        match parts(&body) {
            (ANSWER, name, output) => {
                let answer = framed(ANSWER, &name, &output);
                floor.answered(&name, answer);
            }
            (HEARTBEAT, ..) => write(&link.socket, &framed(HEARTBEAT, &[], &[]))?,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

async fn operator(mut link: Link, floor: Arc<Floor>) -> io::Result<()> {
    loop {
        let body = link.body().await?;
        let (_, name, target) = parts(&body);
        let command = framed(COMMAND, &name, &COMMAND_FILLER);
        let send = |agent: &Arc<TcpStream>| write(agent, &command).is_ok();
        let target = String::from_utf8_lossy(&target);
        let mut answers = match &*target {
            "" => floor.dispatch(&name, [].into_iter(), send),
            one => floor.dispatch(&name, [one].into_iter(), send),
        };
        let mut taken = Vec::new();
        while answers.recv_many(&mut taken, ANSWERS_AT_ONCE).await > 0 {
            write_all(&link.socket, &taken.concat()).await?;
            taken.clear();
        }
        write_all(&link.socket, &framed(END, &[], &[])).await?;
    }
}

async fn write_all(socket: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        socket.writable().await?;
        match socket.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
