use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pollux_policy::JobId;
use pollux_store::JobRow;
use tokio::sync::{Semaphore, watch};

use super::events::UnreadableLines;
use super::failure::HttpError;
use super::hosts::Hosts;
use super::rates::Rates;
use crate::series::Series;
use crate::{Handle, Retention, Server};
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
            closing: watch::Sender::new(false),
        }
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

    /// The row of a job, which everything that was ever submitted has.
    pub(crate) async fn row(&self, job: JobId) -> Result<JobRow, HttpError> {
        let row = self.handle.read(move |reader| reader.job(job)).await?;
        row.ok_or_else(|| Refusal::UnknownJob { job }.into())
    }
}
