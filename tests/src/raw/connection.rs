//! One HTTP/2 connection to a listener.

use super::body::Body;
use super::call::{Answer, Receiver, Request, Sender};
use super::frame;
use super::socket::{Dialer, Socket};
use super::status::CallError;
use super::tls::{Carrier, Tls};
use super::wire::{Control, Wire};
use bytes::Bytes;
use http::uri::{Authority, Scheme};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::sync::{mpsc, watch};

/// How a connection is set up. The default is lean and close to the real agent.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bound of the TCP connect.
    pub connect_timeout: Duration,
    /// Receive window of each stream: what a stream that is not read may fill.
    pub stream_window: u32,
    /// Receive window of the connection, shared by its streams.
    pub connection_window: u32,
    /// Time between HTTP/2 PINGs, answered within 20 s (the real agent: 60 s).
    pub keepalive: Option<Duration>,
    /// Source address to dial from; any by default.
    pub source: Option<IpAddr>,
    /// Largest message accepted; the real agent takes 4 MiB.
    pub max_message_bytes: usize,
    /// Sent before everything else, as a proxy does.
    pub preamble: Vec<u8>,
    /// TLS; plaintext by default.
    pub tls: Option<Tls>,
    /// Where connections come from instead of the network.
    pub dialer: Option<Dialer>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(20),
            stream_window: 65_535,
            connection_window: 1 << 20,
            keepalive: Some(Duration::from_secs(60)),
            source: None,
            max_message_bytes: 4 << 20,
            preamble: Vec::new(),
            tls: None,
            dialer: None,
        }
    }
}

const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
const SEND_BUFFER_BYTES: usize = 64 << 10;
const STREAM_CHUNKS: usize = 4;

/// One HTTP/2 connection. Dropping it closes the connection once its calls have ended.
#[derive(Debug)]
pub struct Connection {
    requests: SendRequest<Body>,
    control: Arc<Control>,
    ended: watch::Receiver<bool>,
    authority: Authority,
    local: SocketAddr,
    max_message_bytes: usize,
    scheme: Scheme,
}

impl Connection {
    /// Dials and starts HTTP/2.
    ///
    /// # Errors
    /// [`CallError::Connect`] when there is no TCP connection or no TLS on it in time, otherwise
    /// [`CallError::Disconnected`].
    pub async fn open(address: SocketAddr, options: &Options) -> Result<Self, CallError> {
        let (mut socket, local) = connect(address, options)
            .await
            .map_err(CallError::Connect)?;
        socket
            .write_all(&options.preamble)
            .await
            .map_err(CallError::Connect)?;
        let control = Arc::new(Control::default());
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(options.stream_window)
            .initial_connection_window_size(options.connection_window)
            .max_send_buf_size(SEND_BUFFER_BYTES);
        if let Some(interval) = options.keepalive {
            builder
                .keep_alive_interval(interval)
                .keep_alive_timeout(KEEPALIVE_TIMEOUT)
                .keep_alive_while_idle(true);
        }
        let wire = Wire::new(socket, control.clone());
        let carrier = match &options.tls {
            None => Carrier::Left(wire),
            Some(tls) => tokio::time::timeout(options.connect_timeout, tls.secure(wire))
                .await
                .map_err(|_| CallError::Connect(std::io::ErrorKind::TimedOut.into()))?
                .map_err(CallError::Connect)?,
        };
        let (requests, driver) = builder.handshake(TokioIo::new(carrier)).await?;
        let (end, ended) = watch::channel(false);
        tokio::spawn(async move {
            // How it ended shows in the calls; here only that it did.
            let _ = driver.await;
            let _ = end.send(true);
        });
        Ok(Self {
            requests,
            control,
            ended,
            authority: authority_of(address),
            local,
            max_message_bytes: options.max_message_bytes,
            scheme: match options.tls {
                Some(_) => Scheme::HTTPS,
                None => Scheme::HTTP,
            },
        })
    }

    /// The own end of the socket.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Bytes read from the socket so far.
    pub fn bytes_received(&self) -> u64 {
        self.control.received()
    }

    /// Whether the connection takes no more calls.
    pub fn is_closed(&self) -> bool {
        self.requests.is_closed() || *self.ended.borrow()
    }

    /// Completes when the connection has ended.
    pub async fn closed(&self) {
        // An error means the driver is gone, which is an end as well.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    /// Closes the socket at once, in the middle of whatever is going on, without GOAWAY.
    pub fn cut(&self) {
        self.control.cut(false);
    }

    /// Like [`Connection::cut`], with a TCP reset.
    pub fn abort(&self) {
        self.control.cut(true);
    }

    /// Stops (or resumes) reading from the socket: the peer's socket buffer fills.
    pub fn pause_reading(&self, paused: bool) {
        self.control.pause(paused);
    }

    /// A unary call with an encoded message.
    ///
    /// # Errors
    /// See [`CallError`]; a status that is not OK is no error here.
    pub async fn unary(&self, request: Request, message: &[u8]) -> Result<Answer, CallError> {
        self.unary_framed(request, frame(message)).await
    }

    /// A unary call with an encoded and framed message, or with anything else that shall stand
    /// in the body.
    ///
    /// # Errors
    /// As [`Connection::unary`].
    pub async fn unary_framed(&self, request: Request, body: Bytes) -> Result<Answer, CallError> {
        self.begin_unary(&request, body).await
    }

    /// As [`Connection::unary_framed`], as a future that stands alone. Dropping it resets the
    /// call's stream.
    pub fn begin_unary(
        &self,
        request: &Request,
        body: Bytes,
    ) -> impl Future<Output = Result<Answer, CallError>> + Send + use<> {
        let started = self.start(request, Body::Full(Some(body)));
        within(
            request.deadline(),
            async move { started.await?.answer().await },
        )
    }

    /// Opens a stream and completes when the answer's headers are there.
    ///
    /// # Errors
    /// See [`CallError`]. A stream that was refused by a status is `Ok`: the receiver has it.
    pub async fn stream(&self, request: Request) -> Result<(Sender, Receiver), CallError> {
        let (sender, started) = self.begin_stream(&request);
        let deadline = request.deadline();
        let receiver = within(deadline, started).await?;
        Ok((sender, receiver))
    }

    /// Opens a stream; the second part completes with the answer's headers, the first can be
    /// used before.
    pub fn begin_stream(
        &self,
        request: &Request,
    ) -> (
        Sender,
        impl Future<Output = Result<Receiver, CallError>> + Send + 'static,
    ) {
        let (chunks, receiver) = mpsc::channel(STREAM_CHUNKS);
        let finished = Arc::new(AtomicBool::new(false));
        let body = Body::Channel {
            chunks: receiver,
            finished: finished.clone(),
        };
        (Sender::new(chunks, finished), self.start(request, body))
    }

    /// A call with one message that is answered by a stream.
    ///
    /// # Errors
    /// As [`Connection::stream`].
    pub async fn server_stream(
        &self,
        request: Request,
        message: &[u8],
    ) -> Result<Receiver, CallError> {
        let started = self.start(&request, Body::Full(Some(frame(message))));
        within(request.deadline(), started).await
    }

    fn start(
        &self,
        request: &Request,
        body: Body,
    ) -> impl Future<Output = Result<Receiver, CallError>> + Send + use<> {
        let http = request.to_http(self.scheme.clone(), self.authority.clone(), body);
        let mut requests = self.requests.clone();
        let limit = self.max_message_bytes;
        async move {
            requests.ready().await?;
            let response = requests.send_request(http).await?;
            Receiver::new(response, limit)
        }
    }
}

async fn within<T>(
    deadline: Option<Duration>,
    call: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    match deadline {
        None => call.await,
        Some(limit) => tokio::time::timeout(limit, call)
            .await
            .unwrap_or(Err(CallError::Deadline)),
    }
}

/// A connection, and the own end of it.
async fn connect(address: SocketAddr, options: &Options) -> std::io::Result<(Socket, SocketAddr)> {
    if let Some(dialer) = &options.dialer {
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        return Ok((Socket::Right(dialer.dial()?), nowhere));
    }
    let dialled = tokio::time::timeout(options.connect_timeout, dial(address, options.source));
    let tcp = dialled
        .await
        .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    tcp.set_nodelay(true)?;
    let local = tcp.local_addr()?;
    Ok((Socket::Left(tcp), local))
}

async fn dial(
    address: SocketAddr,
    source: Option<IpAddr>,
) -> std::io::Result<tokio::net::TcpStream> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    if let Some(source) = source {
        socket.bind(SocketAddr::new(source, 0))?;
    }
    socket.connect(address).await
}

fn authority_of(address: SocketAddr) -> Authority {
    address
        .to_string()
        .parse()
        .expect("a socket address is an authority")
}
