use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::response::sse::Event;
use pollux_api::{Failure, LogPiece};
use pollux_backend::{LogStart, ReplicaId};
use pollux_policy::JobId;
use serde::Deserialize;
use tracing::warn;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Id, Query};
use super::failure::HttpError;
use super::feed::{self, Pieces};
use super::scope::Visible;
use super::state::AppState;
use super::tail::{Format, LogOutput, Tail};

/// How often a log that is followed is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// What is told of one replica before it is the next one's turn.
const PIECES_MAX: usize = 4;
/// What is read at once.
const CHUNK_BYTES: usize = 64 * 1024;

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
}

/// What the replicas of a job have written.
#[utoipa::path(get, path = "/v1/jobs/{id}/logs", tag = "jobs", security(("token" = [])),
    params(Id, LogsQuery),
    responses((status = 200, body = String, content_type = "text/plain; charset=utf-8"),
              (status = "default", body = Failure)))]
async fn logs(
    State(state): State<AppState>,
    Visible(job): Visible,
    Query(query): Query<LogsQuery>,
) -> Result<Response, HttpError> {
    let LogsQuery { replica, tail } = query;
    let wanted = Wanted { replica, start: Start::of(tail), is_stream: false };
    let written = find(&state, job, replica).await?;
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
    /// Goes on where another stream stopped: `REPLICA.POSITION` of each replica's last piece, with commas between. `tail`
    /// is then for replicas that are not named.
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
    Visible(job): Visible,
    Query(query): Query<LogStreamQuery>,
) -> Result<Response, HttpError> {
    let LogStreamQuery { replica, tail, after } = query;
    let start = match after {
        Some(after) => Start::After { positions: positions(&after)?, tail },
        None => Start::of(tail),
    };
    let wanted = Wanted { replica, start, is_stream: true };
    let written = find(&state, job, replica).await?;
    feed::events(&state, |pieces| send(state.clone(), job, wanted, written, pieces))
}

fn positions(after: &str) -> Result<BTreeMap<u64, u64>, HttpError> {
    let position = |text: &str| {
        let (replica, position) = text.split_once('.')?;
        Some((replica.parse().ok()?, position.parse().ok()?))
    };
    let refused =
        |text: &str| HttpError::Query { reason: format!("after {text:?}: expected REPLICA.POSITION of a piece") };
    after.split(',').map(|text| position(text).ok_or_else(|| refused(text))).collect()
}

/// What somebody asked for.
struct Wanted {
    replica: Option<u64>,
    start: Start,
    /// It goes on until the job has ended.
    is_stream: bool,
}

/// Where to begin.
enum Start {
    First,
    /// So many lines before the end of each replica's log.
    Last(u64),
    /// There, and with so many lines of replicas that are not named.
    After {
        positions: BTreeMap<u64, u64>,
        tail: Option<u64>,
    },
}

impl Start {
    fn of(tail: Option<u64>) -> Self {
        tail.map_or(Self::First, Self::Last)
    }
}

impl Wanted {
    fn tail(&self, replica: u64) -> Tail {
        let from = match &self.start {
            Start::First => LogStart::At(0),
            Start::Last(lines) => LogStart::LastLines(*lines),
            Start::After { positions, tail } => match (positions.get(&replica), tail) {
                (Some(position), _) => LogStart::At(*position),
                (None, Some(lines)) => LogStart::LastLines(*lines),
                (None, None) => LogStart::At(0),
            },
        };
        Tail::new(self.format(replica), from)
    }

    fn format(&self, replica: u64) -> Format {
        match self.replica {
            _ if self.is_stream => Format::Pieces { replica },
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
}

/// Looks for replicas of a job.
async fn find(state: &AppState, job: JobId, only: Option<u64>) -> Result<Written, HttpError> {
    let look = state.handle.look(move |cluster| {
        cluster.engine().job(job)?;
        let running: BTreeSet<ReplicaId> = cluster.fleet.replicas().map(|(replica, _)| replica).collect();
        let writer = |replica: ReplicaId| Writer { id: replica.0, runs: running.contains(&replica) };
        Some(cluster.replicas(job).into_iter().map(writer).collect())
    });
    let live: Option<Vec<Writer>> = look.get().await?;
    let is_live = live.is_some();
    let mut replicas = match live {
        Some(replicas) => replicas,
        None => {
            let ended = state.row(job).await?.ended;
            let replicas = ended.map(|ended| ended.summary.replicas).unwrap_or_default();
            replicas.into_iter().map(|id| Writer { id, runs: false }).collect()
        }
    };
    replicas.retain(|writer| only.is_none_or(|only| writer.id == only));
    match only {
        Some(replica) if replicas.is_empty() => Err(HttpError::NoReplica { job, replica }),
        Some(_) | None => Ok(Written { is_live, replicas }),
    }
}

/// A part of an answer.
trait Piece: Send + Sized {
    fn of(told: LogOutput) -> Vec<Self>;

    /// Every replica's log was looked at.
    fn begun() -> Option<Self>;

    /// The last one, if the job has ended and not the server.
    fn end() -> Option<Self>;
}

impl Piece for Bytes {
    fn of(told: LogOutput) -> Vec<Self> {
        if told.lines.is_empty() { Vec::new() } else { vec![told.lines.into()] }
    }

    fn begun() -> Option<Self> {
        None
    }

    fn end() -> Option<Self> {
        None
    }
}

impl Piece for Event {
    fn of(told: LogOutput) -> Vec<Self> {
        told.pieces.iter().map(|piece| Self::default().data(crate::text(piece))).collect()
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
    let mut begun = P::begun();
    loop {
        let is_last = !wanted.is_stream || !written.is_live;
        let mut has_more = false;
        for writer in written.replicas {
            if done.contains(&writer.id) {
                continue;
            }
            let mut tail = tails.remove(&writer.id).unwrap_or_else(|| wanted.tail(writer.id));
            let pieces_max = if is_last { usize::MAX } else { PIECES_MAX };
            let is_read = pass_on(&state, &writer, &mut tail, &pieces, pieces_max).await?;
            has_more |= !is_read;
            if is_last || (is_read && (tail.has_ended() || !writer.runs)) {
                send_all(tail.rest(), &pieces).await?;
                done.insert(writer.id);
            } else {
                tails.insert(writer.id, tail);
            }
        }
        if is_last {
            return pieces.send(P::end()?).await;
        }
        wanted.start = Start::First;
        if let Some(begun) = begun.take() {
            pieces.send(begun).await?;
        }
        if !has_more {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let found = find(&state, job, wanted.replica).await;
        written = found.inspect_err(|error| feed::broken_off(&state.handle, "logs", error)).ok()?;
    }
}

async fn send_all<P: Piece>(told: LogOutput, pieces: &Pieces<P>) -> Option<()> {
    for piece in P::of(told) {
        pieces.send(piece).await?;
    }
    Some(())
}

/// Sends some of what there is, and tells whether it was all.
async fn pass_on<P: Piece>(
    state: &AppState,
    writer: &Writer,
    tail: &mut Tail,
    pieces: &Pieces<P>,
    pieces_max: usize,
) -> Option<bool> {
    for _ in 0..pieces_max {
        let chunk = state.handle.read_log(ReplicaId(writer.id), tail.from(), CHUNK_BYTES).await;
        let chunk = match chunk {
            Ok(chunk) => chunk,
            Err(error) => {
                // What cannot be read has no more to say for now.
                if tail.cannot_read() {
                    warn!(replica = writer.id, %error, "a log cannot be read");
                    if error.kind() == ErrorKind::NotConnected {
                        send_all(tail.excuse(&error.to_string()), pieces).await?;
                    }
                }
                return Some(true);
            }
        };
        let is_empty = chunk.bytes.is_empty();
        send_all(tail.take(&chunk), pieces).await?;
        if is_empty || tail.has_ended() {
            return Some(true);
        }
    }
    Some(false)
}
