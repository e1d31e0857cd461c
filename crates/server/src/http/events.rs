use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use pollux_api::{EventList, Failure};
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
use super::state::AppState;
use crate::views;

/// Lines that are read from the store at once.
const CATCH_UP: usize = 500;
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
async fn list(State(state): State<AppState>, Query(query): Query<EventsQuery>) -> Result<Json<EventList>, HttpError> {
    let EventsQuery { after, before, .. } = query;
    let (limit, job) = (page(query.limit)?, query.job.map(JobId));
    if after.is_some() && before.is_some() {
        return Err(HttpError::Query { reason: "after and before: expected one of them".to_owned() });
    }
    let read = move |reader: &Reader| match before {
        Some(before) => reader.history_before(before, job, limit),
        None => reader.history(after.unwrap_or(0), job, limit),
    };
    let lines = state.handle.read(read).await?;
    let next_after = lines.last().map_or(after.unwrap_or(0), |line| line.sequence);
    Ok(Json(EventList { events: lines.iter().map(|line| state.unreadable.told(line)).collect(), next_after }))
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
    feed::events(&state, move |pieces| send(own, events, last, job, pieces))
}

async fn send(
    state: AppState,
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
                send_event(&state.unreadable.told(&line), &pieces).await?;
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
                    if job.is_none() || line.job == job {
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
