//! The control plane for development and tests: `yuzu.gateway.v1.GatewayUpstream` on a real
//! socket, with scriptable faults and a record of everything it received.
//!
//! Responsible for behaving like the real server where the gateway can see it: enrolment,
//! sessions, adoption of presented sessions, the route directory, unknown-session verdicts, the
//! announced HTTP/2 stream limit. Faults are rules ([`Fault`]) that count calls, so a test that
//! makes the same calls sees the same faults. [`operator`] is the other side: the client that a
//! control plane uses on a gateway's management listener.
//!
//! Must never be used as a real control plane: everything is in memory and nothing is checked but
//! what the gateway's rules ask for. Must never print a token, CSR, certificate, session id,
//! command or output in a log or in `Debug`.
//!
//! ```no_run
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use yuzu_server_stub::{Action, Fault, Rpc, StubConfig, StubServer};
//!
//! let server = StubServer::start(StubConfig::default()).await?;
//! server.fault(Fault::new(Rpc::ProxyRegister, Action::Hang).times(1))?;
//! // point a gateway at server.uri() and wait for what it does, without sleeping:
//! let hung = |s: &yuzu_server_stub::State| {
//!     (s.counts(Rpc::ProxyRegister).hung == 1).then_some(())
//! };
//! server.wait_for("a hung register", Duration::from_secs(5), hung).await?;
//! server.release(Some(Rpc::ProxyRegister));
//! # Ok(())
//! # }
//! ```

mod accept;
mod alarms;
mod call;
mod config;
mod connection;
mod control;
mod directory;
mod faults;
mod frame;
mod grpc;
pub mod operator;
mod records;
mod rpc;
mod server;
mod settings_io;
mod state;
pub mod tls;

pub use config::{Enrolment, IssuedCertificate, StubConfig};
pub use connection::ConnectionView;
pub use control::ControlServer;
pub use directory::{Restart, Route, RouteState};
pub use faults::{Action, Fault, FaultError, FaultId, FaultView, Filter, Garbage};
pub use records::{Counts, Message, Received};
pub use rpc::Rpc;
pub use server::{StubServer, WaitError};
pub use state::State;
