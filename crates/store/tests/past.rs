//! What earlier versions wrote is read, and what later ones wrote is refused.

use std::fs;
use std::path::Path;

use pollux_engine::{Engine, EngineSettings, FailureReason, JobState, JobUsage};
use pollux_job::{After, Dependency, Flexibility, JobId, JobSpec, Phase, Secret, Work};
use pollux_policy::{Allocation, NodeId, PolicySettings, PolluxSettings, Timestamp, TiresiasSettings};
use pollux_store::{
    Batch, EndedJob, EndedQuery, HistoryEvent, JobSummary, Record, Recovered, Role, Store, StoreError, SubmittedJob,
    TokenHolder, UserToken,
};
use rusqlite::Connection;
use tempfile::TempDir;

fn database(folder: &Path) -> Connection {
    Connection::open(folder.join("pollux.db")).expect("a database")
}

/// A state folder as a scheduler of that format left it.
fn folder_of(format: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(format).join("state.sql");
    database(folder.path()).execute_batch(&fs::read_to_string(fixture).expect("a fixture")).expect("SQL");
    folder
}

fn replayed(recovered: &Recovered, policy: &PolicySettings) -> Engine {
    let state = recovered.snapshot.as_ref().expect("it was stopped once").state.clone();
    let mut engine = Engine::restore(EngineSettings::default(), policy, state).expect("settings that work");
    let mut commands = Vec::new();
    for record in recovered.records.clone() {
        match record {
            Record::Event { at, event } => engine.replay(at, event, &mut commands),
            Record::Round { at, policy, plan } => engine.replay_round(at, policy.as_deref(), plan, &mut commands),
        }
    }
    engine
}

fn pollux() -> PolicySettings {
    PolicySettings::Pollux(PolluxSettings::default())
}

#[test]
fn jobs_of_format_1_are_all_there_as_they_were_asked_for() {
    let folder = folder_of("v1");
    let (store, recovered) = Store::open(folder.path()).unwrap();
    let specs: Vec<(u64, JobSpec)> = recovered.live_jobs.iter().map(|job| (job.id.0, job.spec.clone())).collect();
    let ids: Vec<u64> = specs.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [2, 4, 6, 7, 8, 9, 11]);
    let speech = JobSpec {
        command: ["sh", "-c", "exec /srv/pollux/bin/pollux-trainer --epochs 400 --pace good"].map(str::to_owned).into(),
        working_dir: "/srv/pollux/work".into(),
        env: [("SEED".to_owned(), "7".to_owned())].into(),
        replicas_max: Some(8),
        work: Some(Work::Epochs(400)),
        ..JobSpec::new("speech", 1)
    };
    assert_eq!(specs[0].1, speech);
    let recommender = &specs[1].1;
    assert_eq!((recommender.priority, recommender.work), (2, Some(Work::BaselineSteps(50_000))));
    let ablation = &specs[2].1;
    assert_eq!((ablation.flexibility, ablation.replicas, ablation.batch_size), (Flexibility::Rigid, 2, Some(128)));
    assert_eq!(specs[3].1.flexibility, Flexibility::NonPreemptible);
    assert_eq!((specs[4].1.replicas, specs[4].1.retries), (8, 5));

    let ended = store.reader().unwrap().ended_jobs(EndedQuery::default(), 10).unwrap();
    let summaries = ended.iter().flatten().map(|job| {
        let summary = &job.ended.as_ref().unwrap().summary;
        let failure = summary.failure.as_deref().unwrap_or_default();
        let learned = summary.report.as_ref().is_some_and(|report| report.report.progress.steps > 0);
        (job.submitted.spec.name.as_str(), summary.state.phase(), summary.usage.attained_gpu_s(), failure, learned)
    });
    let expected = [
        ("short", Phase::Succeeded, 3.133, "", true),
        ("abandoned", Phase::Cancelled, 23.384, "", true),
        ("broken", Phase::Failed, 0.041, "a replica failed on local-0: exit code 3", false),
        ("vision", Phase::Succeeded, 23.224, "", true),
    ];
    assert_eq!(summaries.collect::<Vec<_>>(), expected);
    assert_eq!((recovered.last_job, recovered.last_replica, recovered.last_history), (Some(JobId(11)), 48, 148));
    assert_eq!((recovered.tokens.len(), recovered.damaged, store.epoch()), (8, None, 1));
}

#[test]
fn tokens_that_opened_everything_are_those_of_admins() {
    for (format, label) in [("v1", "reader"), ("v2", "ada")] {
        let folder = folder_of(format);
        let (_, recovered) = Store::open(folder.path()).unwrap();
        let users = recovered.tokens.iter().filter_map(|token| match &token.holder {
            TokenHolder::User(user) => Some(user.clone()),
            TokenHolder::Job(_) => None,
        });
        let mut users: Vec<UserToken> = users.collect();
        users.sort_by(|a, b| a.name.cmp(&b.name));
        let admin = |name: &str| UserToken {
            name: name.to_owned(),
            role: Role::Admin,
            created: None,
            expires: None,
            used: None,
        };
        let mut expected = [admin(label), admin("local")];
        expected.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(users, expected, "{format}");
    }
}

#[test]
fn the_engine_of_format_1_goes_on_where_it_was() {
    let folder = folder_of("v1");
    let (_, recovered) = Store::open(folder.path()).unwrap();
    let engine = replayed(&recovered, &pollux());
    engine.check_invariants();
    let jobs: Vec<_> = engine.jobs().map(|job| (job.id().0, job.phase(), job.group().clone())).collect();
    let on = |node, replicas| Allocation::on(NodeId(node), replicas);
    let expected = [
        (2, Phase::Running, on(0, 3)),
        (4, Phase::Resizing, on(1, 3)),
        (6, Phase::Paused, Allocation::NONE),
        (7, Phase::Running, on(0, 1)),
        (8, Phase::Queued, Allocation::NONE),
        (9, Phase::Queued, Allocation::NONE),
        (11, Phase::Queued, Allocation::NONE),
    ];
    assert_eq!(jobs, expected);
    let speech = engine.job(JobId(2)).unwrap();
    assert_eq!((speech.revision().0, speech.usage(engine.now()).restarts), (8, 7));
    let learned = &speech.report().unwrap().report.types[0];
    assert_eq!((learned.gpu_type.as_str(), learned.replicas_profiled), ("cpu", 8));
    let is_known =
        |id| engine.view(engine.now(), |view| view.jobs.iter().any(|job| job.id == id && !job.profiles.is_empty()));
    assert!(is_known(JobId(2)) && is_known(JobId(4)), "goodput scheduling goes on");
    assert!(engine.job(JobId(7)).unwrap().is_silent());
    assert!(matches!(engine.job(JobId(9)).unwrap().state(), JobState::Queued { retry_at: _ }));

    let groups: Vec<_> =
        recovered.groups.iter().map(|(job, group)| (job.0, group.generation, group.members.len())).collect();
    assert_eq!(groups, [(2, 8, 3), (4, 11, 3), (6, 1, 0), (7, 1, 1), (9, 2, 0)]);
    assert_eq!(recovered.groups[0].1.rendezvous, Some(("127.0.0.1".to_owned(), 41_667)));
    let replicas: Vec<_> =
        recovered.replicas.iter().map(|replica| (replica.id, replica.job.0, replica.node.0)).collect();
    let expected = [(16, 7, 0), (35, 2, 0), (36, 2, 0), (37, 2, 0), (38, 4, 1), (39, 4, 1), (45, 4, 1), (48, 4, 1)];
    assert_eq!(replicas, expected);
}

#[test]
fn history_of_format_1_is_there_to_the_last_line() {
    let folder = folder_of("v1");
    let (store, _) = Store::open(folder.path()).unwrap();
    let lines = store.reader().unwrap().history(0, None, 1_000).unwrap();
    assert_eq!(lines.len(), 148);
    assert!(lines.iter().all(|line| line.event.is_ok()), "{lines:?}");
}

#[test]
fn jobs_of_format_2_are_all_there_as_they_were_asked_for() {
    let folder = folder_of("v2");
    let (store, recovered) = Store::open(folder.path()).unwrap();
    let specs: Vec<(u64, &JobSpec)> = recovered.live_jobs.iter().map(|job| (job.id.0, &job.spec)).collect();
    assert_eq!(specs.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 4, 6, 8, 9, 10, 11, 12]);
    let speech = JobSpec {
        owner: "local".to_owned(),
        command: ["/srv/pollux/bin/pollux-trainer", "--epochs", "4000", "--pace", "good"].map(str::to_owned).into(),
        working_dir: "/srv/pollux/work".into(),
        env: [("SEED".to_owned(), "7".to_owned())].into(),
        secrets: [("KEY".to_owned(), Secret::new("hidden".to_owned()))].into(),
        replicas_max: Some(8),
        work: Some(Work::Epochs(4000)),
        time_limit: Some(28_800),
        ..JobSpec::new("speech", 1)
    };
    assert_eq!(specs[0].1, &speech);
    let recommender = specs[1].1;
    let resources = (recommender.gpus_per_replica, recommender.cpus, recommender.memory, recommender.priority);
    assert_eq!(resources, (2, Some(1), Some(64 << 20), 2));
    assert_eq!((specs[2].1.flexibility, specs[2].1.batch_size), (Flexibility::Rigid, Some(128)));
    assert_eq!(specs[5].1.depends_on, [Dependency { job: JobId(2), after: After::Success }]);
    assert_eq!(specs[6].1.gpu_types, ["NVIDIA A100-SXM4-40GB"]);

    let ended = store.reader().unwrap().ended_jobs(EndedQuery::default(), 10).unwrap();
    let ended: Vec<_> = ended.into_iter().map(|job| job.unwrap().ended.unwrap().summary).collect();
    let phases: Vec<Phase> = ended.iter().map(|summary| summary.state.phase()).collect();
    assert_eq!(phases, [Phase::Succeeded, Phase::Failed, Phase::Cancelled, Phase::Failed, Phase::Succeeded]);
    assert_eq!(ended[1].state, JobState::Failed { reason: FailureReason::TimeLimit { limit_s: 2 } });
    assert_eq!((recovered.last_job, recovered.damaged, store.epoch()), (Some(JobId(13)), None, 3));
}

#[test]
fn the_engine_of_format_2_goes_on_where_it_was_with_what_its_policy_remembers() {
    let folder = folder_of("v2");
    let (_, recovered) = Store::open(folder.path()).unwrap();
    let snapshot = recovered.snapshot.as_ref().unwrap();
    assert!(snapshot.state.policy.is_some() && snapshot.unreadable_policy.is_none());
    let engine = replayed(&recovered, &PolicySettings::Tiresias(TiresiasSettings::default()));
    engine.check_invariants();
    let phases: Vec<_> = engine.jobs().map(|job| (job.id().0, job.phase())).collect();
    let queued = [9, 10, 11, 12].map(|id| (id, Phase::Queued));
    let expected = [(2, Phase::Running), (4, Phase::Running), (6, Phase::Paused), (8, Phase::Running)];
    assert_eq!(phases, [&expected[..], &queued].concat());
    let groups: Vec<_> =
        recovered.groups.iter().map(|(job, group)| (job.0, group.generation, group.members.len())).collect();
    assert_eq!(groups.iter().filter(|(.., members)| *members > 0).count(), 3, "{groups:?}");
    assert!(recovered.nodes.iter().all(|(_, node)| node.gpu_type == "cpu" && !node.address.is_empty()));
}

#[test]
fn lines_of_history_that_do_not_say_their_format_are_read_and_one_of_a_later_format_is_shown_as_such() {
    let folder = folder_of("v2");
    let (store, _) = Store::open(folder.path()).unwrap();
    let lines = || store.reader().unwrap().history(0, None, 1_000).unwrap();
    assert_eq!((lines().len(), lines().iter().filter(|line| line.event.is_err()).count()), (60, 0));
    assert_eq!(lines()[2].event, Ok(HistoryEvent::Submitted { name: "vision".to_owned() }));
    database(folder.path()).execute("UPDATE history SET version = 9 WHERE sequence = 3", []).unwrap();
    let unreadable = lines()[2].event.clone().unwrap_err();
    assert_eq!(unreadable.reason, "format 9; expected format 2 or an earlier one");
    assert_eq!(unreadable.text, r#"{"happened":"submitted","name":"vision"}"#);
    assert_eq!(lines().iter().filter(|line| line.event.is_err()).count(), 1);
}

#[test]
fn the_secrets_of_a_job_are_forgotten_when_it_ends() {
    let folder = folder_of("v2");
    let is_kept = || {
        let request: String =
            database(folder.path()).query_row("SELECT request FROM jobs WHERE id = 2", [], |row| row.get(0)).unwrap();
        request.contains("hidden")
    };
    let (mut store, _) = Store::open(folder.path()).unwrap();
    assert!(is_kept());
    let usage = JobUsage::new(Timestamp(1));
    let summary = JobSummary { state: JobState::Cancelled, failure: None, usage, report: None, replicas: Vec::new() };
    let ended = vec![EndedJob { id: JobId(2), ended: Timestamp(9), summary }];
    store.commit(&Batch { ended, ..Batch::default() }).unwrap();
    assert!(!is_kept());
    let spec = store.reader().unwrap().job(JobId(2)).unwrap().unwrap().submitted.spec;
    assert_eq!(spec.secrets.keys().collect::<Vec<_>>(), ["KEY"], "their names are shown");

    // What an earlier version left behind goes when its folder is opened.
    let folder = folder_of("v2");
    let before = database(folder.path());
    before
        .execute("UPDATE jobs SET request = json_set(request, '$.secrets', json('{\"A\":\"b\"}')) WHERE id = 1", [])
        .unwrap();
    drop(before);
    let (store, _) = Store::open(folder.path()).unwrap();
    let spec = store.reader().unwrap().job(JobId(1)).unwrap().unwrap().submitted.spec;
    assert_eq!(spec.secrets, [("A".to_owned(), Secret::new(String::new()))].into());
}

#[test]
fn formats_live_side_by_side_and_a_snapshot_brings_all_up_to_date() {
    let folder = folder_of("v1");
    let (mut store, recovered) = Store::open(folder.path()).unwrap();
    let spec = JobSpec { command: vec!["train".to_owned()], working_dir: "/".into(), ..JobSpec::new("vision-2", 1) };
    let event = pollux_engine::Event::JobSubmitted { job: JobId(12), spec: spec.without_launch() };
    let batch = Batch {
        records: vec![Record::Event { at: Timestamp(u64::MAX >> 2), event }],
        submitted: vec![SubmittedJob { id: JobId(12), submitted: Timestamp(5), spec }],
        ..Batch::default()
    };
    store.commit(&batch).unwrap();
    drop(store);
    let (mut store, again) = Store::open(folder.path()).unwrap();
    assert_eq!(again.records.len(), recovered.records.len() + 1);
    assert_eq!(again.live_jobs.last().unwrap().spec, batch.submitted[0].spec);
    let found = EndedQuery { search: Some("VISION"), ..EndedQuery::default() };
    let names = |store: &Store| store.reader().unwrap().ended_jobs(found, 9).unwrap().len();
    assert_eq!(names(&store), 1, "only the old one has ended");

    let state = replayed(&again, &pollux()).state();
    store.save_snapshot(&state).unwrap();
    drop(store);
    let (_, last) = Store::open(folder.path()).unwrap();
    assert_eq!(last.snapshot.unwrap().state, state);
    assert!(last.records.is_empty());
}

/// What each kind of row is called, and how one of them is given to a later version.
const LATER: [(&str, &str); 6] = [
    ("record 536 of the journal", "UPDATE journal SET version = 9 WHERE sequence = 536"),
    ("the snapshot", "UPDATE snapshot SET version = 9"),
    ("job 4", "UPDATE jobs SET request_version = 9 WHERE id = 4"),
    ("replica 16", "UPDATE replicas SET version = 9 WHERE id = 16"),
    ("the group of job 6", "UPDATE groups SET version = 9 WHERE job = 6"),
    ("node 1", "UPDATE nodes SET version = 9 WHERE id = 1"),
];

#[test]
fn a_row_of_a_later_format_is_refused_and_nothing_is_changed() {
    for (what, update) in LATER {
        let folder = folder_of("v1");
        drop(Store::open(folder.path()).unwrap());
        assert_eq!(database(folder.path()).execute(update, []).unwrap(), 1);
        let before = fs::read(folder.path().join("pollux.db")).unwrap();
        let message = Store::open(folder.path()).unwrap_err().to_string();
        assert_eq!(
            message,
            format!("{what} is written in format 9: expected format 2 or an earlier one; nothing was changed")
        );
        assert!(fs::read(folder.path().join("pollux.db")).unwrap() == before, "{what}");
    }
}

#[test]
fn an_ended_job_of_a_later_format_hides_no_other() {
    let folder = folder_of("v1");
    let (store, _) = Store::open(folder.path()).unwrap();
    database(folder.path()).execute("UPDATE jobs SET summary_version = 9 WHERE id = 5", []).unwrap();
    let reader = store.reader().unwrap();
    assert_eq!(reader.ended_jobs(EndedQuery::default(), 9).unwrap().iter().flatten().count(), 3);
    assert!(matches!(reader.job(JobId(5)), Err(StoreError::NewerRecord { found: 9, .. })));
}

#[test]
fn fields_that_are_not_known_are_ignored() {
    let folder = folder_of("v1");
    let (mut store, recovered) = Store::open(folder.path()).unwrap();
    let state = replayed(&recovered, &pollux()).state();
    store.save_snapshot(&state).unwrap();
    store.commit(&Batch { records: recovered.records.clone(), ..Batch::default() }).unwrap();
    drop(store);
    let later = database(folder.path());
    for (table, column, places) in [
        ("snapshot", "state", &["$.later", "$.jobs[0].later", "$.jobs[0].usage.later", "$.nodes[0].later"][..]),
        ("journal", "record", &["$.event.later", "$.round.later", "$.event.event.report.report.later"]),
        ("jobs", "request", &["$.later", "$.spec.later"]),
        ("jobs", "summary", &["$.later"]),
        ("groups", "detail", &["$.later"]),
        ("replicas", "detail", &["$.later"]),
        ("nodes", "name", &["$.later"]),
    ] {
        for place in places {
            // Only where there is something to add to.
            let parent = place.trim_end_matches(".later");
            let update = format!(
                "UPDATE {table} SET {column} = json_set({column}, '{place}', 7) WHERE json_type({column}, '{parent}') = 'object'"
            );
            let changed = later.execute(&update, []).unwrap();
            assert!(changed > 0, "{table} {place}");
        }
    }
    drop(later);
    let (_, again) = Store::open(folder.path()).unwrap();
    assert_eq!((again.records, again.damaged), (recovered.records, None));
    assert_eq!(again.snapshot.unwrap().state, state);
    assert_eq!((again.groups, again.nodes), (recovered.groups, recovered.nodes));
}
