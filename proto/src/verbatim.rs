//! Messages carried as the bytes that came in.
//!
//! Responsible for [`VerbatimCodec`], by which unary calls receive and send raw message bytes, and
//! for [`Verbatim`], such bytes together with a decoded view of the few fields that are needed.
//!
//! A message that the codec hands out is a slice of the call's receive buffer and keeps the whole
//! buffer alive, and so does every slice of it, the fields of a view included. What is stored for
//! longer than the call must be copied first (`Bytes::copy_from_slice`).
//!
//! Must never re-encode a message and never print one: they hold secrets.

use std::fmt;

use bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::peek::{HeartbeatPeek, InventoryPeek, RegisterAnswerPeek, RegisterPeek};
use crate::wire::{WireError, validate};

/// Bytes that a call's buffer starts with; a larger message makes it grow once, to the size that
/// the message announces. tonic's own default, 8 KiB, is far above most of what is relayed, and
/// every call pays for it.
const BUFFER_BYTES: usize = 512;

/// Bytes after which an encoder passes on what it has. tonic's own default.
const YIELD_BYTES: usize = 32 * 1024;

/// What is read out of a message on arrival.
pub trait View: Sized {
    /// Name of the message, for `Debug`.
    const NAME: &'static str;

    /// Reads the view. `bytes` is a whole message; fields of the view may be slices of it.
    ///
    /// # Errors
    /// When the message is malformed: an implementation must see at least every fault that
    /// [`validate`] sees.
    fn view(bytes: &Bytes) -> Result<Self, WireError>;
}

/// No view: the bytes are a well-formed message of some kind.
impl View for () {
    const NAME: &'static str = "message";

    fn view(bytes: &Bytes) -> Result<Self, WireError> {
        validate(bytes)
    }
}

/// A well-formed message as its original bytes, with a view `V` of it.
///
/// `Debug` prints the name and the length only.
#[derive(Clone)]
pub struct Verbatim<V = ()> {
    bytes: Bytes,
    view: V,
}

impl<V: View> Verbatim<V> {
    /// Takes the bytes of a whole message.
    ///
    /// # Errors
    /// When the message is malformed.
    pub fn new(bytes: Bytes) -> Result<Self, WireError> {
        let view = V::view(&bytes)?;
        Ok(Self { bytes, view })
    }
}

impl<V> Verbatim<V> {
    /// The message.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// What was read out of it.
    pub fn view(&self) -> &V {
        &self.view
    }

    /// The message, for sending it on.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

impl<V: View> fmt::Debug for Verbatim<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({} bytes)", V::NAME, self.bytes.len())
    }
}

/// Who registers: the owned form of [`RegisterPeek`], slices of the message.
#[derive(Clone, PartialEq, Eq)]
pub struct RegisterView {
    /// `info.agent_id`, of any length, may be invalid UTF-8.
    pub agent_id: Bytes,
    /// `info.hostname`, may be invalid UTF-8.
    pub hostname: Bytes,
    /// Names of the plugins, at most [`crate::peek::MAX_PLUGINS`].
    pub plugins: Vec<Bytes>,
}

impl View for RegisterView {
    const NAME: &'static str = "RegisterRequest";

    fn view(bytes: &Bytes) -> Result<Self, WireError> {
        let peek = RegisterPeek::peek(bytes)?;
        Ok(Self {
            agent_id: bytes.slice_ref(peek.agent_id),
            hostname: bytes.slice_ref(peek.hostname),
            plugins: peek
                .plugins
                .iter()
                .map(|name| bytes.slice_ref(name))
                .collect(),
        })
    }
}

/// The server's verdict: the owned form of [`RegisterAnswerPeek`].
#[derive(Clone, PartialEq, Eq)]
pub struct RegisterAnswerView {
    /// `session_id`, may be invalid UTF-8.
    pub session_id: Bytes,
    /// `accepted`.
    pub accepted: bool,
}

impl View for RegisterAnswerView {
    const NAME: &'static str = "RegisterResponse";

    fn view(bytes: &Bytes) -> Result<Self, WireError> {
        let peek = RegisterAnswerPeek::peek(bytes)?;
        Ok(Self {
            session_id: bytes.slice_ref(peek.session_id),
            accepted: peek.accepted,
        })
    }
}

/// Whose heartbeat it is: the owned form of [`HeartbeatPeek`].
#[derive(Clone, PartialEq, Eq)]
pub struct HeartbeatView {
    /// `session_id`, may be invalid UTF-8.
    pub session_id: Bytes,
}

impl View for HeartbeatView {
    const NAME: &'static str = "HeartbeatRequest";

    fn view(bytes: &Bytes) -> Result<Self, WireError> {
        let peek = HeartbeatPeek::peek(bytes)?;
        Ok(Self {
            session_id: bytes.slice_ref(peek.session_id),
        })
    }
}

/// Whose inventory it is: the owned form of [`InventoryPeek`].
#[derive(Clone, PartialEq, Eq)]
pub struct InventoryView {
    /// `session_id`, may be invalid UTF-8.
    pub session_id: Bytes,
}

impl View for InventoryView {
    const NAME: &'static str = "InventoryReport";

    fn view(bytes: &Bytes) -> Result<Self, WireError> {
        let peek = InventoryPeek::peek(bytes)?;
        Ok(Self {
            session_id: bytes.slice_ref(peek.session_id),
        })
    }
}

/// A codec that passes raw message bytes in both directions.
///
/// It does not check them: the receiver peeks. Compression is not its business and stays off as
/// long as neither side of a call enables it.
#[derive(Debug, Clone, Copy, Default)]
pub struct VerbatimCodec;

impl Codec for VerbatimCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = VerbatimEncoder;
    type Decoder = VerbatimDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        VerbatimEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        VerbatimDecoder
    }
}

/// Writes the bytes as they are.
#[derive(Debug, Clone, Copy, Default)]
pub struct VerbatimEncoder;

impl Encoder for VerbatimEncoder {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, dst: &mut EncodeBuf<'_>) -> Result<(), Status> {
        dst.reserve(item.len());
        dst.put_slice(&item);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
    }
}

/// Hands out each whole message, not copied and not checked.
#[derive(Debug, Clone, Copy, Default)]
pub struct VerbatimDecoder;

impl Decoder for VerbatimDecoder {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(src.copy_to_bytes(src.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
    }
}
