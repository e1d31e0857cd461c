//! What a scheduler could say.

use pollux_api::{Failure, FailureDetail, Job, JobList};
use pollux_job::Phase;
use serde::Serialize;

pub(crate) fn job(id: u64, name: &str, phase: Phase) -> Job {
    let runs = matches!(phase, Phase::Running | Phase::Resizing);
    let ended = matches!(phase, Phase::Succeeded | Phase::Failed | Phase::Cancelled);
    Job {
        id,
        name: name.to_owned(),
        owner: "ada".to_owned(),
        phase,
        phase_since_ms: 2_000,
        submitted_ms: 1_000,
        started_ms: Some(2_000),
        ended_ms: ended.then_some(62_000),
        replicas: if runs { 2 } else { 0 },
        gpus_per_replica: 1,
        nodes: u32::from(runs),
        batch_size: runs.then_some(512),
        learning_rate_factor: runs.then_some(1.5),
        samples_per_s: runs.then_some(850.0),
        efficiency: runs.then_some(0.9),
        goodput: runs.then_some(765.0),
        speedup: None,
        unfairness: None,
        epochs: runs.then_some(1),
        progress: runs.then_some(0.25),
        remaining_s: runs.then_some(90.0),
        attained_gpu_s: 60.0,
        queued_s: 1.0,
        restarts: 1,
        retries: 0,
        failure: (phase == Phase::Failed).then(|| "exit code 1, 4 times".to_owned()),
    }
}

pub(crate) fn list(jobs: &[Job], next_before: Option<u64>) -> String {
    json(&JobList { jobs: jobs.to_vec(), next_after_live: None, next_before })
}

pub(crate) fn failure(code: &str, message: &str) -> String {
    json(&Failure { error: FailureDetail { code: code.to_owned(), message: message.to_owned() } })
}

pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

/// Everything about a job, as JSON.
pub(crate) fn detail(job: &Job) -> String {
    let mut detail = serde_json::to_value(job).unwrap();
    let rest = serde_json::json!({
        "spec": {"command": ["python", "train.py"], "working_dir": "/data", "replicas_max": 8},
        "generation": 3, "replicas_logged": [17, 21], "local_batch": 64, "accumulation_steps": 3,
        "group": [{"replica": 17, "rank": 0, "node": "local", "local_rank": 0, "local_world_size": 1}],
        "noise_scale": 405.5, "replicas_profiled": 2, "restart_cost_s": 0.4, "reported_ms": 3000,
        "is_silent": false, "checkpoint_dir": "/state/checkpoints/1",
    });
    detail.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    detail.to_string()
}
