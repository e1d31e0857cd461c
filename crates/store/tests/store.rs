//! What was committed is there again, whatever happened in between.

use std::fs;
use std::path::Path;

use pollux_engine::{Engine, EngineSettings, EngineState, Event, FailureReason, JobState, JobUsage, Revision};
use pollux_job::JobSpec;
use pollux_policy::{JobId, NodeId, Plan, PolicySettings, Timestamp};
use pollux_store::{
    Batch, EndedJob, EndedQuery, GroupRow, HistoryEntry, HistoryEvent, JobSummary, NodeRow, Record, ReplicaRow, Role,
    Store, StoreError, SubmittedJob, TokenHolder, TokenRow, UserToken,
};
use rusqlite::Connection;

fn submitted(id: u64) -> HistoryEvent {
    HistoryEvent::Submitted { name: format!("job {id}") }
}

fn submission(id: u64) -> Batch {
    let at = Timestamp(id * 10);
    let event = Event::JobSubmitted { job: JobId(id), spec: JobSpec::new("a", 1) };
    Batch {
        records: vec![Record::Event { at, event }],
        submitted: vec![SubmittedJob { id: JobId(id), submitted: at, spec: JobSpec::new(&format!("job {id}"), 1) }],
        tokens: vec![TokenRow { digest: [id as u8; 32], holder: TokenHolder::Job(JobId(id)) }],
        history: vec![HistoryEntry { sequence: id, at, job: Some(JobId(id)), event: submitted(id) }],
        ..Batch::default()
    }
}

fn end(id: u64, state: JobState) -> Batch {
    end_at(id, state, 99)
}

fn end_at(id: u64, state: JobState, at: u64) -> Batch {
    let usage = JobUsage { ended: Some(Timestamp(at)), ..JobUsage::new(Timestamp(id)) };
    let summary = JobSummary { state, failure: None, usage, report: None, replicas: vec![id] };
    let ended = EndedJob { id: JobId(id), ended: Timestamp(at), summary };
    Batch { ended: vec![ended], ..Batch::default() }
}

/// What an engine knows that was told so many jobs.
fn state(jobs: u64) -> EngineState {
    let mut engine = Engine::new(EngineSettings::default(), &PolicySettings::Fifo).expect("settings that work");
    for id in 1..=jobs {
        let event = Event::JobSubmitted { job: JobId(id), spec: JobSpec::new("a", 1) };
        engine.step(Timestamp(id), event, &mut Vec::new());
    }
    engine.state()
}

fn node(name: &str) -> NodeRow {
    NodeRow { name: name.to_owned(), gpu_type: "cpu".to_owned(), gpus: 2, address: "here".to_owned() }
}

fn group(members: &[u64]) -> GroupRow {
    GroupRow {
        generation: 3,
        revision: Revision(2),
        heard: (2, Revision(1)),
        members: members.to_vec(),
        rendezvous: None,
        awaits_additions: true,
        shrunk: false,
        stopping: false,
        last_leader: Some(7),
        past: vec![1, 2],
    }
}

fn database(folder: &Path) -> Connection {
    Connection::open(folder.join("pollux.db")).expect("a database")
}

#[test]
fn what_was_committed_is_read_back_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, recovered) = Store::open(folder.path()).unwrap();
    assert!(recovered.records.is_empty() && recovered.snapshot.is_none());
    store.commit(&submission(1)).unwrap();
    store.commit(&submission(2)).unwrap();
    let round = Record::Round { at: Timestamp(60_000), policy: Some("fifo".to_owned()), plan: Some(Plan::default()) };
    let replica = ReplicaRow { id: 5, job: JobId(2), node: NodeId(3), shares_with: Some(4), bundle: Some(5) };
    store
        .commit(&Batch {
            records: vec![round.clone()],
            replicas_ordered: vec![replica.clone()],
            ..end(1, JobState::Succeeded)
        })
        .unwrap();
    let regrouped = vec![(JobId(1), None), (JobId(2), Some(group(&[5, 6])))];
    store.commit(&Batch { groups: vec![(JobId(1), Some(group(&[1])))], ..Batch::default() }).unwrap();
    store.commit(&Batch { groups: regrouped, nodes: vec![(NodeId(3), node("a"))], ..Batch::default() }).unwrap();
    drop(store);

    let (_, recovered) = Store::open(folder.path()).unwrap();
    assert_eq!(recovered.groups, [(JobId(2), group(&[5, 6]))]);
    assert_eq!(recovered.tokens, submission(2).tokens, "tokens end with their job");
    assert_eq!(recovered.nodes, [(NodeId(3), node("a"))]);
    assert_eq!(recovered.records, [&submission(1).records[0], &submission(2).records[0], &round].map(Clone::clone));
    assert_eq!(recovered.live_jobs, submission(2).submitted);
    assert_eq!(recovered.replicas, [replica]);
    assert_eq!((recovered.last_job, recovered.last_history), (Some(JobId(2)), 2));
}

#[test]
fn every_opening_has_a_higher_epoch_than_all_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let epochs: Vec<u64> = (0..3).map(|_| Store::open(folder.path()).unwrap().0.epoch()).collect();
    assert_eq!(epochs, [1, 2, 3]);
    let other = tempfile::tempdir().unwrap();
    assert_eq!(Store::open(other.path()).unwrap().0.epoch(), 1, "a folder of its own counts by itself");
}

#[test]
fn a_folder_that_is_refused_keeps_its_epoch() {
    let folder = tempfile::tempdir().unwrap();
    drop(Store::open(folder.path()).unwrap());
    database(folder.path()).pragma_update(None, "user_version", 99).unwrap();
    assert!(matches!(Store::open(folder.path()), Err(StoreError::NewerVersion { found: 99, .. })));
    let epoch: i64 = database(folder.path()).query_row("SELECT epoch FROM epoch", [], |row| row.get(0)).unwrap();
    assert_eq!(epoch, 1);
}

#[test]
fn a_snapshot_stands_for_all_records_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(folder.path()).unwrap();
    store.commit(&submission(1)).unwrap();
    store.save_snapshot(&state(1)).unwrap();
    store.commit(&submission(2)).unwrap();
    drop(store);
    let (mut store, recovered) = Store::open(folder.path()).unwrap();
    let snapshot = recovered.snapshot.unwrap();
    assert_eq!((snapshot.state, snapshot.sequence), (state(1), 1));
    assert_eq!(recovered.records, submission(2).records);
    store.save_snapshot(&state(2)).unwrap();
    drop(store);
    let (store, recovered) = Store::open(folder.path()).unwrap();
    assert!(recovered.records.is_empty());
    assert_eq!(store.sequence(), 2, "numbers go on after a snapshot without records");
}

#[test]
fn a_batch_that_cannot_be_written_whole_is_not_written_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(folder.path()).unwrap();
    store.commit(&submission(1)).unwrap();
    let mut twice = submission(2);
    twice.submitted.push(twice.submitted[0].clone());
    assert!(matches!(store.commit(&twice), Err(StoreError::Database(_))));
    store.commit(&submission(2)).unwrap();
    drop(store);
    let (_, recovered) = Store::open(folder.path()).unwrap();
    assert_eq!(recovered.records.len(), 2);
}

#[test]
fn ended_jobs_are_paged_from_the_newest_and_found_by_phase_and_name() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(folder.path()).unwrap();
    for id in 1..=6 {
        let mut batch = submission(id);
        batch.submitted[0].spec.name = format!("Name-{id}");
        store.commit(&batch).unwrap();
    }
    let failed = JobState::Failed { reason: FailureReason::TimeLimit { limit_s: 9 } };
    for (id, state) in [(1, JobState::Succeeded), (2, failed), (3, JobState::Succeeded), (5, JobState::Succeeded)] {
        store.commit(&end(id, state)).unwrap();
    }
    database(folder.path()).execute("UPDATE jobs SET request = 'no sense' WHERE id = 1", []).unwrap();
    let reader = store.reader().unwrap();
    let ids = |asked: EndedQuery<'_>| -> Vec<u64> {
        let jobs = reader.ended_jobs(asked, 3).unwrap();
        jobs.iter().map(|job| job.as_ref().map_or_else(|id| id.0, |job| job.submitted.id.0)).collect()
    };
    let all = EndedQuery::default();
    assert_eq!(ids(all), [5, 3, 2]);
    assert_eq!(ids(EndedQuery { before: Some(JobId(2)), ..all }), [1]);
    assert_eq!(ids(EndedQuery { phase: Some("failed"), ..all }), [2]);
    assert_eq!(ids(EndedQuery { search: Some("NAME-5"), ..all }), [5]);
    assert_eq!(ids(EndedQuery { search: Some("name-"), phase: Some("succeeded"), ..all }), [5, 3]);
    assert!(ids(EndedQuery { search: Some("%"), ..all }).is_empty());
    assert_eq!(ids(EndedQuery { search: Some("1"), ..all }), [1], "a request that makes no sense has a number");
    assert_eq!(reader.ended_jobs(EndedQuery { before: Some(JobId(2)), ..all }, 3).unwrap(), [Err(JobId(1))]);
    assert!(matches!(reader.job(JobId(1)), Err(StoreError::Unreadable { .. })));
    assert_eq!(reader.job(JobId(3)).unwrap().unwrap().ended, end(3, JobState::Succeeded).ended.pop());
    assert_eq!(reader.job(JobId(4)).unwrap().unwrap().ended, None);
    assert_eq!(reader.job(JobId(7)).unwrap(), None);
    let history: Vec<u64> = reader.history(2, None, 2).unwrap().iter().map(|entry| entry.sequence).collect();
    assert_eq!(history, [3, 4]);
    let last = |before, job| -> Vec<u64> {
        let entries = reader.history_before(before, job, 2).unwrap();
        entries.iter().map(|entry| entry.sequence).collect()
    };
    assert_eq!((last(4, None), last(u64::MAX, Some(JobId(6)))), (vec![2, 3], vec![6]), "the newest, in order");
    assert_eq!(reader.history(0, Some(JobId(6)), 9).unwrap()[0].event, Ok(submitted(6)));
}

#[test]
fn jobs_that_ended_last_are_found_whenever_they_were_submitted() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(folder.path()).unwrap();
    for id in 1..=4 {
        store.commit(&submission(id)).unwrap();
    }
    for (id, at) in [(3, 100), (2, 100), (1, 300)] {
        store.commit(&end_at(id, JobState::Succeeded, at)).unwrap();
    }
    let jobs = store.reader().unwrap().last_ended_jobs(2).unwrap();
    assert_eq!(jobs.iter().flatten().map(|job| job.submitted.id.0).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn two_schedulers_never_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let _store = Store::open(folder.path()).unwrap();
    let error = Store::open(folder.path()).unwrap_err();
    assert!(matches!(error, StoreError::Busy { .. }), "{error}");
}

#[test]
fn tokens_of_users_are_read_back_with_role_end_and_last_use() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(folder.path()).unwrap();
    let (created, expires) = (Some(Timestamp(1)), Some(Timestamp(9)));
    let token = |id: u8, name: &str, role, used| TokenRow {
        digest: [id; 32],
        holder: TokenHolder::User(UserToken { name: name.to_owned(), role, created, expires, used }),
    };
    let tokens = vec![
        token(1, "ada", Role::Admin, None),
        token(2, "bob", Role::Member, Some(Timestamp(5))),
        token(3, "eve", Role::Viewer, None),
    ];
    store.commit(&Batch { tokens, ..Batch::default() }).unwrap();
    let (tokens_gone, tokens_used) = (vec![[1; 32]], vec![([3; 32], Timestamp(7)), ([9; 32], Timestamp(8))]);
    store.commit(&Batch { tokens_gone, tokens_used, ..Batch::default() }).unwrap();
    drop(store);
    let (store, recovered) = Store::open(folder.path()).unwrap();
    let expected =
        [token(2, "bob", Role::Member, Some(Timestamp(5))), token(3, "eve", Role::Viewer, Some(Timestamp(7)))];
    assert_eq!(recovered.tokens, expected);
    drop(store);
    database(folder.path()).execute("UPDATE tokens SET role = 'king' WHERE label = 'eve'", []).unwrap();
    let refused = Store::open(folder.path()).unwrap_err().to_string();
    assert!(refused.contains(r#"role "king" of a token: expected admin, member or viewer"#), "{refused}");
}

#[test]
fn a_newer_state_folder_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    drop(Store::open(folder.path()).unwrap());
    database(folder.path()).pragma_update(None, "user_version", 99).unwrap();
    let before = fs::read(folder.path().join("pollux.db")).unwrap();
    let error = Store::open(folder.path()).unwrap_err();
    assert!(matches!(error, StoreError::NewerVersion { found: 99, supported: 5, .. }), "{error}");
    assert_eq!(fs::read(folder.path().join("pollux.db")).unwrap(), before);
}

#[test]
fn a_newer_state_folder_that_was_not_closed_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    drop(Store::open(folder.path()).unwrap());
    let newer = database(folder.path());
    newer.pragma_update(None, "user_version", 99).unwrap();
    // As after a kill: the copy has a write-ahead log that nobody has merged.
    let copy = tempfile::tempdir().unwrap();
    let names = ["pollux.db", "pollux.db-wal"];
    for name in names {
        fs::copy(folder.path().join(name), copy.path().join(name)).unwrap();
    }
    let contents = || names.map(|name| fs::read(copy.path().join(name)).unwrap());
    let before = contents();
    let error = Store::open(copy.path()).unwrap_err();
    assert!(matches!(error, StoreError::NewerVersion { found: 99, .. }), "{error}");
    assert!(contents() == before);
}

#[test]
fn a_file_of_another_program_is_refused_and_left_as_it_is() {
    for content in [&b"not a database, but long enough to look like something"[..], b"SQLite format 3\0"] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pollux.db");
        fs::write(&file, content).unwrap();
        let error = Store::open(folder.path()).unwrap_err();
        assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
        assert_eq!(fs::read(file).unwrap(), content);
    }
    let folder = tempfile::tempdir().unwrap();
    database(folder.path()).execute_batch("CREATE TABLE somebody (else_s INTEGER)").unwrap();
    assert!(matches!(Store::open(folder.path()).unwrap_err(), StoreError::Foreign { .. }));
}

#[test]
fn a_damaged_last_record_is_set_aside_and_one_in_the_middle_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(folder.path()).unwrap();
    for id in 1..=3 {
        store.commit(&submission(id)).unwrap();
    }
    drop(store);
    let damage = |sequence: u64| {
        let statement = format!("UPDATE journal SET record = '{{' WHERE sequence = {sequence}");
        database(folder.path()).execute(&statement, []).unwrap();
    };
    damage(3);
    let (mut store, recovered) = Store::open(folder.path()).unwrap();
    assert_eq!((recovered.damaged, recovered.records.len()), (Some(3), 2));
    store.commit(&submission(4)).unwrap();
    drop(store);
    damage(2);
    let error = Store::open(folder.path()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { sequence: 2, .. }), "{error}");
}

#[test]
fn a_torn_end_of_the_journal_loses_only_what_was_torn() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(folder.path()).unwrap();
    for id in 1..=5 {
        store.commit(&submission(id)).unwrap();
    }
    // As after a kill: the copy has a write-ahead log that nobody has merged.
    let copy = tempfile::tempdir().unwrap();
    for name in ["pollux.db", "pollux.db-wal"] {
        fs::copy(folder.path().join(name), copy.path().join(name)).unwrap();
    }
    let log = fs::OpenOptions::new().write(true).open(copy.path().join("pollux.db-wal")).unwrap();
    log.set_len(log.metadata().unwrap().len() - 100).unwrap();
    let (mut store, recovered) = Store::open(copy.path()).unwrap();
    assert_eq!(recovered.records.len(), 4);
    store.commit(&submission(6)).unwrap();
}

#[test]
fn a_full_disk_is_told_and_passes() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(folder.path()).unwrap();
    store.commit(&submission(1)).unwrap();
    store.limit_pages(20);
    let large = |id| {
        let mut batch = submission(id);
        batch.submitted[0].spec.command = vec!["x".repeat(1 << 20)];
        batch
    };
    let error = store.commit(&large(2)).unwrap_err();
    assert!(matches!(error, StoreError::Full) && error.is_retryable(), "{error}");
    store.limit_pages(100_000);
    store.commit(&large(2)).unwrap();
    drop(store);
    assert_eq!(Store::open(folder.path()).unwrap().1.live_jobs.len(), 2);
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let error = Store::open(Path::new("/proc/no-such-folder")).unwrap_err().to_string();
    assert!(error.starts_with("state folder /proc/no-such-folder: "), "{error}");
}

#[test]
fn numbers_of_replicas_that_are_gone_are_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, recovered) = Store::open(folder.path()).unwrap();
    assert_eq!(recovered.last_replica, 0);
    let row = |id| ReplicaRow { id, job: JobId(1), node: NodeId(0), shares_with: None, bundle: None };
    store.commit(&Batch { replicas_ordered: vec![row(6), row(7)], ..Batch::default() }).unwrap();
    store.commit(&Batch { replicas_gone: vec![6, 7], ..Batch::default() }).unwrap();
    drop(store);
    let (_, recovered) = Store::open(folder.path()).unwrap();
    assert_eq!((recovered.last_replica, recovered.replicas.len()), (7, 0));
}
