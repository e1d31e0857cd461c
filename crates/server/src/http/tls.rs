use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tracing::{info, warn};

use super::listeners::TlsFiles;
use crate::ServerError;

/// TLS as these files say. Once they are replaced, new connections get what is in them then.
pub(super) fn configure(files: &TlsFiles) -> Result<Arc<ServerConfig>, ServerError> {
    let renewed = Renewed { files: files.clone(), current: Mutex::new((changes(files), read(files)?)) };
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(&files.certificate, &error))?;
    let mut config = config.with_no_client_auth().with_cert_resolver(Arc::new(renewed));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// When certificate and key were written last.
type Changes = [Option<SystemTime>; 2];

/// A certificate that is read again when its files have changed.
#[derive(Debug)]
struct Renewed {
    files: TlsFiles,
    current: Mutex<(Changes, Arc<CertifiedKey>)>,
}

impl ResolvesServerCert for Renewed {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = changes(&self.files);
        if changes != current.0 {
            current.0 = changes;
            match read(&self.files) {
                Ok(certificate) => {
                    info!(file = %self.files.certificate.display(), "a new certificate is shown from now on");
                    current.1 = certificate;
                }
                // The other file may be about to be written, too.
                Err(error) => warn!(%error, "the old certificate is shown until the new one can be read"),
            }
        }
        Some(Arc::clone(&current.1))
    }
}

fn changes(TlsFiles { certificate, key }: &TlsFiles) -> Changes {
    [certificate, key].map(|file| fs::metadata(file).and_then(|found| found.modified()).ok())
}

fn read(TlsFiles { certificate, key }: &TlsFiles) -> Result<Arc<CertifiedKey>, ServerError> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| refused(certificate, &error))?;
    if certificates.is_empty() {
        return Err(refused(certificate, &"no certificate in it: expected PEM"));
    }
    let private_key = PrivateKeyDer::from_pem_file(key).map_err(|error| refused(key, &error))?;
    let certified = CertifiedKey::from_der(certificates, private_key, &ring::default_provider());
    certified.map(Arc::new).map_err(|error| refused(certificate, &error))
}

/// SHA-256 of the certificate that is shown, by which a machine knows its scheduler.
pub(super) fn fingerprint(files: &TlsFiles) -> Option<String> {
    let first = CertificateDer::pem_file_iter(&files.certificate).ok()?.next()?.ok()?;
    Some(Sha256::digest(first).iter().map(|byte| format!("{byte:02x}")).collect())
}

fn refused(file: &Path, reason: &dyn std::fmt::Display) -> ServerError {
    ServerError::Tls { file: file.to_owned(), reason: reason.to_string() }
}
