//! The PROXY header that a connection begins with, v1 and v2 (ORIGIN-6).
//!
//! Responsible for reading exactly the header, so that TLS or HTTP/2 begins with the next byte,
//! and for what it claims. Must never read without a bound in bytes; the time is the caller's.

use std::io;
use std::net::IpAddr;

use ppp::{v1, v2};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Both versions are longer than the signature of v2.
const SIGNATURE: usize = v2::PROTOCOL_PREFIX.len();
/// Signature, version and command, family, length.
const V2_FIXED: usize = SIGNATURE + 4;
/// Addresses and the additional fields that proxies send; the protocol's own bound is 65,535.
const V2_REST: usize = 4_096;
const V1_PREFIX: &[u8] = b"PROXY";
/// The longest line of v1, its end included.
const V1_LINE: usize = 107;

/// Whom a proxy claims to speak for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Nobody: there is no header, or it says LOCAL.
    None,
    /// Somebody, in a way that is no IP address.
    Bad,
    /// This address, IPv4-mapped IPv6 folded.
    Address(IpAddr),
}

/// Reads the header, and not a byte more.
///
/// # Errors
/// What is there is no PROXY header, or the connection ended within it.
pub(crate) async fn read<I: AsyncRead + Unpin>(io: &mut I) -> io::Result<Claim> {
    let mut header = vec![0; SIGNATURE];
    io.read_exact(&mut header).await?;
    if header == v2::PROTOCOL_PREFIX {
        read_v2(io, header).await
    } else if header.starts_with(V1_PREFIX) {
        read_v1(io, header).await
    } else {
        Err(no_header("neither version begins like this"))
    }
}

async fn read_v2<I: AsyncRead + Unpin>(io: &mut I, mut header: Vec<u8>) -> io::Result<Claim> {
    header.resize(V2_FIXED, 0);
    io.read_exact(&mut header[SIGNATURE..]).await?;
    let rest = usize::from(u16::from_be_bytes([
        header[V2_FIXED - 2],
        header[V2_FIXED - 1],
    ]));
    if rest > V2_REST {
        return Err(no_header("it is too long"));
    }
    header.resize(V2_FIXED + rest, 0);
    io.read_exact(&mut header[V2_FIXED..]).await?;
    let header = v2::Header::try_from(&*header).map_err(|_| no_header("v2 is malformed"))?;
    if header.command == v2::Command::Local {
        return Ok(Claim::None);
    }
    Ok(match header.addresses {
        v2::Addresses::IPv4(addresses) => claim(addresses.source_address.into()),
        v2::Addresses::IPv6(addresses) => claim(addresses.source_address.into()),
        v2::Addresses::Unspecified | v2::Addresses::Unix(_) => Claim::Bad,
    })
}

async fn read_v1<I: AsyncRead + Unpin>(io: &mut I, mut line: Vec<u8>) -> io::Result<Claim> {
    // One byte at a time: nothing behind the line may be taken.
    while !line.ends_with(b"\r\n") {
        if line.len() == V1_LINE {
            return Err(no_header("v1 has no end"));
        }
        line.push(io.read_u8().await?);
    }
    let header = v1::Header::try_from(&*line).map_err(|_| no_header("v1 is malformed"))?;
    Ok(match header.addresses {
        v1::Addresses::Tcp4(addresses) => claim(addresses.source_address.into()),
        v1::Addresses::Tcp6(addresses) => claim(addresses.source_address.into()),
        v1::Addresses::Unknown => Claim::Bad,
    })
}

fn claim(address: IpAddr) -> Claim {
    Claim::Address(address.to_canonical())
}

fn no_header(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests;
