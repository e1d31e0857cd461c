use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pollux_api::Role;
use pollux_backend_remote::{Doorway, Nodes};
use pollux_policy::JobId;
use pollux_store::JobRow;
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, watch};

use super::allocation_turns::Allocations;
use super::events::UnreadableLines;
use super::failure::HttpError;
use super::hosts::Hosts;
use super::rates::Rates;
use super::{Authenticator, HttpSettings, Identity, TlsFiles, Visibility, tls};
use crate::series::Series;
use crate::{Caller, Cluster, Handle, Retention, Server, User};
use pollux_engine::Refusal;

/// Streams that may be open at once.
pub(crate) const STREAMS_MAX: usize = 256;
/// Each keeps a core busy, which jobs may need.
const WHAT_IFS_MAX: usize = 1;

/// What all routes share. Copies are cheap.
#[derive(Clone, Debug)]
pub struct AppState {
    pub(crate) handle: Handle,
    pub(crate) hosts: Arc<Hosts>,
    pub(crate) state_dir: Arc<Path>,
    pub(crate) policy: &'static str,
    pub(crate) retention: Retention,
    pub(crate) rates: Arc<Rates>,
    pub(crate) streams: Arc<Semaphore>,
    pub(crate) series: Arc<Series>,
    /// Simulations of the cluster that may run at once.
    pub(crate) what_ifs: Arc<Semaphore>,
    pub(crate) unreadable: Arc<UnreadableLines>,
    /// What was last said of its health.
    pub(crate) is_healthy: Arc<AtomicBool>,
    pub(crate) authenticator: Option<Arc<dyn Authenticator>>,
    /// What the keys of groups are made from.
    group_secret: Option<Arc<str>>,
    /// Which jobs members see.
    pub(crate) visibility: Visibility,
    /// Where jobs and nodes are changed, if not here.
    pub(crate) changed_elsewhere: Option<&'static str>,
    /// Machines that may join, if any may.
    pub(crate) nodes: Option<Nodes>,
    /// Queues of allocations, if Slurm may be asked for nodes.
    pub(crate) allocations: Option<Allocations>,
    /// The certificate and its key, where there is one.
    tls: Option<Arc<TlsFiles>>,
    /// Where workers look for the scheduler.
    worker_url: Arc<str>,
    /// What a replica may take to save and leave.
    pub(crate) grace: Duration,
    closing: watch::Sender<bool>,
}

impl AppState {
    /// For a scheduler that is reached under these names.
    pub fn new(server: &Server, hosts: Hosts) -> Self {
        Self {
            handle: server.handle().clone(),
            hosts: Arc::new(hosts),
            state_dir: server.state_dir().into(),
            policy: server.policy(),
            retention: server.retention(),
            rates: Arc::default(),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            series: Arc::new(Series::load(server.state_dir())),
            what_ifs: Arc::new(Semaphore::new(WHAT_IFS_MAX)),
            unreadable: Arc::default(),
            is_healthy: Arc::new(AtomicBool::new(true)),
            authenticator: None,
            group_secret: None,
            visibility: Visibility::default(),
            changed_elsewhere: None,
            nodes: None,
            allocations: None,
            tls: None,
            worker_url: "".into(),
            grace: server.grace(),
            closing: watch::Sender::new(false),
        }
    }

    /// The same with tokens of others, and with jobs and nodes that are changed elsewhere.
    #[must_use]
    pub fn with(self, settings: &HttpSettings) -> Self {
        let (authenticator, changed_elsewhere) = (settings.authenticator.clone(), settings.changed_elsewhere);
        let (nodes, tls) = (settings.nodes.clone(), settings.tls.clone().map(Arc::new));
        let allocations = settings.allocations.as_ref().map(Allocations::new);
        Self { authenticator, changed_elsewhere, nodes, allocations, tls, visibility: settings.visibility, ..self }
    }

    /// The same for workers that look for the scheduler there.
    #[must_use]
    pub(crate) fn with_worker_url(self, url: &str) -> Self {
        Self { worker_url: url.into(), ..self }
    }

    /// The fingerprint of the certificate that is shown now, if there is one.
    pub(crate) fn fingerprint(&self) -> Option<String> {
        self.tls.as_deref().and_then(tls::fingerprint)
    }

    /// Where machines that join find the scheduler.
    pub(crate) fn worker_url(&self) -> &str {
        &self.worker_url
    }

    /// What a machine that connects is to know.
    pub(crate) fn doorway(&self, peer: IpAddr) -> Doorway {
        let state = self.clone();
        Doorway { peer, worker_url: self.worker_url.to_string(), certificate: Arc::new(move || state.fingerprint()) }
    }

    /// The same behind another listener.
    pub(crate) fn at(&self, hosts: Hosts) -> Self {
        Self { hosts: Arc::new(hosts), ..self.clone() }
    }

    /// What is drawn over time.
    pub fn series(&self) -> &Series {
        &self.series
    }

    /// Ends whatever waits: long polls and streams.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Waits until it is to end.
    pub(crate) async fn closed(&self) {
        // Our own sender is there for as long as this.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    /// Whether it is to end.
    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// The same with keys for the groups of jobs.
    #[must_use]
    pub fn with_group_secret(self, secret: &str) -> Self {
        Self { group_secret: Some(secret.into()), ..self }
    }

    /// What the workers of a job know each other by.
    pub(crate) fn group_key(&self, job: JobId) -> Option<String> {
        let secret = self.group_secret.as_deref()?;
        let digest = Sha256::digest(format!("{secret} group {}", job.0));
        Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Whom a token belongs to.
    pub(crate) async fn caller(&self, token: &str) -> Result<Option<Caller>, HttpError> {
        if let Some(caller) = self.handle.caller(token) {
            return Ok(Some(caller));
        }
        if let Some(machine) = self.nodes.as_ref().and_then(|nodes| nodes.caller(token)) {
            return Ok(Some(Caller::Machine(machine)));
        }
        let Some(authenticator) = &self.authenticator else { return Ok(None) };
        Ok(match authenticator.verify(token).await? {
            None => None,
            Some(Identity::User(name)) => Some(Caller::User(User { name, role: Role::Admin })),
            Some(Identity::Viewer(owner)) => Some(Caller::Viewer(owner)),
            Some(Identity::Monitor(name)) => Some(Caller::Monitor(name)),
            Some(Identity::Worker { job, owner }) => {
                let is_own = move |cluster: &Cluster<'_>| cluster.spec(job).is_some_and(|spec| spec.owner == owner);
                self.handle.look(is_own).get().await?.then_some(Caller::Job(job))
            }
        })
    }

    /// Whose a job is.
    pub(crate) async fn owner(&self, job: JobId) -> Result<String, HttpError> {
        let live = self.handle.look(move |cluster| cluster.spec(job).map(|spec| spec.owner.clone())).get().await?;
        match live {
            Some(owner) => Ok(owner),
            None => Ok(self.row(job).await?.submitted.spec.owner),
        }
    }

    /// The row of a job, which everything that was ever submitted has.
    pub(crate) async fn row(&self, job: JobId) -> Result<JobRow, HttpError> {
        let row = self.handle.read(move |reader| reader.job(job)).await?;
        row.ok_or_else(|| Refusal::UnknownJob { job }.into())
    }
}
