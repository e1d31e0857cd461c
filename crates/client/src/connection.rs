use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use ureq::http::Uri;

use crate::ClientError;

/// How to reach a server, and what opens it.
#[derive(Clone, PartialEq, Eq)]
pub struct Connection {
    /// Where it is, like `http://127.0.0.1:7878`.
    pub url: String,
    /// What opens it.
    pub token: String,
    /// A file with the authority of its certificate, where the well-known ones do not know it.
    pub authority: Option<PathBuf>,
}

// Whatever prints a connection must not show the token.
impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("url", &self.url).finish_non_exhaustive()
    }
}

/// What a server writes into its state folder. It may say more.
#[derive(Deserialize)]
struct ServerFile {
    url: String,
    socket: Option<PathBuf>,
}

impl Connection {
    /// A server given by its address, or the one that runs with the state folder. The folder's token, if none is given,
    /// is for that one and for this machine only.
    pub fn find(url: Option<&str>, token: Option<&str>, state_dir: &Path) -> Result<Self, ClientError> {
        let url = match url {
            Some(url) => checked(url)?,
            None => checked(&address_in(state_dir)?)?,
        };
        let is_own = || {
            let host = url.parse::<Uri>().ok().and_then(|uri| uri.host().map(is_loopback));
            host == Some(true) || address_in(state_dir).is_ok_and(|own| own.trim_end_matches('/') == url)
        };
        let token = match token {
            Some(token) if is_token(token) => token.to_owned(),
            Some(_) => return Err(ClientError::UnusableToken),
            None if is_own() => token_in(state_dir)?,
            None => return Err(ClientError::NoToken { url }),
        };
        Ok(Self { url, token, authority: None })
    }
}

/// The socket of the server that runs with a state folder, if it has one that is there.
pub fn socket_in(state_dir: &Path) -> Option<PathBuf> {
    let text = fs::read(state_dir.join("server.json")).ok()?;
    let found: ServerFile = serde_json::from_slice(&text).ok()?;
    found.socket.filter(|socket| socket.exists())
}

fn address_in(state_dir: &Path) -> Result<String, ClientError> {
    let file = state_dir.join("server.json");
    let remedy = "start a server with `pollux up`, or give --server URL";
    let text = match fs::read(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(ClientError::Unknown { folder: state_dir.to_owned() });
        }
        Err(error) => return Err(ClientError::File { file, reason: error.to_string(), remedy }),
    };
    let whereabouts: Result<ServerFile, _> = serde_json::from_slice(&text);
    whereabouts.map(|it| it.url).map_err(|error| ClientError::File { file, reason: error.to_string(), remedy })
}

fn token_in(state_dir: &Path) -> Result<String, ClientError> {
    let file = state_dir.join("token");
    let remedy = "give a token in POLLUX_TOKEN";
    match fs::read_to_string(&file) {
        Ok(text) if is_token(text.trim()) => Ok(text.trim().to_owned()),
        Ok(_) => Err(ClientError::File { file, reason: "no token".to_owned(), remedy }),
        Err(error) => Err(ClientError::File { file, reason: error.to_string(), remedy }),
    }
}

/// Whether it can stand in a header.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The address without a slash at its end, if a token may be sent there.
fn checked(url: &str) -> Result<String, ClientError> {
    let refused = |reason| ClientError::Address { url: url.to_owned(), reason };
    let uri: Uri = url.parse().map_err(|_| refused("no address"))?;
    let host = uri.host().ok_or_else(|| refused("no host"))?;
    if !uri.path().trim_end_matches('/').is_empty() || uri.query().is_some() {
        return Err(refused("more than a host and a port"));
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(refused("a user's name in it"));
    }
    match uri.scheme_str() {
        Some("https") => {}
        Some("http") if is_loopback(host) => {}
        Some("http") => return Err(refused("the network would see the token")),
        Some(_) | None => return Err(refused("neither http nor https")),
    }
    Ok(url.trim_end_matches('/').to_owned())
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_folder_says_where_the_server_is_and_what_opens_it() {
        let folder = tempfile::tempdir().unwrap();
        let find = || Connection::find(None, None, folder.path());
        let missing = find().unwrap_err().to_string();
        assert!(missing.ends_with(": start one with `pollux up`, or give --server URL"), "{missing}");
        fs::write(folder.path().join("server.json"), r#"{"url": "http://127.0.0.1:7878", "pid": 1}"#).unwrap();
        let closed = find().unwrap_err().to_string();
        assert!(closed.ends_with("; give a token in POLLUX_TOKEN"), "{closed}");
        fs::write(folder.path().join("token"), "secret\n").unwrap();
        let found = find().unwrap();
        assert_eq!((found.url.as_str(), found.token.as_str()), ("http://127.0.0.1:7878", "secret"));
        let given = Connection::find(Some("https://gpus.example/"), Some("other"), folder.path()).unwrap();
        assert_eq!((given.url.as_str(), given.token.as_str()), ("https://gpus.example", "other"));
        assert!(!format!("{found:?}").contains("secret"));
    }

    #[test]
    fn the_token_of_the_state_folder_is_sent_to_its_own_server_and_this_machine_only() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("server.json"), r#"{"url": "https://gpus.example:7878"}"#).unwrap();
        fs::write(folder.path().join("token"), "secret\n").unwrap();
        let find = |url, token| Connection::find(Some(url), token, folder.path()).map(|found| found.token);
        for url in ["https://gpus.example:7878/", "http://127.0.0.1:9", "https://localhost:9"] {
            assert_eq!(find(url, None).unwrap(), "secret");
        }
        let refused = find("https://elsewhere.example", None).unwrap_err().to_string();
        assert_eq!(
            refused,
            "https://elsewhere.example is not the server of this state folder: give a token in POLLUX_TOKEN"
        );
        for token in ["", "two words", "\u{fffd}"] {
            let refused = find("https://gpus.example:7878", Some(token)).unwrap_err();
            assert!(matches!(refused, ClientError::UnusableToken) && refused.is_mistake());
        }
    }

    #[test]
    fn files_that_make_no_sense_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let find = || Connection::find(None, None, folder.path()).unwrap_err().to_string();
        fs::write(folder.path().join("server.json"), "7878").unwrap();
        assert!(find().contains("server.json: invalid type: integer"), "{}", find());
        fs::write(folder.path().join("server.json"), r#"{"url": "http://127.0.0.1:7878"}"#).unwrap();
        for text in ["", "two words", "\u{1b}"] {
            fs::write(folder.path().join("token"), text).unwrap();
            assert!(find().ends_with("token: no token; give a token in POLLUX_TOKEN"), "{}", find());
        }
    }

    #[test]
    fn tokens_are_sent_in_the_clear_to_this_machine_only() {
        for url in ["http://127.0.0.1:7878", "http://[::1]:7878", "http://localhost:7878", "https://example.com"] {
            assert_eq!(checked(url).unwrap(), url);
        }
        for (url, reason) in [
            ("http://example.com", "the network would see the token"),
            ("http://127.0.0.1.example.com", "the network would see the token"),
            ("http://127.0.0.1@example.com", "a user's name in it"),
            ("ftp://localhost", "neither http nor https"),
            ("localhost:7878", "neither http nor https"),
            ("http://localhost:7878/v1", "more than a host and a port"),
            ("http://", "no address"),
            ("/v1", "no host"),
        ] {
            let error = checked(url).unwrap_err().to_string();
            assert!(error.starts_with(&format!("server {url:?}: {reason}; expected ")), "{error}");
        }
    }
}
