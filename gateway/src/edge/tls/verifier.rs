//! Verification of client certificates.
//!
//! Responsible for the chain, the dates and the revocation lists. Must never ask who the peer is.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::VerifierBuilderError;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use webpki::{EndEntityCert, KeyUsage, RevocationCheckDepth, RevocationOptionsBuilder};

use crate::config::ClientAuth;
use crate::pki::{self, Credentials};

/// The verifier of a listener; `None` when it asks for no certificate.
pub(super) fn of(
    client_auth: ClientAuth,
    credentials: &Credentials,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, VerifierBuilderError> {
    if client_auth == ClientAuth::None {
        return Ok(None);
    }
    let roots = Arc::clone(&credentials.roots);
    // Lists are asked about the peer's own certificate: an install's CA signs it directly, and
    // has no list about itself. Their date is not enforced: who could hold back a newer list can
    // write this host's files, and a late one must not cut off the server.
    let mut builder = WebPkiClientVerifier::builder_with_provider(roots, pki::provider())
        .with_crls(credentials.revocation_lists.iter().cloned())
        .only_check_end_entity_revocation();
    if client_auth == ClientAuth::Request {
        builder = builder.allow_unauthenticated();
    }
    let of_clients = builder.build()?;
    Ok(Some(Arc::new(PeerVerifier {
        of_clients,
        credentials: credentials.clone(),
    })))
}

/// Takes a certificate that is meant for clients, and one that is meant for servers alone: the
/// control plane calls with the certificate that it serves with, and its authorization asks for
/// that very purpose (MGMT-AUTH-1).
#[derive(Debug)]
struct PeerVerifier {
    of_clients: Arc<dyn ClientCertVerifier>,
    credentials: Credentials,
}

impl PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), webpki::Error> {
        let lists: Vec<_> = self.credentials.revoked.iter().collect();
        let revocation = RevocationOptionsBuilder::new(&lists)
            .ok()
            .map(|options| options.with_depth(RevocationCheckDepth::EndEntity).build());
        EndEntityCert::try_from(end_entity)?
            .verify_for_usage(
                pki::provider().signature_verification_algorithms.all,
                &self.credentials.roots.roots,
                intermediates,
                now,
                KeyUsage::server_auth(),
                revocation,
                None,
            )
            .map(drop)
    }
}

impl ClientCertVerifier for PeerVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let judged = self
            .of_clients
            .verify_client_cert(end_entity, intermediates, now);
        match judged {
            Err(Error::InvalidCertificate(
                CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. },
            )) => {}
            judged => return judged,
        }
        match self.verify_server_cert(end_entity, intermediates, now) {
            Ok(()) => Ok(ClientCertVerified::assertion()),
            Err(webpki::Error::UnknownIssuer) => Err(CertificateError::UnknownIssuer.into()),
            Err(webpki::Error::CertRevoked) => Err(CertificateError::Revoked.into()),
            Err(webpki::Error::UnknownRevocationStatus) => {
                Err(CertificateError::UnknownRevocationStatus.into())
            }
            Err(_) => judged,
        }
    }

    fn offer_client_auth(&self) -> bool {
        self.of_clients.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.of_clients.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.of_clients.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.of_clients.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.of_clients.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.of_clients.supported_verify_schemes()
    }
}
