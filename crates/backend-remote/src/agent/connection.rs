//! The way to the scheduler: TLS to whoever shows the certificate that was known when the machine joined.

use std::io;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONNECTION, HOST, HeaderValue, UPGRADE};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use super::AgentError;
use crate::members::hex;
use crate::protocol::{PATH, UPGRADE as PROTOCOL_NAME};

/// What each step of a connection may take.
const STEP_MAX: Duration = Duration::from_secs(10);
/// What is read of a refusal.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// A stream to the scheduler.
pub(super) type Stream = Pin<Box<dyn Duplex>>;

/// What can be read and written.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// Why there is no connection.
pub(super) enum Failure {
    /// It may be there the next time.
    Broken(String),
    /// The scheduler answered, and will say the same again.
    Refused(String),
}

/// Where a scheduler is, and how it is told from a fake one.
#[derive(Clone, Debug)]
pub struct Scheduler {
    host: String,
    port: u16,
    is_tls: bool,
    pin: Option<String>,
    authorities: Option<Arc<WebPkiServerVerifier>>,
}

impl Scheduler {
    /// A scheduler at `https://HOST:PORT`, or one of this machine at `http://`. Over the network it shows the certificate
    /// with the fingerprint `pin`, or one that the authorities of a PEM file vouch for.
    pub fn new(url: &str, pin: Option<String>, authorities: Option<&Path>) -> Result<Self, AgentError> {
        let refused = |reason: &str| AgentError::Address { url: url.to_owned(), reason: reason.to_owned() };
        let uri: Uri = url.parse().map_err(|_| refused("expected https://HOST:PORT"))?;
        let host = uri.host().ok_or_else(|| refused("expected https://HOST:PORT"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if !uri.path().trim_end_matches('/').is_empty() || uri.query().is_some() {
            return Err(refused("expected a host and a port, and nothing behind them"));
        }
        let is_local = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if is_local => false,
            Some("http") => return Err(refused("the network would see secrets of jobs: expected https://HOST:PORT")),
            Some(_) | None => return Err(refused("expected https://HOST:PORT")),
        };
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let authorities = authorities.map(verifier).transpose()?;
        Ok(Self { host, port, is_tls, pin, authorities })
    }

    /// The fingerprint that the token to join has brought.
    pub(super) fn pin(&self) -> Option<&str> {
        self.pin.as_deref()
    }

    /// The address of this machine on the way to the scheduler.
    pub(super) fn own_address(&self) -> Result<String, AgentError> {
        let url = format!("{}:{}", self.host, self.port);
        let failed = |reason: String| AgentError::Address { url: url.clone(), reason };
        let mut found = (self.host.as_str(), self.port).to_socket_addrs().map_err(|error| failed(error.to_string()))?;
        let to = found.next().ok_or_else(|| failed("no such host".to_owned()))?;
        let any: IpAddr = if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0_u16; 8].into() };
        // Nothing is sent: the system only looks for the way.
        let way = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(to)?;
            socket.local_addr()
        });
        Ok(way.map_err(|error| failed(format!("no way there: {error}; give --address")))?.ip().to_string())
    }

    /// Opens a connection with a token.
    pub(super) async fn open(&self, token: &str, pins: &[String]) -> Result<Stream, Failure> {
        let to = format!("{}:{}", self.host, self.port);
        let broken = |reason: &dyn std::fmt::Display| Failure::Broken(format!("{to}: {reason}"));
        let late = || Failure::Broken(format!("{to}: no answer within {} s", STEP_MAX.as_secs()));
        let connected = timeout(STEP_MAX, TcpStream::connect((self.host.as_str(), self.port))).await;
        let stream = connected.map_err(|_| late())?.map_err(|error| broken(&error))?;
        stream.set_nodelay(true).map_err(|error| broken(&error))?;
        if !self.is_tls {
            return timeout(STEP_MAX, self.upgrade(stream, token)).await.map_err(|_| late())?;
        }
        let config = self.trusting(pins).map_err(|error| broken(&error))?;
        let name = ServerName::try_from(self.host.clone()).map_err(|error| broken(&error))?;
        let shaken = timeout(STEP_MAX, TlsConnector::from(Arc::new(config)).connect(name, stream)).await;
        let stream = shaken.map_err(|_| late())?.map_err(|error| match unknown(&error) {
            true => broken(
                &"it shows a certificate that is not the one that the token names: take a token from `pollux token \
                  create --node`, or name its authority by --ca",
            ),
            false => broken(&error),
        })?;
        timeout(STEP_MAX, self.upgrade(stream, token)).await.map_err(|_| late())?
    }

    async fn upgrade(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        token: &str,
    ) -> Result<Stream, Failure> {
        let broken = |error: hyper::Error| Failure::Broken(format!("{}:{}: {error}", self.host, self.port));
        let (mut requests, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(connection.with_upgrades());
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let mut bearer = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| Failure::Refused("the token is none: expected letters and digits".to_owned()))?;
        bearer.set_sensitive(true);
        let request = Request::get(PATH)
            .header(HOST, format!("{host}:{}", self.port))
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, PROTOCOL_NAME)
            .header(AUTHORIZATION, bearer)
            .body(Empty::<Bytes>::new())
            .map_err(|error| Failure::Broken(error.to_string()))?;
        let response = requests.send_request(request).await.map_err(broken)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let status = response.status();
            let body = http_body_util::Limited::new(response.into_body(), REFUSAL_BYTES_MAX).collect().await;
            let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            let reason = reason(status, &body);
            return Err(if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
                Failure::Broken(reason)
            } else {
                Failure::Refused(reason)
            });
        }
        let upgraded = hyper::upgrade::on(response).await.map_err(broken)?;
        Ok(Box::pin(TokioIo::new(upgraded)))
    }

    fn trusting(&self, pins: &[String]) -> Result<ClientConfig, Error> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Known { pins: pins.to_vec(), authorities: self.authorities.clone(), provider: provider.clone() };
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = config.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// Whether the certificate is none that was pinned, where there are no authorities.
fn unknown(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
    matches!(error, Some(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)))
}

/// What a scheduler said that does not open a connection.
fn reason(status: StatusCode, body: &[u8]) -> String {
    let said: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let message = said.as_ref().and_then(|said| said["error"]["message"].as_str());
    match (status, message) {
        (StatusCode::UNAUTHORIZED, _) => {
            "it knows neither this machine nor its token, which may have expired: `pollux token create --node` makes \
             another"
                .to_owned()
        }
        (StatusCode::NOT_FOUND, _) => format!("{status}: a scheduler of an earlier version, or none"),
        (_, Some(message)) => message.to_owned(),
        (_, None) => status.to_string(),
    }
}

fn verifier(file: &Path) -> Result<Arc<WebPkiServerVerifier>, AgentError> {
    let refused = |reason: String| AgentError::Authority { file: file.to_owned(), reason };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| refused(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| refused(error.to_string()))?;
        roots.add(certificate).map_err(|error| refused(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(refused("no certificate in it: expected PEM".to_owned()));
    }
    let provider = Arc::new(ring::default_provider());
    let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    built.map_err(|error| refused(error.to_string()))
}

/// Trusts certificates by their fingerprints, or by the authorities that were given.
#[derive(Debug)]
struct Known {
    pins: Vec<String>,
    authorities: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = hex(&Sha256::digest(end_entity));
        if self.pins.contains(&shown) {
            return Ok(ServerCertVerified::assertion());
        }
        match &self.authorities {
            Some(known) => known.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now),
            None => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
