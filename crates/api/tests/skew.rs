//! What version 0.1 said is understood: every message in `fixtures/v1` is one that its server or its worker sent.

use std::fs;
use std::path::Path;

use pollux_api::{
    Assignment, AssignmentState, ClusterStatus, EventList, Failure, JobDetail, JobList, NodeList, PlanStatus,
    ReadyRequest, ReportRequest,
};
use pollux_job::{Phase, Work};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn text(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1").join(name).with_extension("json");
    fs::read_to_string(file).expect("a fixture")
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&text(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Objects whose names are data, and a choice of one.
const MAPS: [&str; 3] = ["environment", "work", "jobs"];

/// The same with a field that nobody knows, in every object of it.
fn from_later<T: DeserializeOwned>(name: &str) -> T {
    fn add(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                let is_map = |name: &str, value: &Value| MAPS.contains(&name) && value.is_object();
                fields.iter_mut().filter(|(name, value)| !is_map(name, value)).for_each(|(_, value)| add(value));
                fields.insert("later".to_owned(), json!({"x": [1]}));
            }
            Value::Array(items) => items.iter_mut().for_each(add),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut value: Value = serde_json::from_str(&text(name)).expect("JSON");
    add(&mut value);
    serde_json::from_value(value).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn a_new_worker_understands_an_assignment_of_an_old_server() {
    let assignment: Assignment = read("assignment");
    assert_eq!((assignment.generation, assignment.state), (4, AssignmentState::Run));
    let ranks: Vec<u32> = assignment.replicas.iter().map(|replica| replica.rank).collect();
    assert_eq!(ranks, (0..u32::try_from(ranks.len()).unwrap()).collect::<Vec<_>>());
    assert_eq!(from_later::<Assignment>("assignment"), assignment);
    assert_eq!(read::<Assignment>("assignment_stop").state, AssignmentState::Stop);
    assert_eq!(from_later::<Failure>("failure"), read("failure"));
    let later = text("assignment").replace(r#""run""#, r#""hibernate""#);
    assert_eq!(serde_json::from_str::<Assignment>(&later).unwrap(), assignment, "who does not understand trains on");
}

#[test]
fn a_new_server_understands_an_old_worker() {
    let report: ReportRequest = read("report");
    assert_eq!((report.generation, report.report.types.len()), (8, 1));
    assert!(report.report.progress.steps > 0 && report.report.noise.is_some());
    assert_eq!(from_later::<ReportRequest>("report"), report);
    assert_eq!(from_later::<ReportRequest>("report_first"), read("report_first"));
    assert_eq!(read::<ReadyRequest>("ready_first"), ReadyRequest { generation: 1, pause_s: None });
    assert!(read::<ReadyRequest>("ready").pause_s.is_some());
    assert_eq!(from_later::<ReadyRequest>("ready"), read("ready"));
}

#[test]
fn a_new_command_line_understands_an_old_server() {
    let jobs: JobList = read("jobs");
    assert_eq!(jobs.jobs.len(), 11);
    assert_eq!(jobs.jobs.iter().filter(|job| job.phase == Phase::Running).count(), 3);
    assert_eq!(from_later::<JobList>("jobs"), jobs);
    let detail: JobDetail = read("job_detail");
    assert_eq!((detail.spec.name.as_str(), detail.spec.replicas, detail.spec.retries), ("speech", 1, 3));
    assert_eq!((detail.spec.work, detail.spec.replicas_max), (Some(Work::Epochs(400)), Some(8)));
    assert_eq!(detail.spec.env["SEED"], "7");
    assert_eq!(from_later::<JobDetail>("job_detail"), detail);
    assert_eq!(from_later::<ClusterStatus>("cluster"), read("cluster"));
    assert_eq!(from_later::<NodeList>("nodes"), read("nodes"));
    assert_eq!(from_later::<EventList>("events").events.len(), read::<EventList>("events").events.len());
    assert_eq!(from_later::<PlanStatus>("plan"), read("plan"));
}

#[test]
fn a_phase_that_only_a_later_server_knows_hides_no_job() {
    let hibernating = |name: &str| text(name).replace(r#""running""#, r#""hibernating""#);
    let jobs: JobList = serde_json::from_str(&hibernating("jobs")).unwrap();
    assert_eq!(jobs.jobs.len(), 11);
    assert_eq!(jobs.jobs.iter().filter(|job| job.phase == Phase::Unknown).count(), 3);
    let before: ClusterStatus = read("cluster");
    let cluster: ClusterStatus = serde_json::from_str(&hibernating("cluster")).unwrap();
    assert_eq!(cluster.jobs.get(&Phase::Unknown), before.jobs.get(&Phase::Running));
}
