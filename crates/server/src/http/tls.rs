use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::listeners::TlsFiles;
use crate::ServerError;

/// TLS as these files say.
pub(super) fn configure(files: &TlsFiles) -> Result<Arc<ServerConfig>, ServerError> {
    let TlsFiles { certificate, key } = files;
    let certificates: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| refused(certificate, &error))?;
    if certificates.is_empty() {
        return Err(refused(certificate, &"no certificate in it: expected PEM"));
    }
    let private_key = PrivateKeyDer::from_pem_file(key).map_err(|error| refused(key, &error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, private_key));
    let mut config = config.map_err(|error| refused(certificate, &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn refused(file: &Path, reason: &dyn std::fmt::Display) -> ServerError {
    ServerError::Tls { file: file.to_owned(), reason: reason.to_string() }
}
