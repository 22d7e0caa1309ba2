//! Why a link to a peer does not come about, or is refused.
//!
//! Responsible for the closed set of reasons, for how a peer is told and for how the log is. Must never
//! hold a peer's words.

use std::fmt;

use tonic::{Code, Status};

macro_rules! failures {
    ($($(#[doc = $doc:literal])+ $name:ident = $label:literal, $code:ident, $told:literal;)+) => {
        /// The reason. A peer that is refused is never listed (MESH-2).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Failure {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Failure {
            /// How many there are.
            pub(super) const COUNT: usize = [$($label),+].len();
            /// The values of the label `reason`.
            #[cfg(test)]
            pub(crate) const LABELS: &'static [&'static str] = &[$($label,)+];

            pub(crate) fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)+ }
            }

            /// As the other side is told.
            pub(crate) fn status(self) -> Status {
                match self { $(Self::$name => Status::new(Code::$code, $told),)+ }
            }
        }
    };
}

failures! {
    /// A seed's name has no address.
    Resolve = "resolve", Unavailable, "no address";
    /// Nobody answers at its address.
    Connect = "connect", Unavailable, "no connection";
    /// It did not answer in time.
    Timeout = "timeout", DeadlineExceeded, "too late";
    /// TLS failed: its certificate is foreign, say, or ours is to it.
    Tls = "tls", Unavailable, "TLS failed";
    /// It ended the connection, or refused the call without saying which of these it was.
    Refused = "refused", Unavailable, "refused";
    /// What it says is not of this contract.
    Protocol = "protocol", InvalidArgument, "the message is not of this contract";
    /// It speaks another version of the contract.
    Version = "version", Unimplemented, "this version of the contract is not spoken here";
    /// It does not know the secret.
    Secret = "secret", Unauthenticated, "the secret is not proven";
    /// It proved the secret, and is not the node that was dialled.
    UnexpectedNode = "unexpected_node", FailedPrecondition, "another node was expected";
    /// Another node of this name is here already (MESH-6).
    NameTaken = "name_taken", AlreadyExists, "the name is taken by another node";
    /// The other side is the one to dial: its name is the smaller one.
    Direction = "direction", FailedPrecondition, "the node with the smaller name dials";
    /// As many nodes are linked as may be.
    TooMany = "too_many", ResourceExhausted, "too many nodes";
    /// This node has left the cluster.
    Left = "left", Unavailable, "this node is not in the cluster";
}

/// A failure, and what there is to say about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) failure: Failure,
    /// For the operator, without control characters; empty where the reason says it all.
    pub(super) why: String,
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        failure.because(String::new())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.failure.label())?;
        match self.why.is_empty() {
            true => Ok(()),
            false => write!(f, ": {}", self.why),
        }
    }
}

impl Failure {
    /// With the words of this side.
    pub(super) fn because(self, why: String) -> Fault {
        Fault { failure: self, why }
    }

    /// What a peer's status says, as far as this side can tell.
    pub(super) fn told(status: &Status) -> Self {
        match status.code() {
            Code::Unauthenticated => Self::Secret,
            Code::AlreadyExists => Self::NameTaken,
            Code::Unimplemented => Self::Version,
            _ => Self::Refused,
        }
    }
}
