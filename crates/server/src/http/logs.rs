use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use pollux_api::Failure;
use pollux_backend::ReplicaId;
use pollux_policy::JobId;
use serde::Deserialize;
use tokio::task;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Id, Query};
use super::failure::HttpError;
use super::feed::{Pieces, feed};
use super::state::AppState;
use super::tail::{LogFiles, Tail};
use crate::JobSummary;

/// How often a log that is followed is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// More renames in a row than any log has.
const OPENINGS_MAX: usize = 5;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(logs))
}

#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LogsQuery {
    /// Only this replica, and without its number before each line.
    #[param(maximum = 18_446_744_073_709_551_615_u64)]
    replica: Option<u64>,
    /// Only so many lines of each replica, the last ones.
    #[param(maximum = 18_446_744_073_709_551_615_u64)]
    tail: Option<u64>,
    /// Goes on until the job has ended.
    #[serde(default)]
    follow: bool,
}

/// What the replicas of a job have written.
#[utoipa::path(get, path = "/v1/jobs/{id}/logs", tag = "jobs", security(("token" = [])),
    params(Id, LogsQuery),
    responses((status = 200, body = String, content_type = "text/plain; charset=utf-8"),
              (status = "default", body = Failure)))]
async fn logs(
    State(state): State<AppState>,
    Id(job): Id,
    Query(query): Query<LogsQuery>,
) -> Result<Response, HttpError> {
    let written = find(&state, job, query.replica).await?;
    let produce = |pieces| tell(state.clone(), job, query, written, pieces);
    feed(&state, "text/plain; charset=utf-8", produce)
}

/// Where replicas have written, and whether there may be more.
struct Written {
    is_live: bool,
    files: BTreeMap<u64, Vec<PathBuf>>,
}

async fn find(state: &AppState, job: JobId, only: Option<u64>) -> Result<Written, HttpError> {
    let live = state.handle.look(move |cluster| cluster.engine().job(job).map(|_| cluster.replicas(job)));
    let (is_live, replicas) = match live.get().await? {
        Some(replicas) => (true, replicas),
        None => {
            let ended = state.row(job).await?.ended;
            let summary = ended.and_then(|ended| serde_json::from_str::<JobSummary>(&ended.summary).ok());
            (false, summary.map(|summary| summary.replicas).unwrap_or_default())
        }
    };
    if let Some(replica) = only.filter(|only| !replicas.contains(&ReplicaId(*only))) {
        return Err(HttpError::NoReplica { job, replica });
    }
    let wanted = replicas.into_iter().filter(move |replica| only.is_none_or(|only| replica.0 == only));
    let files = state.handle.look(move |cluster| wanted.map(|it| (it.0, cluster.log_files(it))).collect());
    Ok(Written { is_live, files: files.get().await? })
}

/// Opens the files of a replica, which may be renamed meanwhile.
async fn open(state: &AppState, job: JobId, replica: u64, mut paths: Vec<PathBuf>) -> Option<LogFiles> {
    for _ in 0..OPENINGS_MAX {
        if let Ok(files) = task::spawn_blocking(move || LogFiles::open(&paths)).await.ok()? {
            return Some(files);
        }
        paths = find(state, job, Some(replica)).await.ok()?.files.remove(&replica)?;
    }
    None
}

async fn tell(state: AppState, job: JobId, query: LogsQuery, mut written: Written, pieces: Pieces) -> Option<()> {
    let mut tails: BTreeMap<u64, Tail> = BTreeMap::new();
    let mut skip = query.tail;
    loop {
        let is_last = !query.follow || !written.is_live;
        for (replica, paths) in written.files {
            let prefix = || query.replica.is_none().then(|| format!("{replica}| "));
            // Logs of the oldest replicas are deleted.
            let Some(mut files) = open(&state, job, replica, paths).await else { continue };
            let mut tail = tails.remove(&replica).unwrap_or_else(|| Tail::new(prefix()));
            let mut skip = skip;
            loop {
                let read = move || {
                    skip.inspect(|&lines| tail.skip_to_last(&mut files, lines));
                    let lines = tail.read(&mut files);
                    (tail, files, lines)
                };
                let lines;
                (tail, files, lines) = task::spawn_blocking(read).await.ok()?;
                skip = None;
                if lines.is_empty() {
                    break;
                }
                pieces.send(lines).await?;
            }
            if is_last {
                pieces.send(tail.rest()).await?;
            }
            tails.insert(replica, tail);
        }
        if is_last {
            return None;
        }
        skip = None;
        tokio::time::sleep(LOOK_AGAIN).await;
        written = find(&state, job, query.replica).await.ok()?;
    }
}
