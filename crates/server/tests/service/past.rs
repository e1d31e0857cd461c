use std::fs;
use std::path::Path;

use pollux_api::{ReportRequest, Role};
use pollux_job::{JobId, JobSpec, Phase};
use pollux_policy::{Binding, PolicySettings, ThemisSettings, Timestamp, TiresiasSettings};
use pollux_server::{Caller, Handle, ManualClock, ServerSettings, User, views};
use pollux_store::{EndedQuery, HistoryEvent, Store};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::world::{World, elastic, eventually, phase, request, settings};

/// A state folder of version 0.1, on nodes of the type that the world has.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../store/tests/fixtures/v1/state.sql");
    let database = Connection::open(folder.path().join("pollux.db")).unwrap();
    database.execute_batch(&fs::read_to_string(fixture).unwrap()).unwrap();
    database.execute("UPDATE nodes SET name = json_set(name, '$.gpu_type', 'local')", []).unwrap();
    folder
}

/// The machines of that time, with what ran there when the scheduler was killed.
fn world() -> World {
    let world = World::new(&[("local-0", 4), ("local-1", 4)]);
    for (replica, job, node) in [(16, 7, "local-0"), (35, 2, "local-0"), (36, 2, "local-0"), (37, 2, "local-0")] {
        world.left_behind(replica, job, node);
    }
    for replica in [38, 39, 45, 48] {
        world.left_behind(replica, 4, "local-1");
    }
    world
}

fn phases(handle: &Handle) -> Vec<(u64, String)> {
    let look = |cluster: &pollux_server::Cluster<'_>| {
        cluster.engine().jobs().map(|job| (job.id().0, job.phase().to_string())).collect::<Vec<_>>()
    };
    handle.look(look).wait().unwrap()
}

#[test]
fn a_state_folder_of_version_0_1_is_carried_on_with() {
    let (folder, world) = (folder(), world());
    // The moment after the kill, and no time passes.
    let clock = ManualClock::default();
    clock.set(Timestamp(1_794_934_134_600));
    let settings = || ServerSettings { clock: Some(clock.clone()), ..settings(folder.path(), elastic()) };
    let server = world.serve(settings());
    let handle = server.handle();
    let expected = [(2, "running"), (4, "resizing"), (6, "paused"), (7, "running")];
    let expected = expected.into_iter().chain([8, 11].map(|id| (id, "queued")));
    let mut found = phases(handle);
    found.retain(|(id, _)| *id != 9);
    assert_eq!(found, expected.map(|(id, phase)| (id, phase.to_owned())).collect::<Vec<_>>());
    // Its workers know nothing of a new scheduler.
    let heard = eventually("the assignment", || handle.assignment(JobId(2)).map(|watch| watch.borrow().clone()));
    assert_eq!(heard.generation, 8);
    assert_eq!(heard.replicas.iter().map(|replica| replica.replica).collect::<Vec<_>>(), [35, 36, 37]);
    let told = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/tests/fixtures/v1/report.json"));
    let told: ReportRequest = serde_json::from_str(&told.unwrap()).unwrap();
    handle.report(JobId(2), ReportRequest { generation: 8, ..told }).wait().unwrap();
    assert_eq!(handle.caller("fixture token 2"), Some(Caller::Job(JobId(2))), "and come in with the token they have");
    assert_eq!(handle.caller("fixture token 6"), Some(Caller::User(User::new("reader", Role::Admin))));
    // Another was told to leave, and is told again; whoever waited for its GPU starts.
    eventually("the rest of a resize", || world.running().iter().all(|order| order.replica.0 != 48).then_some(()));
    let next = eventually("the start after it", || world.running_for(JobId(9)).pop());
    assert_eq!((next.replica.0, next.node.as_str()), (49, "local-1"));
    assert_eq!(world.running_for(JobId(2)).len(), 3);
    let job = handle.submit(request("new", 1)).wait().unwrap();
    assert_eq!(job, JobId(12), "numbers go on");
    world.check();
    handle.shut_down().wait().unwrap();
    server.join().unwrap();

    let server = world.serve(settings());
    let handle = server.handle();
    assert_eq!(phases(handle).len(), 8);
    assert_eq!(phase(handle, JobId(2)).as_deref(), Some("running"));
    world.check();
    handle.shut_down().wait().unwrap();
    server.join().unwrap();
    let (store, _) = Store::open(folder.path()).unwrap();
    let reader = store.reader().unwrap();
    let ended: Vec<_> =
        reader.ended_jobs(EndedQuery::default(), 9).unwrap().iter().flatten().map(views::job_of_row).collect();
    let names: Vec<(&str, Phase)> = ended.iter().map(|job| (job.name.as_str(), job.phase)).collect();
    let expected = [
        ("short", Phase::Succeeded),
        ("abandoned", Phase::Cancelled),
        ("broken", Phase::Failed),
        ("vision", Phase::Succeeded),
    ];
    assert_eq!(names, expected);
    let history = reader.history(0, None, 1_000).unwrap();
    assert!(history.len() > 148);
    assert!(history.iter().all(|line| line.event.is_ok()), "every line is told");
}

#[test]
fn what_another_policy_remembered_is_dropped_and_the_history_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 2)]);
    let tiresias = PolicySettings::Tiresias(TiresiasSettings::default());
    let themis = PolicySettings::Themis(ThemisSettings::default());
    for policy in [&tiresias, &tiresias, &themis, &elastic(), &elastic()] {
        let server = world.serve(settings(folder.path(), policy.clone()));
        server.handle().shut_down().wait().unwrap();
        server.join().unwrap();
    }
    let (store, _) = Store::open(folder.path()).unwrap();
    let history = store.reader().unwrap().history(0, None, 1_000).unwrap();
    let forgotten = history.into_iter().filter_map(|line| match line.event.unwrap() {
        HistoryEvent::PolicyForgot { policy } => Some(policy),
        _ => None,
    });
    assert_eq!(forgotten.collect::<Vec<_>>(), ["tiresias", "themis"]);
}

#[test]
fn nodes_of_version_0_1_learn_their_cpus_and_memory() {
    let (folder, world) = (folder(), world());
    world.set_resources(Some(8), Some(1 << 30));
    let server = world.serve(settings(folder.path(), elastic()));
    let handle = server.handle();
    let shown = || {
        let list = handle.look(views::nodes).wait().unwrap();
        list.nodes.iter().map(|node| (node.cpus, node.memory)).collect::<Vec<_>>()
    };
    eventually("what they have", || (shown() == [(Some(8), Some(1 << 30)); 2]).then_some(()));
    let job = handle.submit(JobSpec { cpus: Some(9), ..request("large", 1) }).wait().unwrap();
    let binding = move |cluster: &pollux_server::Cluster<'_>| {
        cluster.engine().job(job).and_then(|job| job.reason()).map(|reason| reason.binding)
    };
    let binding = eventually("a plan", || handle.look(binding).wait().unwrap());
    assert_eq!(binding, Binding::NotEnoughCpus);
    world.check();
}
