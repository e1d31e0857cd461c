use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use pollux_api::{EventList, Failure};
use pollux_engine::Refusal;
use pollux_policy::JobId;
use pollux_store::{HistoryEntry, HistoryLine, Reader};
use serde::Deserialize;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tracing::warn;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Json, Query, page};
use super::failure::HttpError;
use super::feed::{self, Pieces};
use super::scope::Scope;
use super::state::AppState;
use crate::{Refused, views};

/// Lines that are read from the store at once.
const CATCH_UP: usize = 500;
/// Pages that are searched for events of jobs that the caller may see.
const PAGES_MAX: usize = 100;
/// How long a client that was cut off waits before it asks again.
const RETRY: Duration = Duration::from_secs(1);

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(stream))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventsQuery {
    /// Only what happened after the event with this number.
    #[param(maximum = 18_446_744_073_709_551_615_u64)]
    after: Option<u64>,
    /// Only what happened before the event with this number, and of that the last.
    #[param(maximum = 18_446_744_073_709_551_615_u64)]
    before: Option<u64>,
    /// Only what happened to this job.
    #[param(maximum = 18_446_744_073_709_551_615_u64)]
    job: Option<u64>,
    /// How many, 100 unless told.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// What happened, the oldest first.
#[utoipa::path(get, path = "/v1/events", tag = "events", security(("token" = [])), params(EventsQuery),
    responses((status = 200, body = EventList), (status = "default", body = Failure)))]
async fn list(
    State(state): State<AppState>,
    scope: Scope,
    Query(query): Query<EventsQuery>,
) -> Result<Json<EventList>, HttpError> {
    let EventsQuery { after, before, .. } = query;
    let (limit, job) = (page(query.limit)?, query.job.map(JobId));
    if after.is_some() && before.is_some() {
        return Err(HttpError::Query { reason: "after and before: expected one of them".to_owned() });
    }
    let mut owners = Owners::new(scope);
    let (mut events, mut next_after, mut end) = (VecDeque::new(), after.unwrap_or(0), before);
    // Of what is read, some may be about jobs of others.
    for _ in 0..PAGES_MAX {
        let read = move |reader: &Reader| match end {
            Some(end) => reader.history_before(end, job, limit),
            None => reader.history(next_after, job, limit),
        };
        let mut lines = state.handle.read(read).await?;
        let is_all = lines.len() < limit;
        if end.is_some() {
            next_after = next_after.max(lines.last().map_or(0, |line| line.sequence));
            lines.reverse();
        }
        for line in &lines {
            if events.len() == limit {
                break;
            }
            match &mut end {
                Some(end) => *end = line.sequence,
                None => next_after = line.sequence,
            }
            if owners.shows(&state, line.job).await? {
                let event = state.unreadable.told(line);
                if end.is_some() { events.push_front(event) } else { events.push_back(event) }
            }
        }
        if is_all || events.len() == limit {
            break;
        }
    }
    Ok(Json(EventList { events: events.into(), next_after }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StreamQuery {
    /// From the event after this number on, else from now on.
    after: Option<u64>,
    /// Only what happens to this job.
    job: Option<u64>,
}

/// What happens, as server-sent events. `Last-Event-ID` goes before `after`.
#[utoipa::path(get, path = "/v1/events/stream", tag = "events", security(("token" = [])),
    params(StreamQuery, ("Last-Event-ID" = Option<u64>, Header, description = "Number of the last event seen")),
    responses((status = 200, body = String, content_type = "text/event-stream"), (status = "default", body = Failure)))]
async fn stream(
    State(state): State<AppState>,
    scope: Scope,
    headers: HeaderMap,
    Query(query): Query<StreamQuery>,
) -> Result<Response, HttpError> {
    let last = match headers.get("last-event-id") {
        None => query.after,
        Some(value) => {
            let number = value.to_str().ok().and_then(|value| value.parse().ok());
            let refused = || HttpError::Query { reason: format!("Last-Event-ID {value:?}: expected a number") };
            Some(number.ok_or_else(refused)?)
        }
    };
    // Listens before it looks, so that nothing falls in between.
    let events = state.handle.history();
    let last = match last {
        Some(last) => last,
        None => state.handle.look(|cluster| cluster.last_event).get().await?,
    };
    let (own, job) = (state.clone(), query.job.map(JobId));
    let owners = Owners::new(scope);
    feed::events(&state, move |pieces| send(own, owners, events, last, job, pieces))
}

async fn send(
    state: AppState,
    mut owners: Owners,
    mut events: broadcast::Receiver<HistoryEntry>,
    mut last: u64,
    job: Option<JobId>,
    pieces: Pieces<Event>,
) -> Option<()> {
    pieces.send(Event::default().retry(RETRY)).await?;
    loop {
        loop {
            let lines = state.handle.read(move |reader| reader.history(last, job, CATCH_UP)).await;
            let broken_off = |error: &crate::Refused| feed::broken_off(&state.handle, "events", &error.clone().into());
            let lines = lines.inspect_err(broken_off).ok()?;
            let is_all = lines.len() < CATCH_UP;
            for line in lines {
                last = line.sequence;
                if owners.shows(&state, line.job).await.ok()? {
                    send_event(&state.unreadable.told(&line), &pieces).await?;
                }
            }
            if is_all {
                break;
            }
        }
        loop {
            match events.recv().await {
                Ok(line) if line.sequence <= last => {}
                Ok(line) => {
                    last = line.sequence;
                    if (job.is_none() || line.job == job) && owners.shows(&state, line.job).await.ok()? {
                        send_event(&views::event(&line), &pieces).await?;
                    }
                }
                // What was lost is in the store.
                Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

async fn send_event(event: &pollux_api::Event, pieces: &Pieces<Event>) -> Option<()> {
    pieces.send(Event::default().id(event.sequence.to_string()).data(crate::text(event))).await
}

/// Whose jobs lines of history are about, for one who sees those of one owner only.
struct Owners {
    scope: Scope,
    known: BTreeMap<JobId, bool>,
}

impl Owners {
    /// So many are remembered.
    const KNOWN_MAX: usize = 10_000;

    fn new(scope: Scope) -> Self {
        Self { scope, known: BTreeMap::new() }
    }

    /// Whether a line is shown. One of no job is about the whole cluster.
    async fn shows(&mut self, state: &AppState, job: Option<JobId>) -> Result<bool, HttpError> {
        let (Some(owner), Some(job)) = (&self.scope.0, job) else { return Ok(true) };
        if let Some(shown) = self.known.get(&job) {
            return Ok(*shown);
        }
        // One that is forgotten by now is nobody's.
        let shown = match state.owner(job).await {
            Ok(found) => found == *owner,
            Err(HttpError::Refused(Refused::Engine(Refusal::UnknownJob { .. }))) => false,
            Err(error) => return Err(error),
        };
        if self.known.len() >= Self::KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(job, shown);
        Ok(shown)
    }
}

/// A file that is damaged all through is told often enough.
const UNREADABLE_MAX: usize = 1000;

/// Lines of history that could not be read. Each is logged when it is met first, up to a number of them.
#[derive(Debug, Default)]
pub(crate) struct UnreadableLines(Mutex<BTreeSet<u64>>);

impl UnreadableLines {
    fn told(&self, line: &HistoryLine) -> pollux_api::Event {
        if let Err(unreadable) = &line.event {
            let mut told = self.0.lock().expect("nobody panics with it");
            if told.len() < UNREADABLE_MAX && told.insert(line.sequence) {
                warn!(line = line.sequence, reason = unreadable.reason, "a line of history cannot be read");
            }
        }
        views::line(line)
    }
}
