//! A gRPC client with control over every byte, on hyper's HTTP/2.
//!
//! Responsible for one connection ([`Connection`]), unary calls, streams whose two halves are
//! used independently ([`Sender`], [`Receiver`]), and for misbehaving on purpose: not reading,
//! resetting, cutting the socket. Messages are bytes: nothing here decodes or re-encodes one.
//! Must never retry or repair: what the peer did is what the caller sees.

mod body;
mod call;
mod connection;
mod frame;
mod socket;
mod status;
mod tls;
mod wire;

pub use call::{Answer, Receiver, Request, Sender, Slot};
pub use connection::{Connection, Options};
pub use frame::{FrameReader, PREFIX_BYTES, frame, frame_message};
pub use socket::Dialer;
pub use status::{CallError, Status, code};
pub use tls::{Tls, Version};
