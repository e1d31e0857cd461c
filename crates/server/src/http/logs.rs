use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::response::sse::Event;
use pollux_api::{Failure, LogPiece};
use pollux_backend::ReplicaId;
use pollux_policy::JobId;
use serde::Deserialize;
use tokio::task;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Id, Query};
use super::failure::HttpError;
use super::feed::{self, Pieces};
use super::state::AppState;
use super::tail::{Format, Position, Tail};
use crate::JobSummary;

/// How often a log that is followed is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// What is told of one replica before it is the next one's turn.
const PIECES_MAX: usize = 4;
/// More renames in a row than any log has.
const OPENINGS_MAX: usize = 5;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(logs)).routes(routes!(stream))
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
    let LogsQuery { replica, tail, follow } = query;
    let wanted = Wanted { replica, start: tail.map_or(Start::First, Start::Last), follow, is_stream: false };
    let written = find(&state, job, replica, BTreeSet::new()).await?;
    feed::lines(&state, |pieces| send(state.clone(), job, wanted, written, pieces))
}

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LogStreamQuery {
    /// Only this replica.
    #[param(maximum = 18_446_744_073_709_551_615_u64)]
    replica: Option<u64>,
    /// Only so many lines of each replica, the last ones.
    #[param(maximum = 18_446_744_073_709_551_615_u64)]
    tail: Option<u64>,
    /// Goes on where another stream stopped: `REPLICA.POSITION` of each replica's last piece, with commas between.
    /// Goes before `tail`.
    after: Option<String>,
}

/// What the replicas of a job write, as server-sent events, until one that is called `end`: the job has ended. Pieces
/// may begin and end anywhere in a line. One that is called `begun` follows the first look at all replicas: from then
/// on, whoever goes on `after` what it was told misses nothing.
#[utoipa::path(get, path = "/v1/jobs/{id}/logs/stream", tag = "jobs", security(("token" = [])),
    params(Id, LogStreamQuery),
    responses((status = 200, body = LogPiece, content_type = "text/event-stream"),
              (status = "default", body = Failure)))]
async fn stream(
    State(state): State<AppState>,
    Id(job): Id,
    Query(query): Query<LogStreamQuery>,
) -> Result<Response, HttpError> {
    let LogStreamQuery { replica, tail, after } = query;
    let start = match after {
        Some(after) => Start::After(positions(&after)?),
        None => tail.map_or(Start::First, Start::Last),
    };
    let wanted = Wanted { replica, start, follow: true, is_stream: true };
    let written = find(&state, job, replica, BTreeSet::new()).await?;
    feed::events(&state, |pieces| send(state.clone(), job, wanted, written, pieces))
}

fn positions(after: &str) -> Result<BTreeMap<u64, Position>, HttpError> {
    let position = |text: &str| {
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        let [replica, file, offset] = [numbers.next()??, numbers.next()??, numbers.next()??];
        numbers.next().is_none().then_some((replica, Position { file, offset }))
    };
    let refused =
        |text: &str| HttpError::Query { reason: format!("after {text:?}: accepted is REPLICA.POSITION of a piece") };
    after.split(',').map(|text| position(text).ok_or_else(|| refused(text))).collect()
}

/// What somebody asked for.
struct Wanted {
    replica: Option<u64>,
    start: Start,
    follow: bool,
    is_stream: bool,
}

/// Where to begin.
enum Start {
    First,
    /// So many lines before the end of each replica's log.
    Last(u64),
    /// There; replicas that are not named are news.
    After(BTreeMap<u64, Position>),
    /// Where the last look ended; replicas that come are news.
    Next,
}

impl Wanted {
    fn format(&self, replica: u64) -> Format {
        match self.replica {
            _ if self.is_stream => Format::Messages { replica },
            Some(_) => Format::Lines { prefix: String::new() },
            None => Format::Lines { prefix: format!("{replica}| ") },
        }
    }
}

/// Who has written, and whether there may be more.
struct Written {
    is_live: bool,
    replicas: Vec<Writer>,
}

struct Writer {
    id: u64,
    /// Or may run.
    runs: bool,
    /// Where it has written, if that may be news.
    files: Option<Vec<PathBuf>>,
}

/// Looks for replicas of a job. Files of those that are `known` are not listed again, which is work for the scheduler.
async fn find(state: &AppState, job: JobId, only: Option<u64>, known: BTreeSet<u64>) -> Result<Written, HttpError> {
    let is_wanted = move |replica: &ReplicaId| only.is_none_or(|only| replica.0 == only);
    let look = state.handle.look(move |cluster| {
        cluster.engine().job(job)?;
        let running: BTreeSet<ReplicaId> = cluster.fleet.replicas().map(|(replica, _)| replica).collect();
        let writer = |replica: ReplicaId| Writer {
            id: replica.0,
            runs: running.contains(&replica),
            files: (!known.contains(&replica.0)).then(|| cluster.log_files(replica)),
        };
        Some(cluster.replicas(job).into_iter().filter(is_wanted).map(writer).collect())
    });
    let live: Option<Vec<Writer>> = look.get().await?;
    let is_live = live.is_some();
    let replicas = match live {
        Some(replicas) => replicas,
        None => {
            let ended = state.row(job).await?.ended;
            let summary = ended.and_then(|ended| serde_json::from_str::<JobSummary>(&ended.summary).ok());
            let replicas = summary.map(|summary| summary.replicas).unwrap_or_default();
            let look = state.handle.look(move |cluster| {
                let writer = |it: ReplicaId| Writer { id: it.0, runs: false, files: Some(cluster.log_files(it)) };
                replicas.into_iter().filter(is_wanted).map(writer).collect()
            });
            look.get().await?
        }
    };
    match only {
        Some(replica) if replicas.is_empty() => Err(HttpError::NoReplica { job, replica }),
        Some(_) | None => Ok(Written { is_live, replicas }),
    }
}

/// A part of an answer, made of what a [`Tail`] has told.
trait Piece: Send + Sized {
    fn of(told: Vec<u8>) -> Self;

    /// Every replica's log is read from its place on.
    fn begun() -> Option<Self>;

    /// The last one, if the job has ended and not the server.
    fn end() -> Option<Self>;
}

impl Piece for Bytes {
    fn of(told: Vec<u8>) -> Self {
        told.into()
    }

    fn begun() -> Option<Self> {
        None
    }

    fn end() -> Option<Self> {
        None
    }
}

impl Piece for Event {
    fn of(told: Vec<u8>) -> Self {
        Self::default().data(String::from_utf8_lossy(&told))
    }

    fn begun() -> Option<Self> {
        Some(Self::default().event("begun").data("{}"))
    }

    fn end() -> Option<Self> {
        Some(Self::default().event("end").data("{}"))
    }
}

async fn send<P: Piece>(
    state: AppState,
    job: JobId,
    mut wanted: Wanted,
    mut written: Written,
    pieces: Pieces<P>,
) -> Option<()> {
    let mut tails: BTreeMap<u64, Tail> = BTreeMap::new();
    let mut done: BTreeSet<u64> = BTreeSet::new();
    loop {
        let is_last = !wanted.follow || !written.is_live;
        let mut has_more = false;
        for writer in written.replicas {
            if done.contains(&writer.id) {
                continue;
            }
            let tail = tails.remove(&writer.id).unwrap_or_else(|| Tail::new(wanted.format(writer.id)));
            let tail = open(&state, job, &writer, tail, &wanted.start).await?;
            // Who is cut off before the next line goes on from here.
            if wanted.is_stream && matches!(wanted.start, Start::Last(_)) {
                pieces.send(P::of(tail.here())).await?;
            }
            let pieces_max = if is_last { usize::MAX } else { PIECES_MAX };
            let (mut tail, is_read) = pass_on(tail, &pieces, pieces_max).await?;
            has_more |= !is_read;
            if is_last || (is_read && !writer.runs && tail.is_settled()) {
                let rest = tail.rest();
                if !rest.is_empty() {
                    pieces.send(P::of(rest)).await?;
                }
                done.insert(writer.id);
            } else {
                tails.insert(writer.id, tail);
            }
        }
        if is_last {
            return pieces.send(P::end()?).await;
        }
        if !matches!(std::mem::replace(&mut wanted.start, Start::Next), Start::Next)
            && let Some(begun) = P::begun()
        {
            pieces.send(begun).await?;
        }
        if !has_more {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let settled = tails.iter().filter(|(_, tail)| tail.is_settled()).map(|(&replica, _)| replica);
        written = find(&state, job, wanted.replica, settled.chain(done.iter().copied()).collect()).await.ok()?;
    }
}

/// Opens the files of a replica, which may be renamed meanwhile. Logs of the oldest replicas are deleted.
async fn open(state: &AppState, job: JobId, writer: &Writer, mut tail: Tail, start: &Start) -> Option<Tail> {
    let Some(mut paths) = writer.files.clone() else { return Some(tail) };
    let (last, after) = match start {
        Start::First | Start::Next => (None, None),
        Start::Last(lines) => (Some(*lines), None),
        Start::After(positions) => (None, positions.get(&writer.id).copied()),
    };
    for _ in 0..OPENINGS_MAX {
        let work = move || {
            let opened = tail.open(&paths).is_ok();
            // Better all of it than nothing.
            let _ = last.filter(|_| opened).map(|lines| tail.skip_to_last(lines));
            let _ = after.filter(|_| opened).map(|position| tail.skip_to(position));
            (tail, opened)
        };
        let opened;
        (tail, opened) = task::spawn_blocking(work).await.ok()?;
        let again = if opened { None } else { find(state, job, Some(writer.id), BTreeSet::new()).await.ok() };
        let Some(again) = again else { break };
        paths = again.replicas.into_iter().find_map(|it| it.files).unwrap_or_default();
    }
    Some(tail)
}

/// Sends some of what there is, and tells whether it was all.
async fn pass_on<P: Piece>(mut tail: Tail, pieces: &Pieces<P>, pieces_max: usize) -> Option<(Tail, bool)> {
    for _ in 0..pieces_max {
        let work = move || {
            let lines = tail.read();
            (tail, lines)
        };
        let lines;
        (tail, lines) = task::spawn_blocking(work).await.ok()?;
        if lines.is_empty() {
            return Some((tail, true));
        }
        pieces.send(P::of(lines)).await?;
    }
    Some((tail, false))
}
