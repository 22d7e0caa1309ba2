//! `Debug` of messages that hold secrets or payloads: sizes and counts only (LOG-5).

use std::fmt;

use prost::Message;

use crate::agent::v1::{
    CommandRequest, CommandResponse, HeartbeatRequest, InventoryReport, RegisterRequest,
    RegisterResponse,
};
use crate::common::v1::ErrorDetail;
use crate::gateway::v1::{BatchHeartbeatRequest, BatchHeartbeatResponse, StreamStatusNotification};
use crate::server::v1::{AgentConnected, QueryInventoryResponse};

macro_rules! redacted {
    ($($message:ident),+ $(,)?) => {$(
        impl fmt::Debug for $message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($message), "({} bytes)"), self.encoded_len())
            }
        }
    )+};
}

redacted!(
    ErrorDetail,
    RegisterRequest,
    RegisterResponse,
    HeartbeatRequest,
    CommandRequest,
    CommandResponse,
    InventoryReport,
    BatchHeartbeatRequest,
    BatchHeartbeatResponse,
    StreamStatusNotification,
    AgentConnected,
    QueryInventoryResponse,
);
