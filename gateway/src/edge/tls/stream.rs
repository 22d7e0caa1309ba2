//! What a connection is carried by: the bare socket, or TLS over it.
//!
//! Responsible for one type for both. Must never look at a byte.

use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::system::TcpStream;

/// The carrier. TLS is boxed: its state is many times a socket's.
pub(crate) type Transport = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Bytes that the two ends of this TLS connection share and nobody else has (RFC 5705); none in
/// plaintext.
pub(crate) fn keying_material(stream: &Transport, label: &[u8]) -> Option<[u8; 32]> {
    let Transport::Right(tls) = stream else {
        return None;
    };
    let exported = tls.get_ref().1.export_keying_material([0; 32], label, None);
    // It fails before the handshake only, and this is after it.
    exported.ok()
}
