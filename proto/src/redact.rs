//! `Debug` of messages that hold secrets or payloads (LOG-5).
//!
//! Responsible for the messages that the build script lists as redacted: each prints its name and
//! its encoded size. A message that only contains one of them needs nothing: its derived `Debug`
//! prints the inner one this way.
//!
//! Must never print a content, nor a content's own length.

use std::fmt;

use prost::Message;

use crate::agent::v1::{
    CommandRequest, CommandResponse, HeartbeatRequest, InventoryReport, RegisterRequest,
    RegisterResponse, command_response,
};
use crate::common::v1::ErrorDetail;
use crate::gateway::v1::{
    BatchHeartbeatRequest, BatchHeartbeatResponse, StreamStatusNotification,
    stream_status_notification,
};
use crate::node::v1::{AgentRow, ForwardAnswers, ForwardDispatch, ForwardOffer};
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
    AgentRow,
    ForwardDispatch,
    ForwardAnswers,
    ForwardOffer,
);

/// The build script's list takes the `Debug` of enums inside a listed message away with it.
macro_rules! named {
    ($($value:path),+ $(,)?) => {$(
        impl fmt::Debug for $value {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str_name())
            }
        }
    )+};
}

named!(
    command_response::Status,
    command_response::PluginResultStatus,
    stream_status_notification::Event,
);
