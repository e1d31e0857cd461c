use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use pollux_api::{
    AllocationEvent, AllocationOutput, AllocationQueue, AllocationQueueList, AllocationQueueSpec, AllocationRehearsal,
    Failure, SlurmAllocation,
};
use pollux_slurm::{Allocation, Machine, Queue, Stage, Wish};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::allocation_turns::{Allocations, machines, now_ms};
use super::extract::{Json, Name, Query};
use super::failure::HttpError;
use super::state::AppState;
use crate::Refused;
use crate::demand::Snapshot;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, add))
        .routes(routes!(describe, remove))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(output))
        .routes(routes!(rehearse))
}

fn allocations(state: &AppState) -> Result<Allocations, HttpError> {
    state.allocations.clone().ok_or(HttpError::NoAllocations)
}

/// What waits for the disk or for Slurm.
async fn in_thread<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, HttpError> + Send + 'static,
) -> Result<T, HttpError> {
    tokio::task::spawn_blocking(act).await.map_err(|_| Refused::Broken)?
}

/// Machines that have joined, with their nodes.
async fn joined(state: &AppState) -> Result<Vec<Machine>, HttpError> {
    let nodes = state.nodes.clone().ok_or(HttpError::NoNodes)?;
    let known = state.handle.look(Snapshot::nodes_of).get().await?;
    Ok(machines(&nodes, &known))
}

/// Queues of allocations, and what Slurm says of them.
#[utoipa::path(get, path = "/v1/allocation-queues", tag = "cluster", security(("token" = [])),
    responses((status = 200, body = AllocationQueueList), (status = "default", body = Failure)))]
async fn list(State(state): State<AppState>) -> Result<Json<AllocationQueueList>, HttpError> {
    let queues = allocations(&state)?.queues.list();
    let machines = joined(&state).await?;
    Ok(Json(AllocationQueueList { queues: queues.iter().map(|queue| view(queue, &machines)).collect() }))
}

/// One queue.
#[utoipa::path(get, path = "/v1/allocation-queues/{name}", tag = "cluster", security(("token" = [])),
    params(("name" = String, Path, description = "The queue")),
    responses((status = 200, body = AllocationQueue), (status = "default", body = Failure)))]
async fn describe(State(state): State<AppState>, Name(name): Name) -> Result<Json<AllocationQueue>, HttpError> {
    let queue = allocations(&state)?.queues.find(&name)?;
    Ok(Json(view(&queue, &joined(&state).await?)))
}

/// Asks Slurm for nodes from now on, whenever jobs are worth them. An allocation of the queue is rehearsed first.
#[utoipa::path(post, path = "/v1/allocation-queues", tag = "cluster", security(("token" = [])),
    request_body = AllocationQueueSpec,
    responses((status = 201, body = AllocationQueue), (status = "default", body = Failure)))]
async fn add(State(state): State<AppState>, Json(request): Json<AllocationQueueSpec>) -> Result<Response, HttpError> {
    let (nodes, allocations) = (state.nodes.clone().ok_or(HttpError::NoNodes)?, allocations(&state)?);
    let changed = allocations.changed.clone();
    let queue = in_thread(move || {
        let place = allocations.place(&state, &nodes)?;
        Ok(allocations.queues.add(request, &place, now_ms())?)
    });
    let queue = queue.await?;
    changed.notify_one();
    Ok((StatusCode::CREATED, Json(view(&queue, &[]))).into_response())
}

/// What Slurm would say to an allocation of a queue; nothing is asked for.
#[utoipa::path(post, path = "/v1/allocation-rehearsals", tag = "cluster", security(("token" = [])),
    request_body = AllocationQueueSpec,
    responses((status = 200, body = AllocationRehearsal), (status = "default", body = Failure)))]
async fn rehearse(
    State(state): State<AppState>,
    Json(request): Json<AllocationQueueSpec>,
) -> Result<Json<AllocationRehearsal>, HttpError> {
    let allocations = allocations(&state)?;
    let rehearsal = in_thread(move || Ok(allocations.queues.rehearse(request)?)).await?;
    let pollux_slurm::Rehearsal { is_accepted, said, command } = rehearsal;
    Ok(Json(AllocationRehearsal { is_accepted, said, command }))
}

/// Asks for nothing more. What there is stays until it ends or is idle.
#[utoipa::path(post, path = "/v1/allocation-queues/{name}/pause", tag = "cluster", security(("token" = [])),
    params(("name" = String, Path, description = "The queue")),
    responses((status = 204), (status = "default", body = Failure)))]
async fn pause(State(state): State<AppState>, Name(name): Name) -> Result<StatusCode, HttpError> {
    act(&state, name, Wish::Pause).await
}

/// Goes on, also with a queue that was stopped after failures.
#[utoipa::path(post, path = "/v1/allocation-queues/{name}/resume", tag = "cluster", security(("token" = [])),
    params(("name" = String, Path, description = "The queue")),
    responses((status = 204), (status = "default", body = Failure)))]
async fn resume(State(state): State<AppState>, Name(name): Name) -> Result<StatusCode, HttpError> {
    act(&state, name, Wish::Resume).await
}

/// Gives everything back: what waits is cancelled, and jobs leave the nodes first.
#[utoipa::path(delete, path = "/v1/allocation-queues/{name}", tag = "cluster", security(("token" = [])),
    params(("name" = String, Path, description = "The queue")),
    responses((status = 204), (status = "default", body = Failure)))]
async fn remove(State(state): State<AppState>, Name(name): Name) -> Result<StatusCode, HttpError> {
    act(&state, name, Wish::Remove).await
}

async fn act(state: &AppState, name: String, wish: Wish) -> Result<StatusCode, HttpError> {
    let allocations = allocations(state)?;
    let changed = allocations.changed.clone();
    in_thread(move || Ok(allocations.queues.act(&name, wish, now_ms())?)).await?;
    changed.notify_one();
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct OutputQuery {
    /// The number of an allocation in Slurm; the newest, if left out.
    job: Option<u64>,
}

/// The end of what an allocation has printed.
#[utoipa::path(get, path = "/v1/allocation-queues/{name}/output", tag = "cluster", security(("token" = [])),
    params(("name" = String, Path, description = "The queue"), OutputQuery),
    responses((status = 200, body = AllocationOutput), (status = "default", body = Failure)))]
async fn output(
    State(state): State<AppState>,
    Name(name): Name,
    Query(query): Query<OutputQuery>,
) -> Result<Json<AllocationOutput>, HttpError> {
    let allocations = allocations(&state)?;
    let printed = in_thread(move || Ok(allocations.queues.printed(&name, query.job)?)).await?;
    let (job, text) = printed.map_or((None, String::new()), |(job, text)| (Some(job), text));
    Ok(Json(AllocationOutput { job, text }))
}

fn view(queue: &Queue, machines: &[Machine]) -> AllocationQueue {
    let allocations: Vec<_> = queue.allocations.iter().map(|it| allocation(queue, it, machines)).collect();
    let joined: usize = allocations.iter().map(|it| it.machines.len()).sum();
    let state = match (queue.is_removed, &queue.stopped, queue.is_paused) {
        (true, ..) => "removed",
        (_, Some(_), _) => "stopped",
        (_, None, true) => "paused",
        (_, None, false) => "active",
    };
    AllocationQueue {
        state: state.to_owned(),
        standing: queue.standing.clone(),
        nodes: queue.nodes(),
        nodes_joined: u32::try_from(joined).unwrap_or(u32::MAX),
        gpus_per_node: queue.gpus_per_node(),
        allocations,
        log: queue.happenings.iter().map(|it| AllocationEvent { at_ms: it.at_ms, text: it.text.clone() }).collect(),
        request: queue.spec.clone(),
    }
}

fn allocation(queue: &Queue, allocation: &Allocation, machines: &[Machine]) -> SlurmAllocation {
    let is_its = |it: &&Machine| allocation.has_machine(&queue.spec.name, &it.name);
    let stage = match allocation.stage {
        Stage::Asked => "asked",
        Stage::Waits => "waits",
        Stage::Runs => "runs",
    };
    SlurmAllocation {
        name: allocation.name.clone(),
        job: allocation.job,
        stage: stage.to_owned(),
        state: allocation.state.clone(),
        reason: allocation.reason.clone(),
        asked_ms: allocation.asked_ms,
        start_ms: allocation.start_ms,
        end_ms: allocation.end_ms,
        hosts: allocation.hosts.clone(),
        machines: machines.iter().filter(is_its).map(|it| it.name.clone()).collect(),
        given_up: allocation.given_up.as_ref().map(|it| it.text.clone()),
    }
}

/// What queues have asked for, as sentences for those who wait.
pub(super) fn expected(state: &AppState, now_ms: u64) -> Vec<String> {
    let queues = state.allocations.as_ref().map(|allocations| allocations.queues.list()).unwrap_or_default();
    queues.iter().filter_map(|queue| expectation(queue, now_ms)).collect()
}

fn expectation(queue: &Queue, now_ms: u64) -> Option<String> {
    let name = &queue.spec.name;
    let waiting: Vec<&Allocation> = queue.waiting().collect();
    if waiting.is_empty() {
        let stopped = queue.stopped.as_ref()?;
        return Some(format!("Queue {name} asks for no nodes: {stopped}."));
    }
    let nodes = u32::try_from(waiting.len()).unwrap_or(u32::MAX).saturating_mul(queue.spec.nodes_per_alloc);
    let are = if nodes == 1 { "1 node of queue" } else { &format!("{nodes} nodes of queue") };
    let is = if nodes == 1 { "is" } else { "are" };
    let start = waiting.iter().filter_map(|it| it.start_ms).filter(|at| *at > now_ms).min();
    let when = match start {
        Some(at_ms) => format!("Slurm estimates {} UTC", clock(at_ms)),
        None => match waiting.iter().map(|it| it.reason.as_str()).find(|reason| !["", "None"].contains(reason)) {
            Some(reason) => format!("Slurm has no estimate, and says {reason}"),
            None => "Slurm has no estimate yet".to_owned(),
        },
    };
    Some(format!("{are} {name} {is} asked for; {when}."))
}

/// The hour and minute of a moment, with the day where that is not today's.
fn clock(at_ms: u64) -> String {
    let minutes = at_ms / 60_000;
    let days = minutes / (24 * 60);
    let text = format!("{:02}:{:02}", minutes / 60 % 24, minutes % 60);
    match days.saturating_sub(now_ms() / (24 * 3_600_000)) {
        0 => text,
        1 => format!("{text} tomorrow,"),
        days => format!("{text} in {days} days,"),
    }
}
