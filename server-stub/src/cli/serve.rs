//! `serve`: a stub with its control endpoint, until a signal ends it.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;
use yuzu_server_stub::tls::{self, Identity, TlsError};
use yuzu_server_stub::{ControlServer, Enrolment, IssuedCertificate, StubConfig, StubServer};

use super::{EXIT_CALL, EXIT_OK, EXIT_USAGE, bad_files};

/// As the real server.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));

const CONTROL_HELP: &str = r#"Control endpoint (JSON over HTTP/1.1):
  GET    /state                     counters, connections, settings
  GET    /routes                    ?state=connected&after=ID&limit=N
  GET    /received                  ?rpc=ProxyRegister&limit=N&raw=true
  GET    /faults                    rules and how often they fired
  POST   /faults                    add a rule
  DELETE /faults                    ?id=N or ?rpc=NAME, or all
  POST   /release                   let hung calls go on; {"rpc":NAME} or all
  POST   /restart                   {"drop_connections":true,"lose_directory":false}
  POST   /forget                    {"session_id":ID}
  POST   /stream-limit              {"limit":64}
  POST   /enrolment                 {"mode":"open|tokens|pending|denied","tokens":[...]}
  POST   /drop-connections

A rule: "rpc" (ProxyRegister, BatchHeartbeat, ProxyInventory, NotifyStreamStatus,
ForwardGuardianMessage), "action", and if wanted "after" (calls let through first), "every" (k-th
call), "times", "agent_id", "event" (CONNECTED, DISCONNECTED), "replay" (true, false) and
"with_effect" (the work is done, only the answer is lost or late).

  curl localhost:50056/state
  curl localhost:50056/faults -d '{"rpc":"ProxyRegister","action":"delay","ms":200}'
  curl localhost:50056/faults -d '{"rpc":"ProxyRegister","action":"status","code":"UNAVAILABLE","times":5}'
  curl localhost:50056/faults -d '{"rpc":"NotifyStreamStatus","action":"refuse","event":"CONNECTED"}'
  curl localhost:50056/faults -d '{"rpc":"BatchHeartbeat","action":"hang"}'
  curl localhost:50056/faults -d '{"rpc":"ProxyInventory","action":"drop_connection","every":10}'
  curl localhost:50056/faults -d '{"rpc":"ProxyInventory","action":"reset_stream","code":7}'
  curl localhost:50056/faults -d '{"rpc":"ProxyRegister","action":"garbage","kind":"message"}'
  curl localhost:50056/faults -d '{"rpc":"ProxyRegister","action":"answer","hex":"1001"}'
  curl -X DELETE 'localhost:50056/faults?rpc=ProxyRegister'
  curl localhost:50056/release -d '{"rpc":"BatchHeartbeat"}'
  curl localhost:50056/restart -d '{"drop_connections":true}'
  curl localhost:50056/stream-limit -d '{"limit":64}'
  curl localhost:50056/enrolment -d '{"mode":"tokens","tokens":["t1"]}'
"#;

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    Open,
    Tokens,
    Pending,
    Denied,
}

#[derive(clap::Args)]
#[command(after_help = CONTROL_HELP)]
pub(crate) struct Args {
    /// Where gateways connect
    #[arg(long, default_value = "127.0.0.1:50055", value_name = "ADDR")]
    listen: SocketAddr,
    /// Where the control endpoint listens
    #[arg(long, default_value = "127.0.0.1:50056", value_name = "ADDR")]
    control: SocketAddr,
    /// Who may enrol
    #[arg(long, value_enum, default_value = "open")]
    enrolment: Mode,
    /// Accepted token, with --enrolment tokens; repeat for more
    #[arg(long = "token", value_name = "TOKEN")]
    tokens: Vec<String>,
    /// HTTP/2 streams allowed per connection
    #[arg(long, default_value_t = 128, value_name = "N")]
    stream_limit: u32,
    /// Requests kept per RPC
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    keep: usize,
    /// Certificate to serve TLS with; without it gateways connect in plaintext
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// CA of the gateways' certificates; with it a gateway must show one
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Answer a CSR with a dummy certificate
    #[arg(long)]
    issue_dummy_certificates: bool,
}

impl Args {
    fn tls(&self) -> Result<Option<Arc<ServerConfig>>, TlsError> {
        let own = self.tls_cert.as_deref().zip(self.tls_key.as_deref());
        let own = own.map(|(certificate, key)| Identity { certificate, key });
        own.map(|own| tls::server(own, self.tls_client_ca.as_deref()))
            .transpose()
    }

    fn config(self) -> Result<StubConfig, &'static str> {
        let enrolment = match self.enrolment {
            Mode::Tokens if self.tokens.is_empty() => {
                return Err("--enrolment tokens needs at least one --token");
            }
            Mode::Tokens => Enrolment::Tokens(self.tokens.into_iter().collect::<HashSet<_>>()),
            _ if !self.tokens.is_empty() => return Err("--token needs --enrolment tokens"),
            Mode::Open => Enrolment::Open,
            Mode::Pending => Enrolment::Pending,
            Mode::Denied => Enrolment::Denied,
        };
        Ok(StubConfig {
            listen: self.listen,
            enrolment,
            stream_limit: self.stream_limit,
            record_entries: self.keep,
            issued: self.issue_dummy_certificates.then(IssuedCertificate::dummy),
            keepalive: Some(KEEPALIVE),
            ..StubConfig::default()
        })
    }
}

pub(crate) async fn run(args: Args) -> u8 {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    let (listen, control) = (args.listen, args.control);
    let tls = match args.tls() {
        Ok(tls) => tls,
        Err(error) => return bad_files(error),
    };
    let config = match args.config() {
        Ok(config) => StubConfig { tls, ..config },
        Err(error) => {
            eprintln!("error: {error}");
            return EXIT_USAGE;
        }
    };
    // Before the addresses are told: whoever reads them may send a signal.
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("error: signals can't be received: {error}");
            return EXIT_CALL;
        }
    };
    let stub = match StubServer::start(config).await {
        Ok(stub) => Arc::new(stub),
        Err(error) => return cannot_listen(listen, &error),
    };
    let control = match ControlServer::start(control, Arc::clone(&stub)).await {
        Ok(control) => control,
        Err(error) => return cannot_listen(control, &error),
    };
    println!("gateways connect to {}", stub.addr());
    println!("control endpoint on http://{}/state", control.addr());
    if !control.addr().ip().is_loopback() {
        tracing::warn!("the control endpoint is open to other machines and asks for no password");
    }
    until_told(&stub, &mut signals).await;
    EXIT_OK
}

fn cannot_listen(addr: SocketAddr, error: &std::io::Error) -> u8 {
    eprintln!("error: can't listen on {addr}: {error}");
    EXIT_CALL
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(Signals {
            terminate,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The first signal drains, the second ends at once.
async fn until_told(stub: &StubServer, signals: &mut Signals) {
    signals.next().await;
    eprintln!("stopping; once more to stop at once");
    tokio::select! {
        () = stub.shutdown() => {}
        () = signals.next() => {}
    }
}
