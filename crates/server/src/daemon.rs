use std::error::Error;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::Uri;
use pollux_api::Role;
use pollux_backend::{Backend, Observer};
use pollux_store::HistoryEvent;
use serde_json::json;
use tokio::runtime::{self, Runtime};
use tokio::task::JoinHandle;
use tracing::{debug, error, warn};

use crate::history_event::Sentence;
use crate::http::{
    AppState, HttpSettings, Listeners, UnixSocket, prune_regularly, sample, serve, serve_socket, take_turns,
};
use crate::tokens::LOCAL_TOKEN;
use crate::{Handle, Server, ServerError, ServerSettings, User, files};

const TOKEN_FILE: &str = "token";
const SERVER_FILE: &str = "server.json";
/// A file of the state folder that must stay the same for as long as jobs live; made if it is not there.
pub const GROUP_SECRET_FILE: &str = "group-secret";
/// What a read that is under way may take when everything else has ended.
const LAST_READS: Duration = Duration::from_secs(1);

/// A scheduler and its REST interface.
#[derive(Debug)]
pub struct Daemon {
    server: Server,
    state: AppState,
    runtime: Runtime,
    serving: Vec<JoinHandle<std::io::Result<()>>>,
    url: String,
    server_file: PathBuf,
}

/// Ends a [`Daemon`], from any thread.
#[derive(Clone, Debug)]
pub struct Stopper(AppState);

impl Stopper {
    /// Lets [`Daemon::wait`] return.
    pub fn stop(&self) {
        self.0.close();
    }
}

impl Daemon {
    /// Carries on with what the state folder holds, and answers. The URL of the settings is where it then listens.
    pub fn start<E: Into<Box<dyn Error + Send + Sync>>>(
        settings: ServerSettings,
        http: &HttpSettings,
        open_backend: impl FnOnce(Observer) -> Result<Box<dyn Backend>, E>,
    ) -> Result<Self, ServerError> {
        let workers = settings.worker_url.as_deref().map(|url| worker_url(url, http.tls.is_some())).transpose()?;
        let mut http = http.clone();
        http.hosts.extend(workers.as_ref().map(|(_, host)| host.clone()));
        let listeners = Listeners::bind(&http, &settings.state_dir)?;
        let url = workers.map_or_else(|| listeners.local_url(), |(url, _)| url);
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(32)
            .thread_name("http")
            .enable_all()
            .build()
            .map_err(ServerError::Thread)?;
        let workers_look_at = url.clone();
        let server = Server::start(ServerSettings { url, ..settings }, open_backend)?;
        if let Some(record) = server.damaged() {
            warn!(record, "{}", Sentence(&HistoryEvent::Damaged { record }));
        }
        // The state folder is ours, and what another scheduler has left in it.
        let published = http.socket.as_ref().map_or(Ok(None), UnixSocket::bind).and_then(|socket| {
            publish_address(&server, &listeners, socket.as_ref())?;
            Ok((socket, group_secret(server.state_dir())?))
        });
        match published {
            Ok((socket, secret)) => {
                let state = AppState::new(&server, listeners.public.hosts.clone()).with(&http);
                let state = state.with_group_secret(&secret).with_worker_url(&workers_look_at);
                Ok(Self::answer(server, runtime, listeners, socket, state))
            }
            Err(error) => {
                // What cannot be reached must not schedule.
                if let Err(reason) = server.handle().shut_down().wait() {
                    warn!(%reason, "the scheduler has ended otherwise");
                }
                server.join()?;
                Err(error)
            }
        }
    }

    fn answer(
        server: Server,
        runtime: Runtime,
        listeners: Listeners,
        socket: Option<UnixSocket>,
        state: AppState,
    ) -> Self {
        let (url, server_file) = (listeners.url(), server.state_dir().join(SERVER_FILE));
        let Listeners { public, workers, missed } = listeners;
        if let Some(port) = missed {
            warn!(port, "workers of an earlier server look for it at a port that another program has taken");
        }
        let listeners = [Some(public), workers].into_iter().flatten();
        let mut serving: Vec<_> = listeners.map(|listener| runtime.spawn(serve(listener, state.clone()))).collect();
        serving.extend(socket.map(|socket| runtime.spawn(serve_socket(socket, state.clone()))));
        serving.push(runtime.spawn(sample(state.clone())));
        serving.push(runtime.spawn(prune_regularly(state.clone())));
        serving.push(runtime.spawn(take_turns(state.clone())));
        Self { server, state, runtime, serving, url, server_file }
    }

    /// Where it is reached.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How to speak to the scheduler without a socket.
    pub const fn handle(&self) -> &Handle {
        self.server.handle()
    }

    /// How to end it.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.state.clone())
    }

    /// Waits until it is told to end, or the scheduler cannot go on; then answers what is under way, saves and ends.
    /// Replicas run on.
    pub fn wait(mut self) -> Result<(), ServerError> {
        self.runtime.block_on(async {
            tokio::select! {
                () = self.server.ended() => {}
                () = self.state.closed() => {}
            }
            self.state.close();
            for serving in self.serving {
                match serving.await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => error!(%error, "a listener has failed"),
                    Err(error) => error!(%error, "a listener has failed"),
                }
            }
        });
        if let Err(reason) = self.server.handle().shut_down().wait() {
            // Why is said below.
            debug!(%reason, "the scheduler has ended already");
        }
        self.runtime.shutdown_timeout(LAST_READS);
        if let Err(error) = fs::remove_file(&self.server_file) {
            // A client only finds out a moment later.
            warn!(file = %self.server_file.display(), %error, "the file that says where the server is stays");
        }
        self.server.join()
    }
}

/// An address at which workers can be told to look, and its host. What they say must not be read along on the way.
fn worker_url(url: &str, has_tls: bool) -> Result<(String, String), ServerError> {
    let refused = || ServerError::WorkerUrl { url: url.to_owned() };
    let parsed: Uri = url.parse().map_err(|_| refused())?;
    let host = parsed.host().filter(|host| !host.is_empty()).ok_or_else(refused)?;
    let is_local = || {
        let name = host.trim_matches(['[', ']']);
        name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    };
    let is_usable = match parsed.scheme_str() {
        Some("https") => has_tls,
        Some("http") => is_local(),
        Some(_) | None => false,
    };
    match is_usable {
        true => Ok((url.trim_end_matches('/').to_owned(), host.to_owned())),
        false => Err(refused()),
    }
}

/// What the keys of groups are made from. It stays the same, so that workers of one job that were started before and after
/// a restart know each other.
fn group_secret(state_dir: &Path) -> Result<String, ServerError> {
    files::token(&state_dir.join(GROUP_SECRET_FILE))
}

/// Lets those who may read the state folder find and open the server.
fn publish_address(server: &Server, listeners: &Listeners, socket: Option<&UnixSocket>) -> Result<(), ServerError> {
    let state_dir = server.state_dir();
    let token = files::token(&state_dir.join(TOKEN_FILE))?;
    server.handle().replace_token(User::new(LOCAL_TOKEN, Role::Admin), &token).wait().map_err(ServerError::Token)?;
    listeners.remember(state_dir)?;
    let socket = socket.map(UnixSocket::file);
    let found = json!({"url": listeners.command_url(), "socket": socket, "pid": std::process::id()});
    files::write(&state_dir.join(SERVER_FILE), &format!("{found}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_told_an_address_that_nobody_reads_along_and_its_host_is_known() {
        for (url, host) in [
            ("https://pollux.example:8443/", "pollux.example"),
            ("https://[fd00::1]/", "[fd00::1]"),
            ("https://10.0.0.7", "10.0.0.7"),
            ("http://[::1]:7878", "[::1]"),
            ("http://localhost:7878/", "localhost"),
        ] {
            let told = worker_url(url, true).unwrap();
            assert_eq!(told, (url.trim_end_matches('/').to_owned(), host.to_owned()));
        }
        for url in ["", "pollux.example", "https://", "http://pollux.example", "http://127.0.0.1.example", "ftp://::1/"]
        {
            assert!(worker_url(url, true).is_err(), "{url}");
        }
        assert!(worker_url("https://pollux.example", false).is_err());
    }
}
