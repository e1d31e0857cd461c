use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pollux_api::{Assignment, AssignmentState, ReadyRequest, RendezvousRequest, ReportRequest};
use serde::Serialize;
use thiserror::Error;
use ureq::http::StatusCode;

use crate::{Connection, Token, WorkerError};

const CONNECT: Duration = Duration::from_secs(2);
/// What a server may take to answer, besides what it was asked to wait.
const ANSWER: Duration = Duration::from_secs(5);
/// Far above any assignment; an answer beyond it is not from our server.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// The worker's part of the REST interface.
pub(crate) struct Client {
    trusting: Mutex<Trusting>,
    authority: Option<PathBuf>,
    job_url: String,
    token: Token,
}

/// Connections, and the file of authorities that vouch for whoever is at their other end.
struct Trusting {
    agent: ureq::Agent,
    authorities: Vec<u8>,
}

// Whatever prints a client must not show the token.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("job_url", &self.job_url).finish_non_exhaustive()
    }
}

/// Why a request came to nothing.
#[derive(Clone, Debug, Error)]
pub(crate) enum Failure {
    /// Somebody answered whom none of the known authorities vouches for.
    #[error("a certificate that cannot be trusted ({0})")]
    Untrusted(String),
    /// Nobody answered, or not in time, or the server is in trouble.
    #[error("no answer ({0})")]
    Away(String),
    /// The generation that spoke is a thing of the past.
    #[error("another generation is current")]
    Stale,
    /// The server does not let this worker speak.
    #[error("refused with status {0}")]
    Refused(StatusCode),
    /// The server cannot use this request and never will.
    #[error("rejected with status {0}")]
    Rejected(StatusCode),
    /// An answer that makes no sense.
    #[error("an answer that makes no sense ({0})")]
    Garbage(String),
}

impl Client {
    pub(crate) fn new(connection: &Connection) -> Result<Self, WorkerError> {
        Ok(Self {
            trusting: Mutex::new(Trusting::read(connection.authority.as_deref())?),
            authority: connection.authority.clone(),
            job_url: format!("{}/v1/jobs/{}", connection.url, connection.job),
            token: connection.token.clone(),
        })
    }

    /// Asks, and once more where authorities have been replaced since: old ones vouch for nobody then.
    fn ask<T>(&self, request: impl Fn(&ureq::Agent) -> Result<T, Failure>) -> Result<T, Failure> {
        let agent = self.trusting.lock().unwrap_or_else(PoisonError::into_inner).agent.clone();
        match request(&agent) {
            Err(Failure::Untrusted(reason)) => match self.trust_anew() {
                Some(agent) => request(&agent),
                None => Err(Failure::Untrusted(reason)),
            },
            other => other,
        }
    }

    /// Connections that trust what the file of authorities holds now, if that is something else and makes sense.
    fn trust_anew(&self) -> Option<ureq::Agent> {
        let anew = Trusting::read(self.authority.as_deref()).ok()?;
        let mut trusting = self.trusting.lock().unwrap_or_else(PoisonError::into_inner);
        if anew.authorities != trusting.authorities {
            *trusting = anew;
            return Some(trusting.agent.clone());
        }
        None
    }

    /// The newest assignment; the server waits up to `wait` for one above `after`, or for the rendezvous of that one.
    pub(crate) fn assignment(&self, after: u64, unmet: bool, wait: Duration) -> Result<Assignment, Failure> {
        // A scheduler of version 0.1 knows no such wish, but has no group without a rendezvous either.
        let rendezvous = if unmet { "&rendezvous=true" } else { "" };
        let url = format!("{}/assignment?after={after}{rendezvous}&wait_s={}", self.job_url, wait.as_secs());
        let mut response = self.ask(|agent| {
            let request = agent.get(&url).header("Authorization", &self.authorization()?);
            let answer = request.config().timeout_global(Some(wait + ANSWER)).build().call();
            answer.map_err(|error| failure(&error))
        })?;
        judge(response.status())?;
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let body = body.map_err(|error| Failure::Away(error.to_string()))?;
        let assignment = serde_json::from_slice(&body).map_err(|error| Failure::Garbage(error.to_string()))?;
        check(&assignment).map_err(|reason| Failure::Garbage(reason.to_owned()))?;
        Ok(assignment)
    }

    pub(crate) fn report(&self, request: &ReportRequest) -> Result<(), Failure> {
        self.post("reports", request)
    }

    pub(crate) fn ready(&self, request: &ReadyRequest) -> Result<(), Failure> {
        self.post("ready", request)
    }

    pub(crate) fn rendezvous(&self, request: &RendezvousRequest) -> Result<(), Failure> {
        self.post("rendezvous", request)
    }

    /// A file that cannot be read now may be there in a moment.
    fn authorization(&self) -> Result<String, Failure> {
        let token = self.token.read().map_err(|error| Failure::Away(format!("POLLUX_TOKEN_FILE: {error}")))?;
        Ok(format!("Bearer {token}"))
    }

    fn post(&self, path: &str, request: &impl Serialize) -> Result<(), Failure> {
        let body = serde_json::to_vec(request).map_err(|error| Failure::Garbage(error.to_string()))?;
        let response = self.ask(|agent| {
            let post = agent.post(format!("{}/{path}", self.job_url)).header("Authorization", &self.authorization()?);
            let post = post.header("Content-Type", "application/json").config().timeout_global(Some(ANSWER)).build();
            post.send(&body).map_err(|error| failure(&error))
        })?;
        judge(response.status())
    }
}

impl Trusting {
    /// Trusts the authorities of a file, and no others; without one, those of the machine.
    fn read(authority: Option<&Path>) -> Result<Self, WorkerError> {
        // The token must reach nobody but the server: no proxy of the environment, no redirect.
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT));
        let Some(file) = authority else {
            return Ok(Self { agent: config.build().new_agent(), authorities: Vec::new() });
        };
        let refused = |reason: String| WorkerError::Authority { file: file.to_owned(), reason };
        let authorities = fs::read(file).map_err(|error| refused(error.to_string()))?;
        let agent = trusting(config, &authorities).map_err(refused)?.build().new_agent();
        Ok(Self { agent, authorities })
    }
}

/// Whoever presents a certificate that is not vouched for is not the scheduler, or was set up wrongly.
fn failure(error: &ureq::Error) -> Failure {
    let reason = error.to_string();
    if is_untrusted(error) { Failure::Untrusted(reason) } else { Failure::Away(reason) }
}

#[cfg(feature = "rustls")]
fn is_untrusted(error: &ureq::Error) -> bool {
    let cause = match error {
        ureq::Error::Rustls(cause) => Some(cause),
        ureq::Error::Io(error) => error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()),
        // The others are about what was sent and answered.
        _ => None,
    };
    matches!(cause, Some(rustls::Error::InvalidCertificate(_)))
}

#[cfg(not(feature = "rustls"))]
const fn is_untrusted(_: &ureq::Error) -> bool {
    false
}

type ConfigBuilder = ureq::config::ConfigBuilder<ureq::typestate::AgentScope>;

/// Trusts these authorities, in PEM, and no others.
#[cfg(feature = "rustls")]
fn trusting(config: ConfigBuilder, authorities: &[u8]) -> Result<ConfigBuilder, String> {
    use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

    let mut certificates = Vec::new();
    for item in parse_pem(authorities) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| error.to_string())? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err("no certificate in it".to_owned());
    }
    Ok(config.tls_config(TlsConfig::builder().root_certs(RootCerts::new_with_certs(&certificates)).build()))
}

#[cfg(not(feature = "rustls"))]
fn trusting(_: ConfigBuilder, _: &[u8]) -> Result<ConfigBuilder, String> {
    Err("this program was built without TLS".to_owned())
}

fn judge(status: StatusCode) -> Result<(), Failure> {
    let busy = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
    match status {
        _ if status.is_success() => Ok(()),
        StatusCode::CONFLICT => Err(Failure::Stale),
        _ if status.is_server_error() || busy.contains(&status) => Err(Failure::Away(format!("status {status}"))),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => Err(Failure::Refused(status)),
        _ => Err(Failure::Rejected(status)),
    }
}

/// Refuses an assignment that no group can follow.
fn check(assignment: &Assignment) -> Result<(), &'static str> {
    match assignment.state {
        AssignmentState::Stop => return Ok(()),
        AssignmentState::Run if assignment.replicas.is_empty() => return Err("a group without replicas"),
        AssignmentState::Run => {}
    }
    for (place, replica) in assignment.replicas.iter().enumerate() {
        if replica.rank as usize != place {
            return Err("ranks that are not 0, 1, 2, ... in order");
        }
        if replica.local_rank >= replica.local_world_size {
            return Err("a local rank above its node's replicas");
        }
        if assignment.replicas[..place].iter().any(|other| other.replica == replica.replica) {
            return Err("a replica that is there twice");
        }
    }
    Ok(())
}
