use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use pollux_api::{
    AllocationOutput, AllocationQueue, AllocationQueueList, AllocationQueueSpec, AllocationRehearsal, ClusterStatus,
    EventList, Explanation, Failure, IssuedNodeToken, IssuedToken, Job, JobDetail, JobList, MachineRemoval, NodeList,
    NodeTokenRequest, PruneReport, PruneRequest, TokenList, TokenRequest, WhatIf, WhatIfRequest,
};
use pollux_job::{JobSpec, Phase};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::config::ConfigBuilder;
use ureq::http::{Response, StatusCode};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::{AgentScope, WithoutBody};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::{Agent, Body, RequestBuilder};

use crate::messages::Messages;
use crate::unix_socket::SocketConnector;
use crate::{ClientError, Connection, EventStream, LogStream};

const CONNECT: Duration = Duration::from_secs(5);
/// What a server may take to answer; a submission waits for its disk.
const ANSWER: Duration = Duration::from_secs(30);
/// A stream of events is never silent for so long: the server sends comments.
const SILENCE: Duration = Duration::from_secs(90);
/// Far above any answer of ours.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Most jobs in one answer.
const PAGE_MAX: u32 = 1_000;

/// Speaks to one server. Calls wait for the answer.
#[derive(Clone)]
pub struct Client {
    agent: Agent,
    /// As people know it.
    url: String,
    /// What paths are put after.
    origin: String,
    /// Without one, the server knows who asks by the socket.
    authorization: Option<String>,
}

// Whatever prints a client must not show the token.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("url", &self.url).finish_non_exhaustive()
    }
}

/// What may be done with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobAction {
    /// End it.
    Cancel,
    /// Set it aside.
    Pause,
    /// Let it go on.
    Resume,
}

impl JobAction {
    /// What is true of a job once it is accepted.
    pub const fn outcome(self) -> &'static str {
        match self {
            Self::Cancel => "is cancelled",
            Self::Pause => "is paused",
            Self::Resume => "goes on when there are GPUs for it",
        }
    }
}

/// What may be done with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAction {
    /// Empty it, and use it no more.
    Drain,
    /// Use it again.
    Undrain,
}

/// Which jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobQuery<'a> {
    /// Of this phase only.
    pub phase: Option<Phase>,
    /// Of this owner only.
    pub owner: Option<&'a str>,
    /// So many at most; what a server thinks right, if left out.
    pub limit: Option<u32>,
    /// Live ones that were submitted after this one only, then ended ones.
    pub after_live: Option<u64>,
    /// Ended ones that were submitted before this one only.
    pub before: Option<u64>,
}

impl JobQuery<'_> {
    /// What to ask for after an answer; nothing if it was the last.
    pub const fn next(self, answer: &JobList) -> Option<Self> {
        match (answer.next_after_live, answer.next_before) {
            (None, None) => None,
            (Some(_), _) => Some(Self { after_live: answer.next_after_live, before: None, ..self }),
            (None, Some(_)) => Some(Self { after_live: None, before: answer.next_before, ..self }),
        }
    }
}

/// Which lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Of one replica only.
    pub replica: Option<u64>,
    /// Only the last N lines.
    pub tail: Option<u64>,
}

/// Which events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Later than this one.
    pub after: u64,
    /// Of one job only.
    pub job: Option<u64>,
    /// So many at most; what a server thinks right, if left out.
    pub limit: Option<u32>,
}

impl Client {
    /// Speaks to the server at the other end of a connection; nothing is sent yet.
    pub fn new(connection: &Connection) -> Result<Self, ClientError> {
        let tls = TlsConfig::builder().root_certs(authorities(connection)?).build();
        Ok(Self {
            agent: config().tls_config(tls).build().new_agent(),
            url: connection.url.clone(),
            origin: connection.url.clone(),
            authorization: Some(format!("Bearer {}", connection.token)),
        })
    }

    /// Speaks to a server of this machine, which is told by the system who asks.
    pub fn of_socket(socket: &Path) -> Self {
        let connector = SocketConnector(socket.to_owned());
        Self {
            agent: Agent::with_parts(config().build(), connector, DefaultResolver::default()),
            url: format!("unix:{}", socket.display()),
            // Nobody is looked for under it.
            origin: "http://127.0.0.1".to_owned(),
            authorization: None,
        }
    }

    /// Where the server is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The cluster as a whole.
    pub fn cluster(&self) -> Result<ClusterStatus, ClientError> {
        self.get("cluster")
    }

    /// Every node that is up.
    pub fn nodes(&self) -> Result<NodeList, ClientError> {
        self.get("nodes")
    }

    /// Drains or undrains a node.
    pub fn act_on_node(&self, name: &str, action: NodeAction) -> Result<(), ClientError> {
        let verb = match action {
            NodeAction::Drain => "drain",
            NodeAction::Undrain => "undrain",
        };
        self.order(&format!("nodes/{}/{verb}", escaped(name)))
    }

    /// A token that lets machines join for some time.
    pub fn issue_node_token(&self, expires_s: u64) -> Result<IssuedNodeToken, ClientError> {
        self.post("node-tokens", &NodeTokenRequest { expires_s })
    }

    /// Removes a machine that has joined.
    pub fn remove_machine(&self, name: &str) -> Result<MachineRemoval, ClientError> {
        let request = self.agent.delete(self.at(&format!("nodes/{}", escaped(name))));
        self.read(self.call(request)?)
    }

    /// Queues of allocations.
    pub fn allocation_queues(&self) -> Result<AllocationQueueList, ClientError> {
        self.get("allocation-queues")
    }

    /// One of them.
    pub fn allocation_queue(&self, name: &str) -> Result<AllocationQueue, ClientError> {
        self.get(&format!("allocation-queues/{}", escaped(name)))
    }

    /// Adds a queue of allocations.
    pub fn add_allocation_queue(&self, request: &AllocationQueueSpec) -> Result<AllocationQueue, ClientError> {
        self.post("allocation-queues", request)
    }

    /// What Slurm would say to an allocation.
    pub fn rehearse_allocation(&self, request: &AllocationQueueSpec) -> Result<AllocationRehearsal, ClientError> {
        self.post("allocation-rehearsals", request)
    }

    /// Has a queue ask for nothing more.
    pub fn pause_allocation_queue(&self, name: &str) -> Result<(), ClientError> {
        self.order(&format!("allocation-queues/{}/pause", escaped(name)))
    }

    /// Has a queue go on.
    pub fn resume_allocation_queue(&self, name: &str) -> Result<(), ClientError> {
        self.order(&format!("allocation-queues/{}/resume", escaped(name)))
    }

    /// Removes a queue with all that it has.
    pub fn remove_allocation_queue(&self, name: &str) -> Result<(), ClientError> {
        let request = self.agent.delete(self.at(&format!("allocation-queues/{}", escaped(name))));
        self.call(request).map(drop)
    }

    /// What an allocation has printed: one with a number in Slurm, or the newest.
    pub fn allocation_output(&self, name: &str, job: Option<u64>) -> Result<AllocationOutput, ClientError> {
        let path = format!("allocation-queues/{}/output", escaped(name));
        self.get(&with_query(&path, [job.map(|job| format!("job={job}"))]))
    }

    /// When jobs would be complete, as the cluster is and with changes; nothing is changed.
    pub fn what_if(&self, request: &WhatIfRequest) -> Result<WhatIf, ClientError> {
        self.post("what-if", request)
    }

    /// Submits a job; it is durable when this returns.
    pub fn submit(&self, spec: &JobSpec) -> Result<Job, ClientError> {
        self.post("jobs", spec)
    }

    /// One answer's worth of jobs.
    pub fn jobs(&self, query: JobQuery<'_>) -> Result<JobList, ClientError> {
        let phase = query.phase.map(|phase| format!("phase={}", phase.word()));
        let owner = query.owner.map(|owner| format!("owner={}", escaped(owner)));
        let limit = query.limit.map(|limit| format!("limit={limit}"));
        let after_live = query.after_live.map(|after| format!("after_live={after}"));
        let before = query.before.map(|before| format!("before={before}"));
        self.get(&with_query("jobs", [phase, owner, limit, after_live, before]))
    }

    /// Up to so many jobs, in as many requests as it takes.
    pub fn jobs_up_to(&self, limit: u32, query: JobQuery<'_>) -> Result<JobList, ClientError> {
        let query = JobQuery { limit: Some(limit.min(PAGE_MAX)), ..query };
        let mut list = self.jobs(query)?;
        let mut known: BTreeSet<u64> = list.jobs.iter().map(|job| job.id).collect();
        while let Some(next) = query.next(&list) {
            let missing = limit.saturating_sub(u32::try_from(list.jobs.len()).unwrap_or(u32::MAX));
            if missing == 0 {
                break;
            }
            let page = self.jobs(JobQuery { limit: Some(missing.min(PAGE_MAX)), ..next })?;
            // One that was live, and has ended since, is there already.
            list.jobs.extend(page.jobs.into_iter().filter(|job| known.insert(job.id)));
            (list.next_after_live, list.next_before) = (page.next_after_live, page.next_before);
        }
        Ok(list)
    }

    /// Everything about one job.
    pub fn job(&self, id: u64) -> Result<JobDetail, ClientError> {
        self.get(&format!("jobs/{id}"))
    }

    /// Why a job has what it has.
    pub fn explanation(&self, id: u64) -> Result<Explanation, ClientError> {
        self.get(&format!("jobs/{id}/explanation"))
    }

    /// Cancels, pauses or resumes a job.
    pub fn act(&self, id: u64, action: JobAction) -> Result<(), ClientError> {
        let verb = match action {
            JobAction::Cancel => "cancel",
            JobAction::Pause => "pause",
            JobAction::Resume => "resume",
        };
        self.order(&format!("jobs/{id}/{verb}"))
    }

    /// What the replicas of a job wrote.
    pub fn logs(&self, id: u64, query: LogQuery) -> Result<impl Read + Send + use<>, ClientError> {
        let replica = query.replica.map(|replica| format!("replica={replica}"));
        let tail = query.tail.map(|tail| format!("tail={tail}"));
        let path = with_query(&format!("jobs/{id}/logs"), [replica, tail]);
        Ok(self.call(self.agent.get(self.at(&path)))?.into_body().into_reader())
    }

    /// What the replicas of a job wrote and write, as it comes. With `after`, which has the position of the last piece of
    /// each replica, it goes on where another stream stopped.
    pub fn log_stream(
        &self,
        id: u64,
        query: LogQuery,
        after: &BTreeMap<u64, String>,
    ) -> Result<LogStream, ClientError> {
        let replica = query.replica.map(|replica| format!("replica={replica}"));
        let tail = query.tail.map(|tail| format!("tail={tail}"));
        let places: Vec<String> = after.iter().map(|(replica, position)| format!("{replica}.{position}")).collect();
        let after = (!places.is_empty()).then(|| format!("after={}", places.join(",")));
        let path = with_query(&format!("jobs/{id}/logs/stream"), [replica, tail, after]);
        Ok(LogStream::new(self.stream(&path)?))
    }

    /// What happened, the oldest first.
    pub fn events(&self, query: EventQuery) -> Result<EventList, ClientError> {
        let limit = query.limit.map(|limit| format!("limit={limit}"));
        self.get(&with_query("events", [Some(format!("after={}", query.after)), job_of(query), limit]))
    }

    /// What happened and happens, as it comes; a limit is not heeded.
    pub fn event_stream(&self, query: EventQuery) -> Result<EventStream, ClientError> {
        let path = with_query("events/stream", [Some(format!("after={}", query.after)), job_of(query)]);
        Ok(EventStream::new(self.stream(&path)?))
    }

    fn stream(&self, path: &str) -> Result<Messages, ClientError> {
        let request = self.agent.get(self.at(path)).config().timeout_per_read(Some(SILENCE)).build();
        let body = self.call(request)?.into_body().into_reader();
        Ok(Messages::new(self.url.clone(), Box::new(BufReader::new(body))))
    }

    /// Deletes old checkpoints of jobs that are over, or says what would be deleted.
    pub fn prune(&self, request: &PruneRequest) -> Result<PruneReport, ClientError> {
        self.post("checkpoints/prune", request)
    }

    /// The tokens of users.
    pub fn tokens(&self) -> Result<TokenList, ClientError> {
        self.get("tokens")
    }

    /// A new token.
    pub fn issue_token(&self, request: &TokenRequest) -> Result<IssuedToken, ClientError> {
        self.post("tokens", request)
    }

    /// Makes a token worthless.
    pub fn revoke_token(&self, label: &str) -> Result<(), ClientError> {
        let request = self.agent.delete(self.at(&format!("tokens/{}", escaped(label))));
        self.call(request).map(drop)
    }

    /// What became of a stream that broke while it was read.
    pub fn broken_stream(&self, error: &io::Error) -> ClientError {
        ClientError::of_stream(&self.url, error)
    }

    fn at(&self, path: &str) -> String {
        format!("{}/v1/{path}", self.origin)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let request = self.agent.get(self.at(path)).config().timeout_global(Some(ANSWER)).build();
        self.read(self.call(request)?)
    }

    fn call(&self, request: RequestBuilder<WithoutBody>) -> Result<Response<Body>, ClientError> {
        self.sent(self.signed(request).call())
    }

    fn post<T: DeserializeOwned>(&self, path: &str, request: &impl Serialize) -> Result<T, ClientError> {
        let body = serde_json::to_vec(request).expect("requests have text for keys");
        let post = self.signed(self.agent.post(self.at(path)));
        let post = post.header("Content-Type", "application/json").config().timeout_global(Some(ANSWER)).build();
        self.read(self.sent(post.send(&body))?)
    }

    /// A request that says it all by its path.
    fn order(&self, path: &str) -> Result<(), ClientError> {
        let post = self.signed(self.agent.post(self.at(path)));
        self.sent(post.config().timeout_global(Some(ANSWER)).build().send_empty()).map(drop)
    }

    fn signed<Any>(&self, request: RequestBuilder<Any>) -> RequestBuilder<Any> {
        match &self.authorization {
            Some(authorization) => request.header("Authorization", authorization),
            None => request,
        }
    }

    /// An answer that is a success.
    fn sent(&self, answer: Result<Response<Body>, ureq::Error>) -> Result<Response<Body>, ClientError> {
        let response = answer.map_err(|error| ClientError::of_transport(&self.url, &error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status == StatusCode::UNAUTHORIZED {
            return Err(ClientError::Token { url: self.url.clone() });
        }
        let Failure { error } = self.read(response).map_err(|_| ClientError::Garbage {
            url: self.url.clone(),
            reason: format!("status {status} without a reason"),
        })?;
        Err(ClientError::Refused { status: status.as_u16(), code: error.code, message: error.message })
    }

    fn read<T: DeserializeOwned>(&self, mut response: Response<Body>) -> Result<T, ClientError> {
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let body = body.map_err(|error| ClientError::of_transport(&self.url, &error))?;
        let garbage =
            |error: serde_json::Error| ClientError::Garbage { url: self.url.clone(), reason: error.to_string() };
        serde_json::from_slice(&body).map_err(garbage)
    }
}

/// A token must reach nobody but the server: no proxy of the environment, no redirect.
fn config() -> ConfigBuilder<AgentScope> {
    let config = Agent::config_builder().http_status_as_error(false).max_redirects(0).proxy(None);
    config.timeout_connect(Some(CONNECT)).timeout_recv_response(Some(ANSWER))
}

/// Who may vouch for the server.
fn authorities(connection: &Connection) -> Result<RootCerts, ClientError> {
    let Some(file) = &connection.authority else { return Ok(RootCerts::WebPki) };
    let remedy = "expected certificates in a PEM file";
    let unusable = |reason: String| ClientError::File { file: file.clone(), reason, remedy };
    let text = fs::read(file).map_err(|error| unusable(error.to_string()))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&text) {
        // A key may lie in the same file.
        if let PemItem::Certificate(certificate) = item.map_err(|error| unusable(error.to_string()))? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err(unusable("no certificate".to_owned()));
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

fn with_query<const N: usize>(path: &str, terms: [Option<String>; N]) -> String {
    let terms: Vec<String> = terms.into_iter().flatten().collect();
    if terms.is_empty() { path.to_owned() } else { format!("{path}?{}", terms.join("&")) }
}

fn job_of(query: EventQuery) -> Option<String> {
    query.job.map(|job| format!("job={job}"))
}

/// A name as one part of a path or query.
fn escaped(name: &str) -> String {
    let mut part = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => part.push(char::from(byte)),
            _ => part += &format!("%{byte:02X}"),
        }
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_one_part_of_a_path() {
        assert_eq!(escaped("local-0"), "local-0");
        assert_eq!(escaped("../jobs?x=1 ä"), "%2E%2E%2Fjobs%3Fx%3D1%20%C3%A4");
    }

    #[test]
    fn queries_say_what_was_asked_for_and_nothing_else() {
        assert_eq!(with_query("jobs", [None, None]), "jobs");
        assert_eq!(with_query("jobs", [Some("a=1".to_owned()), None, Some("b=2".to_owned())]), "jobs?a=1&b=2");
    }
}
