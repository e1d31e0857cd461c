//! Whatever an engine is told and knows is read back as it was.

use std::collections::BTreeSet;

use pollux_agent::{AgentReport, Progress, Tuning, TypeReport};
use pollux_engine::{
    Engine, EngineSettings, EngineState, Event, FailureCause, FailureKind, FailureReason, HeldGpus, JobState, Leaving,
    MeasuredType, ResizeCause, Revision, SavedApplication, SavedJob, SizeChange, StartHistory, StopReason,
};
use pollux_job::{After, Dependency, Flexibility, JobId, JobSpec, PodsPer, Secret, Work};
use pollux_model::{
    BatchLimits, Goodput, GpuType, GpuTypeName, LossCurve, NoiseStatistics, StepParams, ThroughputModel,
};
use pollux_policy::{
    Allocation, Assignment, Binding, EndedJob, NodeEnd, NodeId, Oracle, Plan, PolicySettings, Quality, Reason,
    ThemisSettings, Timestamp,
};
use pollux_store::{Batch, HistoryEntry, HistoryEvent, Record, ReplicaExit, Snapshot, Store, SubmittedJob};
use rusqlite::Connection;

const JOB: JobId = JobId(7);
const NODE: NodeId = NodeId(3);
const REVISION: Revision = Revision(5);

/// A job with everything that can be said of one.
fn spec() -> JobSpec {
    JobSpec {
        name: "resnet".to_owned(),
        owner: "ada".to_owned(),
        command: vec!["python".to_owned(), "train.py".to_owned()],
        working_dir: "/srv".into(),
        env: [("SEED".to_owned(), "1".to_owned())].into(),
        secrets: [("KEY".to_owned(), Secret::new("hidden".to_owned()))].into(),
        replicas: 2,
        replicas_min: 1,
        replicas_max: Some(8),
        gpus_per_replica: 4,
        cpus: Some(6),
        memory: Some(1 << 30),
        gpu_types: vec!["A100".to_owned()],
        flexibility: Flexibility::NonPreemptible,
        pods_per: PodsPer::Node,
        application: Some("bert".to_owned()),
        batch_size: Some(64),
        priority: -1,
        work: Some(Work::BaselineSteps(9)),
        retries: 2,
        time_limit: Some(60),
        depends_on: vec![Dependency { job: JobId(1), after: After::End }],
    }
}

fn report() -> AgentReport {
    let model = ThroughputModel::DataParallel(StepParams { gamma: 2.0, ..StepParams::from_array([0.1; 7]) });
    AgentReport {
        limits: BatchLimits::new(64, 1024, 1, 128).expect("what works"),
        types: vec![TypeReport {
            gpu_type: GpuTypeName::default(),
            model,
            replicas_profiled: 3,
            local_batch_max: Some(64),
        }],
        noise: Some(NoiseStatistics::new(0.1, 2.0 / 3.0).expect("what works")),
        progress: Progress { steps: 1, samples: 64, epochs: 2, baseline_steps: 1.0 / 3.0 },
        epoch_samples: Some(8_192),
        samples_per_s: Some(0.1 + 0.2),
        loss: Some(LossCurve::new(1.0, 0.5, 0.25).expect("what works")),
        tuning: Some(Tuning { local_batch: 64, accumulation_steps: 1 }),
        learning_rate_factor: 1.5,
    }
}

fn oracle() -> Oracle {
    Oracle { remaining_steps: 10.5, step_s: vec![0.5, 0.25], by_type: vec![(GpuType(1), vec![0.125])] }
}

fn reason() -> Reason {
    Reason { binding: Binding::Profile, one_more: Some(0.1), one_fewer: None, payer: Some((JobId(2), -0.3)) }
}

fn events() -> Vec<Event> {
    let (job, revision, node, allocation) = (JOB, REVISION, NODE, Allocation::on(NODE, 2));
    let kinds = [FailureKind::Retryable, FailureKind::Permanent, FailureKind::Machine];
    let mut events = vec![
        Event::JobSubmitted { job, spec: spec() },
        Event::Report { job, revision, report: report() },
        Event::OracleSet { job, oracle: oracle() },
        Event::GroupReady { job, revision, pause_s: Some(0.1) },
        Event::GroupSilent { job, revision },
        Event::GroupPending { job, revision },
        Event::GroupPlaced { job, revision },
        Event::ReplicasReleased { job, revision, allocation },
        Event::JobSucceeded { job, revision },
        Event::NodeJoined {
            node,
            gpus: 8,
            gpu_type: GpuTypeName::new("A100").expect("a name"),
            cpus: None,
            memory: None,
        },
        Event::NodeResources { node, cpus: Some(64), memory: Some(1 << 40) },
        Event::NodeResources { node, cpus: None, memory: None },
        Event::NodeUnreachable { node },
        Event::NodeReachable { node },
        Event::NodeRetired { node },
        Event::NodeLost { node },
        Event::NodeEnds { node, end: None },
        Event::NodeEnds { node, end: Some(NodeEnd { drains_at: Timestamp(7), ends_at: Some(Timestamp(8)) }) },
        Event::NodeDrain { node },
        Event::NodeUndrain { node },
        Event::Cancel { job },
        Event::Pause { job },
        Event::Resume { job },
        Event::Tick,
    ];
    events.extend(kinds.map(|kind| Event::ReplicaFailed { job, revision, node, kind }));
    events.extend(kinds.map(|kind| Event::LaunchFailed { job, revision, node, kind }));
    let there: BTreeSet<usize> = events.iter().map(kind_of).collect();
    assert_eq!(there, (0..KINDS).collect(), "every kind of event is tried");
    events
}

const KINDS: usize = 24;

/// The number of an event's kind. A new kind asks for a number here, and for an event of it above.
fn kind_of(event: &Event) -> usize {
    match event {
        Event::JobSubmitted { .. } => 0,
        Event::Report { .. } => 1,
        Event::OracleSet { .. } => 2,
        Event::GroupReady { .. } => 3,
        Event::GroupSilent { .. } => 4,
        Event::GroupPending { .. } => 5,
        Event::GroupPlaced { .. } => 6,
        Event::ReplicasReleased { .. } => 7,
        Event::JobSucceeded { .. } => 8,
        Event::ReplicaFailed { .. } => 9,
        Event::LaunchFailed { .. } => 10,
        Event::NodeJoined { .. } => 11,
        Event::NodeResources { .. } => 12,
        Event::NodeLost { .. } => 13,
        Event::NodeRetired { .. } => 14,
        Event::NodeUnreachable { .. } => 15,
        Event::NodeReachable { .. } => 16,
        Event::NodeDrain { .. } => 17,
        Event::NodeUndrain { .. } => 18,
        Event::Cancel { .. } => 19,
        Event::Pause { .. } => 20,
        Event::Resume { .. } => 21,
        Event::NodeEnds { .. } => 22,
        Event::Tick => KINDS - 1,
    }
}

#[test]
fn every_record_is_read_back_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(folder.path()).unwrap();
    let assignment =
        Assignment { job: JOB, allocation: Allocation::on(NODE, 2), guest_of: Some(JobId(1)), reason: reason() };
    let quality = Some(Quality { objective: 0.1, upper_bound: 0.3 });
    let plan = Plan { assignments: vec![assignment], quality };
    let mut records: Vec<Record> =
        events().into_iter().map(|event| Record::Event { at: Timestamp(9), event }).collect();
    records.push(Record::Round { at: Timestamp(10), policy: Some("themis".to_owned()), plan: Some(plan) });
    records.push(Record::Round { at: Timestamp(11), policy: None, plan: None });
    let submitted = vec![SubmittedJob { id: JOB, submitted: Timestamp(1), spec: spec() }];
    store.commit(&Batch { records: records.clone(), submitted: submitted.clone(), ..Batch::default() }).unwrap();
    drop(store);
    let (_, recovered) = Store::open(folder.path()).unwrap();
    assert_eq!(recovered.records, records);
    assert_eq!(recovered.live_jobs, submitted);
}

/// An application of which everything is known.
fn application() -> SavedApplication {
    let learned = report().types.remove(0);
    let noise = report().noise.expect("it has one");
    let goodput = Goodput { throughput: learned.model, noise, limits: report().limits };
    let ended = |samples_declared| EndedJob { samples: 1.5e6, samples_declared };
    SavedApplication {
        name: "resnet".to_owned(),
        seen: Timestamp(6),
        types: vec![MeasuredType { gpu_type: GpuTypeName::default(), goodput, replicas_profiled: 4 }],
        epoch_samples: Some(50_000),
        ended: vec![ended(None), ended(Some(1e6))],
    }
}

/// An engine under a policy that remembers, with a job in every state.
fn state() -> EngineState {
    let policy = PolicySettings::Themis(ThemisSettings::default());
    let mut engine = Engine::new(EngineSettings::default(), &policy).expect("what works");
    let mut out = Vec::new();
    engine.step(
        Timestamp(0),
        Event::NodeJoined { node: NODE, gpus: 4, gpu_type: GpuTypeName::default(), cpus: None, memory: None },
        &mut out,
    );
    let submitted = Event::JobSubmitted { job: JobId(1), spec: JobSpec::new("a", 1) };
    engine.step(Timestamp(1), submitted, &mut out);
    engine.step(engine.next_wakeup().expect("what works"), Event::Tick, &mut out);
    let mut state = engine.state();
    let cause = FailureCause::Launch { node: NODE };
    let states = [
        JobState::Queued { retry_at: Some(Timestamp(7)) },
        JobState::Resizing { survivors: Allocation::on(NODE, 1), cause: ResizeCause::NodeLoss },
        JobState::Running,
        JobState::Paused,
        JobState::Succeeded,
        JobState::Cancelled,
        JobState::Failed { reason: FailureReason::Permanent { cause: FailureCause::Timeout } },
        JobState::Failed { reason: FailureReason::RetriesExhausted { retries: 2, cause } },
        JobState::Failed { reason: FailureReason::TimeLimit { limit_s: 60 } },
        JobState::Failed { reason: FailureReason::Dependency { job: JobId(1) } },
    ];
    let on = Allocation::on(NODE, 1);
    let leaving = Leaving {
        revision: REVISION,
        allocation: on.clone(),
        why: StopReason::TimeLimit,
        held: HeldGpus { owned: on.clone(), shared: Allocation::NONE },
    };
    let whole = |(id, state)| SavedJob {
        id,
        spec: spec(),
        state,
        leaving: vec![leaving.clone()],
        start_history: StartHistory {
            eligible_since: Timestamp(4),
            queued_since: Timestamp(5),
            launched: Some(Timestamp(6)),
            failed_starts: 2,
            yields_until: Timestamp(8),
        },
        guest_of: Some(JobId(1)),
        guest: Some(JobId(2)),
        timer: Some(Timestamp(70)),
        deadline: Some(Timestamp(80)),
        waits_for: spec().depends_on,
        size_change: Some(SizeChange { at: Timestamp(5), from: 1, to: 2 }),
        reason: Some(reason()),
        report: Some(pollux_engine::ReceivedReport { at: Timestamp(6), report: report() }),
        silent: true,
        oracle: Some(oracle()),
        ..engine.state().jobs.remove(0)
    };
    state.jobs.extend((2..).map(JobId).zip(states).map(whole));
    state.applications = vec![application()];
    state.outcomes.push((JobId(9), pollux_job::Phase::Failed));
    state.nodes[0].failures.push((JOB, Timestamp(3)));
    (state.nodes[0].unreachable, state.nodes[0].retired) = (true, true);
    state
}

fn kept(folder: &std::path::Path) -> Snapshot {
    Store::open(folder).expect("what works").1.snapshot.expect("what works")
}

#[test]
fn a_state_is_read_back_with_what_its_policy_remembers() {
    let folder = tempfile::tempdir().unwrap();
    let state = state();
    assert!(state.policy.is_some());
    Store::open(folder.path()).unwrap().0.save_snapshot(&state).unwrap();
    assert_eq!(kept(folder.path()), Snapshot { sequence: 0, state, unreadable_policy: None });
}

#[test]
fn a_job_of_which_it_was_not_kept_since_when_it_could_run_could_since_its_submission() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = state();
    Store::open(folder.path()).unwrap().0.save_snapshot(&state).unwrap();
    let database = Connection::open(folder.path().join("pollux.db")).unwrap();
    let remove = "UPDATE snapshot SET state = json_remove(state, '$.jobs[1].standing.eligible_since')";
    database.execute(remove, []).unwrap();
    drop(database);
    state.jobs[1].start_history.eligible_since = state.jobs[1].usage.submitted;
    assert_eq!(kept(folder.path()).state, state);
}

#[test]
fn what_a_policy_remembers_in_another_version_is_dropped_and_nothing_else() {
    for change in ["'$.policy.version', 99", "'$.policy.memory', 7", "'$.policy.memory', json('{\"themis\":{}}')"] {
        let folder = tempfile::tempdir().unwrap();
        let state = state();
        Store::open(folder.path()).unwrap().0.save_snapshot(&state).unwrap();
        let database = Connection::open(folder.path().join("pollux.db")).unwrap();
        database.execute(&format!("UPDATE snapshot SET state = json_set(state, {change})"), []).unwrap();
        drop(database);
        let expected = EngineState { policy: None, ..state };
        let unreadable_policy = Some("themis".to_owned());
        assert_eq!(kept(folder.path()), Snapshot { sequence: 0, state: expected, unreadable_policy }, "{change}");
    }
}

/// What is written of each kind of line; a changed word would make earlier lines unreadable.
#[test]
fn every_line_of_history_is_written_in_words_of_its_format_and_read_back() {
    let failed = JobState::Failed {
        reason: FailureReason::RetriesExhausted { retries: 2, cause: FailureCause::Replica { node: NODE } },
    };
    let lines = [
        (HistoryEvent::Submitted { name: "a".to_owned() }, r#"{"happened":"submitted","name":"a"}"#),
        (HistoryEvent::Launched { replicas: 2, nodes: 1 }, r#"{"happened":"launched","replicas":2,"nodes":1}"#),
        (
            HistoryEvent::Resized { kept: 1, removed: 2, added: 3 },
            r#"{"happened":"resized","kept":1,"removed":2,"added":3}"#,
        ),
        (HistoryEvent::Ready { pause_s: Some(0.5) }, r#"{"happened":"ready","pause_s":0.5}"#),
        (HistoryEvent::Silent, r#"{"happened":"silent"}"#),
        (
            HistoryEvent::Stopped { replicas: 1, why: StopReason::TimeLimit },
            r#"{"happened":"stopped","replicas":1,"why":"time_limit"}"#,
        ),
        (
            HistoryEvent::Exited { replica: 4, exit: ReplicaExit::Code(3) },
            r#"{"happened":"exited","replica":4,"exit":{"code":3}}"#,
        ),
        (
            HistoryEvent::Exited { replica: 4, exit: ReplicaExit::Lost },
            r#"{"happened":"exited","replica":4,"exit":"lost"}"#,
        ),
        (HistoryEvent::Ended { phase: JobState::Succeeded }, r#"{"happened":"ended","phase":"succeeded"}"#),
        (
            HistoryEvent::Ended { phase: failed },
            r#"{"happened":"ended","phase":{"failed":{"reason":{"retries_exhausted":{"retries":2,"cause":{"replica":{"node":3}}}}}}}"#,
        ),
        (
            HistoryEvent::Pending { replica: 4, reason: "no image".to_owned() },
            r#"{"happened":"pending","replica":4,"reason":"no image"}"#,
        ),
        (HistoryEvent::Damaged { record: 7 }, r#"{"happened":"damaged","record":7}"#),
    ];
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(folder.path()).unwrap();
    let entry = |(sequence, (event, _)): (u64, &(HistoryEvent, &str))| HistoryEntry {
        sequence,
        at: Timestamp(1),
        job: None,
        event: event.clone(),
    };
    let history: Vec<HistoryEntry> = (1..).zip(&lines).map(entry).collect();
    store.commit(&Batch { history, ..Batch::default() }).unwrap();
    let database = Connection::open(folder.path().join("pollux.db")).unwrap();
    let mut query = database.prepare("SELECT version, text FROM history ORDER BY sequence").unwrap();
    let written = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let written: Vec<(i64, String)> = written.collect::<Result<_, _>>().unwrap();
    assert_eq!(written, lines.each_ref().map(|(_, text)| (2, (*text).to_owned())));
    let read: Vec<_> =
        store.reader().unwrap().history(0, None, 99).unwrap().into_iter().map(|line| line.event).collect();
    assert_eq!(read, lines.map(|(event, _)| Ok(event)));
}
