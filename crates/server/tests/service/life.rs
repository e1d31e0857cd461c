use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use pollux_api::{AssignmentState, ReadyRequest};
use pollux_backend::Exit;
use pollux_engine::Refusal;
use pollux_policy::{JobId, PolicySettings};
use pollux_server::{Action, Caller, Refused, ServerSettings};
use pollux_store::{HistoryEvent, Store};

use crate::world::{World, after_plan, elastic, eventually, phase, request, settings};

#[test]
fn a_job_is_submitted_launched_ready_and_done() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 2)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let handle = server.handle();
    let job = handle.submit(request("resnet", 2)).wait().unwrap();
    assert_eq!(job, JobId(1));
    let orders = eventually("the launch", || Some(world.running_for(job)).filter(|orders| orders.len() == 2));
    let expected = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "a"),
        ("MASTER_PORT", "20017"),
        ("POLLUX_URL", "http://127.0.0.1:7878"),
        ("POLLUX_HOST_ADDRESS", "a"),
        ("POLLUX_JOB_ID", "1"),
        ("POLLUX_REPLICA_ID", "2"),
        ("POLLUX_GENERATION", "1"),
        ("POLLUX_CHECKPOINT_DIR", "/saved/1"),
        ("SEED", "1"),
    ];
    let expected: BTreeMap<_, _> = expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    assert_eq!(orders[1].environment, expected);
    assert_eq!((orders[1].checkpoint_dir.as_str(), orders[1].gpus), ("/saved/1", 1));
    assert_eq!(handle.caller(&orders[1].secrets["POLLUX_TOKEN"]), Some(Caller::Job(job)));
    assert_eq!(handle.caller("guess"), None);

    assert_eq!(phase(handle, job).as_deref(), Some("starting"));
    let ready = |generation| handle.ready(job, ReadyRequest { generation, pause_s: None }).wait();
    assert_eq!(ready(2), Err(Refused::Stale { job, generation: 2, current: 1 }));
    assert_eq!([ready(1), ready(1)], [Ok(()), Ok(())], "saying it twice does no harm");
    assert_eq!(phase(handle, job).as_deref(), Some("running"));
    world.exit(2, Exit::Code(0));
    world.exit(1, Exit::Code(0));
    eventually("the end", || phase(handle, job).is_none().then_some(()));
    assert_eq!(handle.act(job, Action::Cancel).wait(), Err(Refused::Engine(Refusal::EndedJob { job })));
    assert_eq!(handle.caller(&orders[1].secrets["POLLUX_TOKEN"]), None, "the token went with its job");
    assert!(handle.assignment(job).is_none());
    handle.shut_down().wait().unwrap();
    server.join().unwrap();

    let (store, _) = Store::open(folder.path()).unwrap();
    let history = store.reader().unwrap().history(0, Some(job), 100).unwrap();
    let happened = history.iter().map(|entry| match entry.event.as_ref().unwrap() {
        HistoryEvent::Submitted { .. } => "submitted",
        HistoryEvent::Launched { replicas: 2, nodes: 1 } => "launched",
        HistoryEvent::Ready { .. } => "ready",
        HistoryEvent::Exited { .. } => "exited",
        HistoryEvent::Stopped { .. } => "stopped",
        HistoryEvent::Ended { .. } => "ended",
        other => panic!("{other:?}"),
    });
    let expected = ["submitted", "launched", "ready", "exited", "exited", "stopped", "ended"];
    assert_eq!(happened.collect::<Vec<_>>(), expected);
}

#[test]
fn workers_that_are_told_to_leave_find_out_why_and_their_gpus_wait_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let handle = server.handle();
    let first = handle.submit(request("first", 1)).wait().unwrap();
    let second = handle.submit(request("second", 1)).wait().unwrap();
    eventually("the launch", || (!world.running_for(first).is_empty()).then_some(()));
    world.set_stubborn(1, true);
    handle.act(first, Action::Pause).wait().unwrap();
    let told = handle.assignment(first).unwrap().borrow().clone();
    assert_eq!((told.state, told.generation), (AssignmentState::Stop, 1));
    after_plan(handle);
    assert!(world.running_for(second).is_empty(), "the first has not left");
    world.exit(1, Exit::Code(143));
    eventually("the launch of the second", || (!world.running_for(second).is_empty()).then_some(()));
    assert_eq!(phase(handle, first).as_deref(), Some("paused"));
    handle.act(first, Action::Resume).wait().unwrap();
    world.check();
}

#[test]
fn groups_grow_and_shrink_while_others_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 4)]);
    let server = world.serve(settings(folder.path(), elastic()));
    let handle = server.handle();
    let mut spoken = BTreeMap::new();
    let first = handle.submit(request("first", 1)).wait().unwrap();
    let mut grown_to = |count: usize| {
        eventually("the resize", || {
            world.speak(handle, &mut spoken);
            (world.running_for(first).len() == count).then_some(())
        });
    };
    grown_to(4);
    handle.submit(request("second", 1)).wait().unwrap();
    grown_to(2);
    let assignment = handle.assignment(first).unwrap().borrow().clone();
    let running: Vec<u64> = world.running_for(first).iter().map(|order| order.replica.0).collect();
    assert_eq!(
        assignment.replicas.iter().map(|it| it.replica).collect::<Vec<_>>(),
        running,
        "survivors in their order"
    );
    world.check();
}

#[test]
fn a_script_that_never_speaks_runs_to_its_end_undisturbed() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 4)]);
    let quick = ServerSettings { silence: Duration::from_millis(50), ..settings(folder.path(), elastic()) };
    let server = world.serve(quick);
    let handle = server.handle();
    let script = handle.submit(request("script", 1)).wait().unwrap();
    eventually("that it counts as running", || phase(handle, script).filter(|phase| phase == "running"));
    let mut spoken = BTreeMap::from([(script, 1)]);
    let other = handle.submit(request("other", 1)).wait().unwrap();
    eventually("that the other grows", || {
        world.speak(handle, &mut spoken);
        (world.running_for(other).len() == 3).then_some(())
    });
    assert_eq!(world.running_for(script).len(), 1);
    world.exit(1, Exit::Code(0));
    eventually("the end", || phase(handle, script).is_none().then_some(()));
}

#[test]
fn a_crash_looping_job_is_given_up_and_its_neighbour_unharmed() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 2)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let handle = server.handle();
    let neighbour = handle.submit(request("neighbour", 1)).wait().unwrap();
    let broken = handle.submit(request("broken", 1)).wait().unwrap();
    let mut crashes = 0;
    eventually("that it is given up", || {
        for order in world.running_for(broken) {
            world.exit(order.replica.0, Exit::Code(1));
            crashes += 1;
        }
        phase(handle, broken).is_none().then_some(())
    });
    assert_eq!((crashes, world.running_for(neighbour)[0].replica.0), (4, 1), "three retries after the first attempt");
    world.check();
}

#[test]
fn the_state_folder_may_be_relative() {
    let folder = tempfile::tempdir().unwrap();
    let here = std::env::current_dir().unwrap();
    let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
    let relative = up.join(folder.path().strip_prefix("/").unwrap());
    let server = World::new(&[("a", 1)]).serve(settings(&relative, PolicySettings::Fifo));
    assert_eq!(server.state_dir(), folder.path().canonicalize().unwrap());
}

#[test]
fn a_restart_tells_and_counts_nothing_again() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let job = server.handle().submit(request("resnet", 1)).wait().unwrap();
    eventually("the launch", || (!world.running_for(job).is_empty()).then_some(()));
    server.handle().shut_down().wait().unwrap();
    server.join().unwrap();
    // Now it starts, and later it is told to leave and does not.
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    world.set_stubborn(1, true);
    server.handle().act(job, Action::Pause).wait().unwrap();
    server.handle().shut_down().wait().unwrap();
    server.join().unwrap();
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let counted = ["launch", "stop"].map(|kind| server.handle().metrics().group_changes(kind));
    assert_eq!(counted, [0, 0]);
    server.handle().shut_down().wait().unwrap();
    server.join().unwrap();
    let (store, _) = Store::open(folder.path()).unwrap();
    let history = store.reader().unwrap().history(0, Some(job), 100).unwrap();
    let count =
        |is_it: fn(&HistoryEvent) -> bool| history.iter().filter(|line| line.event.as_ref().is_ok_and(is_it)).count();
    let launched = count(|event| matches!(event, HistoryEvent::Launched { .. }));
    let stopped = count(|event| matches!(event, HistoryEvent::Stopped { .. }));
    assert_eq!((launched, stopped), (1, 1), "{history:?}");
}
