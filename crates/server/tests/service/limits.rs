use pollux_engine::{EngineSettings, Refusal};
use pollux_policy::PolicySettings;
use pollux_server::{JobRequest, Refused, RequestError, ServerSettings};

use crate::world::{World, eventually, request, settings};

#[test]
fn a_full_disk_refuses_submissions_and_nothing_is_lost_when_there_is_room_again() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let handle = server.handle();
    let first = handle.submit(request("first", 1)).wait().unwrap();
    eventually("the launch", || (!world.running_for(first).is_empty()).then_some(()));
    handle.limit_pages(1);
    let large = JobRequest { command: vec!["x".repeat(100_000)], ..request("large", 1) };
    let refused = eventually("a refusal", || handle.submit(large.clone()).wait().err());
    assert_eq!(refused, Refused::Full);
    let live = handle.look(|cluster| cluster.engine().jobs().len()).wait().unwrap();
    // What ends meanwhile is noticed, and written later.
    world.exit(1, pollux_backend::Exit::Code(0));
    handle.limit_pages(u32::MAX);
    let second = handle.submit(request("second", 1)).wait().unwrap();
    assert_eq!(second.0, first.0 + live as u64 + 1);
    eventually("the launch of another", || (!world.running().is_empty()).then_some(()));
    world.check();
}

#[test]
fn what_cannot_be_run_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1)]);
    let usual = settings(folder.path(), PolicySettings::Fifo);
    let engine = EngineSettings { live_jobs_max: 1, ..usual.engine };
    let server = world.serve(ServerSettings { engine, ..usual });
    let handle = server.handle();
    let nothing = JobRequest { command: Vec::new(), ..request("nothing", 1) };
    assert_eq!(handle.submit(nothing).wait(), Err(Refused::Request(RequestError::NoCommand)));
    let refused = handle.submit(request("../path", 1)).wait().unwrap_err();
    assert!(matches!(refused, Refused::Engine(Refusal::Name { .. })), "{refused}");
    let answers: Vec<_> = (0..5).map(|_| handle.submit(request("one", 1))).collect();
    let outcomes: Vec<_> = answers.into_iter().map(pollux_server::Answer::wait).collect();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    let limit = Err(Refused::Engine(Refusal::TooManyJobs { limit: 1 }));
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == limit).count(), 4);
}
