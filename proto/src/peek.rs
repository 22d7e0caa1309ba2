//! Chosen fields of encoded messages, read without decoding the rest.
//!
//! Responsible for the views that the relay decides by. The protobuf rules hold: of a scalar that
//! occurs several times the last occurrence counts, an embedded message that occurs several times
//! is the merge of all its occurrences, unknown fields are skipped whatever they are. A field that
//! is looked at and has another wire type than the contract's is an error. Strings are raw bytes
//! and may be invalid UTF-8; the caller judges.
//!
//! Must never copy a message and must never collect without a limit. The views hold session ids
//! and agent data, hence none has a `Debug`.

use bytes::{BufMut, Bytes, BytesMut};

use crate::wire::{Field, WireError, fields, validate};

/// Most plugin names that [`RegisterPeek`] collects.
pub const MAX_PLUGINS: usize = 1024;

/// Most verdicts that [`BatchAnswerPeek`] collects: twice what the contract allows the server.
pub const MAX_VERDICTS: usize = 8192;

fn int32(field: &Field<'_>) -> Result<i32, WireError> {
    // The low 32 bits are the value, by the protobuf encoding of int32 and enums.
    Ok(field.varint()? as i32)
}

fn boolean(field: &Field<'_>) -> Result<bool, WireError> {
    Ok(field.varint()? != 0)
}

/// The last occurrence of the string or bytes field `number`; empty when there is none.
fn last_bytes(message: &[u8], number: u32) -> Result<&[u8], WireError> {
    let mut last: &[u8] = &[];
    for field in fields(message) {
        let field = field?;
        if field.number == number {
            last = field.bytes()?;
        }
    }
    Ok(last)
}

/// What routes an agent's answer: a `CommandResponse`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct CommandResponsePeek<'a> {
    /// `command_id`; empty on unsolicited Guardian frames.
    pub command_id: &'a [u8],
    /// `status`, as the number on the wire; may be one that the contract does not name.
    pub status: i32,
    /// `plugin`.
    pub plugin: &'a [u8],
}

impl<'a> CommandResponsePeek<'a> {
    /// Reads a `CommandResponse`. Allocates nothing.
    ///
    /// # Errors
    /// When the message is malformed.
    pub fn peek(message: &'a [u8]) -> Result<Self, WireError> {
        let mut view = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                1 => view.command_id = field.bytes()?,
                2 => view.status = int32(&field)?,
                7 => view.plugin = field.bytes()?,
                _ => {}
            }
        }
        Ok(view)
    }
}

/// What names a command: a `CommandRequest`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct CommandRequestPeek<'a> {
    /// `command_id`.
    pub command_id: &'a [u8],
    /// `plugin`.
    pub plugin: &'a [u8],
}

impl<'a> CommandRequestPeek<'a> {
    /// Reads a `CommandRequest`. Allocates nothing.
    ///
    /// # Errors
    /// When the message is malformed.
    pub fn peek(message: &'a [u8]) -> Result<Self, WireError> {
        let mut view = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                1 => view.command_id = field.bytes()?,
                2 => view.plugin = field.bytes()?,
                _ => {}
            }
        }
        Ok(view)
    }
}

/// Who registers: a `RegisterRequest`.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct RegisterPeek<'a> {
    /// `info.agent_id`, of any length.
    pub agent_id: &'a [u8],
    /// `info.hostname`.
    pub hostname: &'a [u8],
    /// `info.plugins[].name` in their order; the first [`MAX_PLUGINS`] of them.
    pub plugins: Vec<&'a [u8]>,
}

impl<'a> RegisterPeek<'a> {
    /// Reads a `RegisterRequest`.
    ///
    /// # Errors
    /// When the message, its `info` or one of the collected plugins is malformed.
    pub fn peek(message: &'a [u8]) -> Result<Self, WireError> {
        let mut view = Self::default();
        for field in fields(message) {
            let field = field?;
            if field.number == 1 {
                view.merge_info(field.bytes()?)?;
            }
        }
        Ok(view)
    }

    fn merge_info(&mut self, info: &'a [u8]) -> Result<(), WireError> {
        for field in fields(info) {
            let field = field?;
            match field.number {
                1 => self.agent_id = field.bytes()?,
                2 => self.hostname = field.bytes()?,
                5 if self.plugins.len() < MAX_PLUGINS => {
                    self.plugins.push(last_bytes(field.bytes()?, 1)?);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The server's verdict on a registration: a `RegisterResponse`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct RegisterAnswerPeek<'a> {
    /// `session_id`.
    pub session_id: &'a [u8],
    /// `accepted`.
    pub accepted: bool,
}

impl<'a> RegisterAnswerPeek<'a> {
    /// Reads a `RegisterResponse`. Allocates nothing.
    ///
    /// # Errors
    /// When the message is malformed.
    pub fn peek(message: &'a [u8]) -> Result<Self, WireError> {
        let mut view = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                1 => view.session_id = field.bytes()?,
                2 => view.accepted = boolean(&field)?,
                _ => {}
            }
        }
        Ok(view)
    }
}

/// Whose heartbeat it is: a `HeartbeatRequest`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct HeartbeatPeek<'a> {
    /// `session_id`.
    pub session_id: &'a [u8],
}

impl<'a> HeartbeatPeek<'a> {
    /// Reads a `HeartbeatRequest`. Allocates nothing.
    ///
    /// # Errors
    /// When the message is malformed.
    pub fn peek(message: &'a [u8]) -> Result<Self, WireError> {
        Ok(Self {
            session_id: last_bytes(message, 1)?,
        })
    }
}

/// Whose inventory it is: an `InventoryReport`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct InventoryPeek<'a> {
    /// `session_id`.
    pub session_id: &'a [u8],
}

impl<'a> InventoryPeek<'a> {
    /// Reads an `InventoryReport`. Allocates nothing.
    ///
    /// # Errors
    /// When the message is malformed.
    pub fn peek(message: &'a [u8]) -> Result<Self, WireError> {
        Ok(Self {
            session_id: last_bytes(message, 1)?,
        })
    }
}

/// Whom an operator commands, and with what: a `SendCommandRequest`.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct SendCommandPeek<'a> {
    /// `agent_ids` in their order, repetitions and empty ones included. An entry takes 16 bytes
    /// here and at least 2 on the wire, hence the list is bounded by the listener's message limit.
    pub agent_ids: Vec<&'a [u8]>,
    /// `command`, verbatim: a slice of the input, which it pins. When the field occurs several
    /// times, a new buffer with all occurrences in their order, which is their merge.
    pub command: Bytes,
    /// `timeout_seconds`, of any value.
    pub timeout_seconds: i32,
    /// Whether `command` is there at all; it may be there and empty.
    pub has_command: bool,
}

impl<'a> SendCommandPeek<'a> {
    /// Reads a `SendCommandRequest`.
    ///
    /// # Errors
    /// When the message or one occurrence of its `command` is malformed.
    pub fn peek(message: &'a Bytes) -> Result<Self, WireError> {
        let mut view = Self::default();
        let mut commands = 0_usize;
        let mut command_bytes = 0_usize;
        for field in fields(message) {
            let field = field?;
            match field.number {
                1 => view.agent_ids.push(field.bytes()?),
                2 => {
                    // Each by itself: two broken halves must not add up to a valid command.
                    validate(field.bytes()?)?;
                    commands += 1;
                    command_bytes += field.payload.len();
                    view.command = message.slice(field.payload);
                }
                3 => view.timeout_seconds = int32(&field)?,
                _ => {}
            }
        }
        view.has_command = commands > 0;
        if commands > 1 {
            view.command = concatenated(message, 2, command_bytes)?;
        }
        Ok(view)
    }
}

/// The contents of all occurrences of the field `number`, together `len` bytes.
fn concatenated(message: &[u8], number: u32, len: usize) -> Result<Bytes, WireError> {
    let mut merged = BytesMut::with_capacity(len);
    for field in fields(message) {
        let field = field?;
        if field.number == number {
            merged.put_slice(field.bytes()?);
        }
    }
    Ok(merged.freeze())
}

/// Whether the server recorded a notice: a `StreamStatusAck` or a `ForwardGuardianAck`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NotifyAckPeek {
    /// `acknowledged`.
    pub acknowledged: bool,
}

impl NotifyAckPeek {
    /// Reads a `StreamStatusAck` or a `ForwardGuardianAck`, which are alike. Allocates nothing.
    ///
    /// # Errors
    /// When the message is malformed.
    pub fn peek(message: &[u8]) -> Result<Self, WireError> {
        let mut view = Self::default();
        for field in fields(message) {
            let field = field?;
            if field.number == 1 {
                view.acknowledged = boolean(&field)?;
            }
        }
        Ok(view)
    }
}

/// The server's answer to a batch of heartbeats: a `BatchHeartbeatResponse`.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct BatchAnswerPeek<'a> {
    /// `acknowledged_count`.
    pub acknowledged_count: i32,
    /// `unknown_session_ids` in their order, of any length each; the first [`MAX_VERDICTS`].
    pub unknown_session_ids: Vec<&'a [u8]>,
    /// `unknown_session_ids_truncated`: the server knows of more than it lists.
    pub truncated: bool,
}

impl<'a> BatchAnswerPeek<'a> {
    /// Reads a `BatchHeartbeatResponse`.
    ///
    /// # Errors
    /// When the message is malformed.
    pub fn peek(message: &'a [u8]) -> Result<Self, WireError> {
        let mut view = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                1 => view.acknowledged_count = int32(&field)?,
                2 => {
                    let id = field.bytes()?;
                    if view.unknown_session_ids.len() < MAX_VERDICTS {
                        view.unknown_session_ids.push(id);
                    }
                }
                3 => view.truncated = boolean(&field)?,
                _ => {}
            }
        }
        Ok(view)
    }
}
