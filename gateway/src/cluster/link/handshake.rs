//! How two nodes prove the shared secret to each other on one connection (MESH-2).
//!
//! Responsible for what each side says, for what is proven by it, and for judging the other side.
//! Pure: nonces and keys are arguments. Must never send the secret, nor believe a name before the
//! proof.
//!
//! A proof is an HMAC over everything that both sides said: names, incarnations, instances, nonces,
//! versions, capabilities, the dialler's address, the role, and on TLS the keying material of this very connection. So a
//! proof is of no use on another connection, to another node, or thrown back at its maker.

use std::sync::Arc;

use ring::hmac;
use yuzu_proto::node::v1::{HelloRequest, HelloResponse, NodeIdentity, ProveRequest};

use super::failure::Failure;
use crate::cluster::secret::Keys;

/// The version of the contract that is spoken here.
pub(crate) const PROTOCOL: u32 = 1;

/// Nothing beyond version 1 so far.
const CAPABILITIES: [&str; 0] = [];

const DOMAIN: &[u8] = b"yuzu.node.v1 link";
const NONCE: usize = 32;
const MAX_CAPABILITIES: usize = 64;
const MAX_NAME: usize = 255;
const MAX_CAPABILITY: usize = 64;
const MAX_ADDRESS: usize = 260;

/// Fresh for each handshake.
pub(crate) type Nonce = [u8; NONCE];
/// Keying material of a TLS connection; none in plaintext.
pub(crate) type Binding = Option<[u8; 32]>;

/// One life of one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) name: Arc<str>,
    /// Unix milliseconds of its start.
    pub(crate) incarnation: u64,
    /// Random: tells a namesake from this node itself.
    pub(crate) instance: [u8; 16],
}

impl Identity {
    /// Whether this one came later than a namesake, which then has the name (MESH-6).
    pub(crate) fn is_younger_than(&self, other: &Self) -> bool {
        (self.incarnation, self.instance) > (other.incarnation, other.instance)
    }

    fn told(&self) -> NodeIdentity {
        NodeIdentity {
            name: self.name.to_string(),
            incarnation: self.incarnation,
            instance: self.instance.to_vec().into(),
        }
    }

    fn heard(told: Option<&NodeIdentity>) -> Result<Self, Failure> {
        let told = told.ok_or(Failure::Protocol)?;
        let plain = |name: &str| !name.chars().any(char::is_control);
        let fits = (1..=MAX_NAME).contains(&told.name.len()) && plain(&told.name);
        match <[u8; 16]>::try_from(&told.instance[..]) {
            Ok(instance) if fits => Ok(Self {
                name: told.name.as_str().into(),
                incarnation: told.incarnation,
                instance,
            }),
            _ => Err(Failure::Protocol),
        }
    }
}

/// Who makes a proof.
#[derive(Debug, Clone, Copy)]
enum Role {
    Dialler,
    Dialled,
}

/// What one side said.
#[derive(Debug, Clone)]
struct Said {
    node: Identity,
    nonce: Nonce,
    capabilities: Vec<String>,
    /// Of the side that dials, if it knows its own.
    address: String,
}

impl Said {
    fn by(node: &Identity, nonce: Nonce) -> Self {
        Self {
            node: node.clone(),
            nonce,
            capabilities: CAPABILITIES.map(str::to_owned).to_vec(),
            address: String::new(),
        }
    }

    fn at(mut self, address: &str) -> Result<Self, Failure> {
        if address.len() > MAX_ADDRESS || address.chars().any(char::is_control) {
            return Err(Failure::Protocol);
        }
        self.address = address.to_owned();
        Ok(self)
    }

    fn heard(
        node: Option<&NodeIdentity>,
        nonce: &[u8],
        protocol: u32,
        capabilities: &[String],
    ) -> Result<Self, Failure> {
        if protocol != PROTOCOL {
            return Err(Failure::Version);
        }
        let short = |capability: &String| capability.len() <= MAX_CAPABILITY;
        if capabilities.len() > MAX_CAPABILITIES || !capabilities.iter().all(short) {
            return Err(Failure::Protocol);
        }
        Ok(Self {
            node: Identity::heard(node)?,
            nonce: nonce.try_into().map_err(|_| Failure::Protocol)?,
            capabilities: capabilities.to_vec(),
            address: String::new(),
        })
    }

    /// Every part behind its length, so that no two statements have the same bytes.
    fn write(&self, out: &mut Vec<u8>) {
        put(out, self.node.name.as_bytes());
        put(out, &self.node.incarnation.to_be_bytes());
        put(out, &self.node.instance);
        put(out, &self.nonce);
        put(out, &PROTOCOL.to_be_bytes());
        put(out, &(self.capabilities.len() as u32).to_be_bytes());
        for capability in &self.capabilities {
            put(out, capability.as_bytes());
        }
        if !self.address.is_empty() {
            put(out, self.address.as_bytes());
        }
    }
}

fn put(out: &mut Vec<u8>, part: &[u8]) {
    out.extend_from_slice(&(part.len() as u32).to_be_bytes());
    out.extend_from_slice(part);
}

/// What both sides said on one connection.
#[derive(Debug)]
struct Transcript {
    dialler: Said,
    dialled: Said,
    binding: Binding,
}

impl Transcript {
    fn bytes(&self, role: Role) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024);
        put(&mut out, DOMAIN);
        put(
            &mut out,
            match role {
                Role::Dialler => b"dialler",
                Role::Dialled => b"dialled",
            },
        );
        put(
            &mut out,
            self.binding.as_ref().map_or(&[], |binding| binding),
        );
        self.dialler.write(&mut out);
        self.dialled.write(&mut out);
        out
    }

    fn prove(&self, role: Role, keys: &Keys) -> bytes::Bytes {
        let proof = hmac::sign(keys.of_links(), &self.bytes(role));
        bytes::Bytes::copy_from_slice(proof.as_ref())
    }

    /// Compares in constant time.
    fn judge(&self, role: Role, keys: &Keys, proof: &[u8]) -> Result<(), Failure> {
        hmac::verify(keys.of_links(), &self.bytes(role), proof).map_err(|_| Failure::Secret)
    }
}

/// The side that dials, between its Hello and the answer.
#[derive(Debug)]
pub(crate) struct Dialling {
    said: Said,
    binding: Binding,
}

impl Dialling {
    /// `address` is where this node is dialled; empty while it is unknown.
    ///
    /// # Errors
    /// It is no address.
    pub(crate) fn begin(
        own: &Identity,
        address: &str,
        nonce: Nonce,
        binding: Binding,
    ) -> Result<(Self, HelloRequest), Failure> {
        let said = Said::by(own, nonce).at(address)?;
        let hello = HelloRequest {
            node: Some(own.told()),
            nonce: nonce.to_vec().into(),
            protocol: PROTOCOL,
            capabilities: said.capabilities.clone(),
            address: said.address.clone(),
        };
        Ok((Self { said, binding }, hello))
    }

    /// Judges the other side, and proves this one only if it is good.
    ///
    /// # Errors
    /// Nothing of what it said may be believed.
    pub(crate) fn answered(
        self,
        answer: &HelloResponse,
        keys: &Keys,
    ) -> Result<(Identity, ProveRequest), Failure> {
        let dialled = Said::heard(
            answer.node.as_ref(),
            &answer.nonce,
            answer.protocol,
            &answer.capabilities,
        )?;
        let peer = dialled.node.clone();
        let transcript = Transcript {
            dialler: self.said,
            dialled,
            binding: self.binding,
        };
        transcript.judge(Role::Dialled, keys, &answer.proof)?;
        let proof = transcript.prove(Role::Dialler, keys);
        Ok((peer, ProveRequest { proof }))
    }
}

/// The side that was dialled, between its answer and the proof.
#[derive(Debug)]
pub(crate) struct Dialled {
    transcript: Transcript,
}

impl Dialled {
    /// Answers a Hello.
    ///
    /// # Errors
    /// It can't be answered; nothing was proven.
    pub(crate) fn hear(
        hello: &HelloRequest,
        own: &Identity,
        nonce: Nonce,
        binding: Binding,
        keys: &Keys,
    ) -> Result<(Self, HelloResponse), Failure> {
        let transcript = Transcript {
            dialler: Said::heard(
                hello.node.as_ref(),
                &hello.nonce,
                hello.protocol,
                &hello.capabilities,
            )?
            .at(&hello.address)?,
            dialled: Said::by(own, nonce),
            binding,
        };
        let answer = HelloResponse {
            node: Some(own.told()),
            nonce: nonce.to_vec().into(),
            protocol: PROTOCOL,
            capabilities: transcript.dialled.capabilities.clone(),
            proof: transcript.prove(Role::Dialled, keys),
        };
        Ok((Self { transcript }, answer))
    }

    /// Judges the other side: who it is, and where it says that it is dialled, if it does.
    ///
    /// # Errors
    /// Nothing of what it said may be believed.
    pub(crate) fn proven(
        self,
        prove: &ProveRequest,
        keys: &Keys,
    ) -> Result<(Identity, String), Failure> {
        self.transcript.judge(Role::Dialler, keys, &prove.proof)?;
        let dialler = self.transcript.dialler;
        Ok((dialler.node, dialler.address))
    }
}

#[cfg(test)]
mod tests;
