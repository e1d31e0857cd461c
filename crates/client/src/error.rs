use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a request came to nothing.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nobody listens there.
    #[error("no server at {url}: start one with `pollux up`")]
    NoServer {
        /// Where it should be.
        url: String,
    },
    /// Nobody has said where a server is.
    #[error("no server runs with state folder {}: start one with `pollux up`, or give --server URL", .folder.display())]
    Unknown {
        /// Where its address would be.
        folder: PathBuf,
    },
    /// An address that cannot be one, or would show the token to others.
    #[error("server {url:?}: {reason}; expected https://HOST:PORT, and http://HOST:PORT or unix:FILE of this machine")]
    Address {
        /// As given.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A file that says how to reach the server cannot be used.
    #[error("{}: {reason}; {remedy}", .file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// What would help.
        remedy: &'static str,
    },
    /// A token that cannot be one. It is not shown.
    #[error("POLLUX_TOKEN is no token; expected what `pollux token` shows, or nothing")]
    UnusableToken,
    /// A server that the token of the state folder is not for.
    #[error("{url} is not the server of this state folder: give a token in POLLUX_TOKEN")]
    NoToken {
        /// As given.
        url: String,
    },
    /// The server was there and is not any more, or does not answer.
    #[error("the server at {url} does not answer ({reason}): try again")]
    Away {
        /// Where it is.
        url: String,
        /// What was seen of it.
        reason: String,
    },
    /// Its certificate is not to be trusted.
    #[error("the server at {url} is not trusted ({reason}): give its certificate's authority in POLLUX_CA")]
    Untrusted {
        /// Where it is.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The token does not open it.
    #[error("the server at {url} does not know this token: give a valid one in POLLUX_TOKEN")]
    Token {
        /// Where it is.
        url: String,
    },
    /// It says no, and why.
    #[error("{message}{}", next_step(.code))]
    Refused {
        /// Of the answer.
        status: u16,
        /// One word for programs.
        code: String,
        /// One line for people.
        message: String,
    },
    /// What it says makes no sense.
    #[error("{url} answers with what no Pollux server would say ({reason}): give another address")]
    Garbage {
        /// Where it is.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Where a command finds the names that there are. The server speaks to programs, too, and knows no commands.
fn next_step(code: &str) -> &'static str {
    match code {
        "unknown_job" => "; `pollux ps -a` lists jobs",
        "unknown_node" => "; `pollux nodes` lists nodes",
        "unknown_token" => "; `pollux token list` lists tokens",
        "unknown_replica" => "; `pollux describe JOB` lists replicas",
        // The rest says it all.
        _ => "",
    }
}

impl ClientError {
    /// Whether something has to be asked for differently, for the same will be refused again.
    pub const fn is_mistake(&self) -> bool {
        match self {
            Self::Address { .. } | Self::UnusableToken | Self::NoToken { .. } => true,
            Self::Refused { status, .. } => matches!(status, 400 | 404 | 405 | 409 | 413 | 415 | 422),
            Self::NoServer { .. }
            | Self::Unknown { .. }
            | Self::File { .. }
            | Self::Away { .. }
            | Self::Untrusted { .. }
            | Self::Token { .. }
            | Self::Garbage { .. } => false,
        }
    }

    /// Whether the server is away for now, and the same may be answered later.
    pub const fn is_passing(&self) -> bool {
        match self {
            Self::NoServer { .. } | Self::Away { .. } => true,
            Self::Refused { status, .. } => *status == 503,
            Self::Unknown { .. }
            | Self::Address { .. }
            | Self::File { .. }
            | Self::UnusableToken
            | Self::NoToken { .. }
            | Self::Untrusted { .. }
            | Self::Token { .. }
            | Self::Garbage { .. } => false,
        }
    }

    /// What became of a request to `url`, as the transport tells it.
    pub(crate) fn of_transport(url: &str, error: &ureq::Error) -> Self {
        let url = url.to_owned();
        match error {
            ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => Self::NoServer { url },
            ureq::Error::Io(reason)
                if matches!(reason.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) =>
            {
                Self::NoServer { url }
            }
            ureq::Error::Io(reason) => Self::of_stream(&url, reason),
            ureq::Error::Rustls(_) | ureq::Error::Tls(_) | ureq::Error::Pem(_) => {
                Self::Untrusted { url, reason: error.to_string() }
            }
            ureq::Error::Protocol(_) | ureq::Error::Http(_) => Self::Garbage { url, reason: error.to_string() },
            // Whatever else there is, a later attempt may fare better.
            _ => Self::Away { url, reason: error.to_string() },
        }
    }

    /// What became of a stream from `url`.
    pub(crate) fn of_stream(url: &str, error: &io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>()) {
            Some(inner) if !matches!(inner, ureq::Error::Io(_)) => Self::of_transport(url, inner),
            _ if error.to_string().contains("certificate") => {
                Self::Untrusted { url: url.to_owned(), reason: error.to_string() }
            }
            _ => Self::Away { url: url.to_owned(), reason: error.to_string() },
        }
    }
}
