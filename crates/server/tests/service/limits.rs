use pollux_backend::Exit;
use pollux_engine::{EngineSettings, JobState, Refusal};
use pollux_job::{JobSpec, SpecError};
use pollux_policy::PolicySettings;
use pollux_server::{Action, Handle, NodeAction, Refused, ServerSettings};
use pollux_store::Store;

use crate::world::{World, eventually, phase, request, settings};

#[test]
fn a_full_disk_refuses_submissions_and_nothing_is_lost_when_there_is_room_again() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let handle = server.handle();
    let first = handle.submit(request("first", 1)).wait().unwrap();
    eventually("the launch", || (!world.running_for(first).is_empty()).then_some(()));
    handle.limit_pages(1);
    // The rest of the pages that the journal has is used up by smaller and smaller jobs.
    for bytes in [100_000, 10_000, 1_000, 10] {
        let job = JobSpec { command: vec!["x".repeat(bytes)], ..request("filler", 1) };
        let refused = eventually("a refusal", || handle.submit(job.clone()).wait().err());
        assert_eq!(refused, Refused::Full);
    }
    // What ends meanwhile is noticed, but nothing is done about it that could be forgotten.
    world.exit(1, Exit::Code(0));
    eventually("the end", || phase(handle, first).is_none().then_some(()));
    let is_sound = || handle.look(|cluster| !cluster.is_degraded()).wait().unwrap();
    for _ in 0..3 {
        assert_eq!(handle.submit(request("filler", 1)).wait(), Err(Refused::Full));
    }
    assert_eq!((is_sound(), world.running().len()), (false, 0));
    handle.limit_pages(u32::MAX);
    let last = handle.submit(request("last", 1)).wait().unwrap();
    eventually("the launch of another", || (!world.running().is_empty()).then_some(()));
    assert!(is_sound());
    handle.shut_down().wait().unwrap();
    server.join().unwrap();
    let (store, _) = Store::open(folder.path()).unwrap();
    let reader = store.reader().unwrap();
    assert_eq!(reader.job(first).unwrap().unwrap().ended.unwrap().summary.state, JobState::Succeeded);
    assert_eq!(reader.job(last).unwrap().unwrap().ended, None);
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
    let nothing = JobSpec { command: Vec::new(), ..request("nothing", 1) };
    assert_eq!(handle.submit(nothing).wait(), Err(Refused::Request(SpecError::NoCommand)));
    let refused = handle.submit(request("../path", 1)).wait().unwrap_err();
    assert!(matches!(refused, Refused::Engine(Refusal::Spec(SpecError::Name { .. }))), "{refused}");
    let answers: Vec<_> = (0..5).map(|_| handle.submit(request("one", 1))).collect();
    let outcomes: Vec<_> = answers.into_iter().map(pollux_server::Answer::wait).collect();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    let limit = Err(Refused::Engine(Refusal::TooManyJobs { limit: 1 }));
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == limit).count(), 4);
}

#[test]
fn logs_are_kept_of_the_thousand_jobs_that_ended_last_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let first = server.handle().submit(request("first", 1)).wait().unwrap();
    eventually("the launch", || (!world.running_for(first).is_empty()).then_some(()));
    world.exit(1, Exit::Code(0));
    eventually("the end", || phase(server.handle(), first).is_none().then_some(()));
    let end_more = |handle: &Handle, count: u32| {
        handle.act_on_node("a", NodeAction::Drain).wait().unwrap();
        let submitted: Vec<_> = (0..count).map(|_| handle.submit(request("more", 1))).collect();
        for job in submitted {
            handle.act(job.wait().unwrap(), Action::Cancel).wait().unwrap();
        }
        // Whatever follows from the last one has been done when this is answered.
        handle.look(|_| ()).wait().unwrap();
    };
    end_more(server.handle(), 500);
    server.handle().shut_down().wait().unwrap();
    server.join().unwrap();
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    eventually("the node", || server.handle().act_on_node("a", NodeAction::Drain).wait().ok());
    end_more(server.handle(), 499);
    assert!(!world.is_forgotten(1));
    end_more(server.handle(), 1);
    assert!(world.is_forgotten(1));
}
