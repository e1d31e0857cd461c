use std::collections::BTreeMap;

use pollux_backend::Exit;
use pollux_engine::JobState;
use pollux_policy::{JobId, PolicySettings};
use pollux_server::{Handle, Refused, ServerError, ServerSettings};
use pollux_store::{HistoryEvent, Store};

use crate::world::{World, elastic, eventually, phase, request, settings};

/// Users and workers that go on whatever becomes of the scheduler.
struct Scenario {
    world: World,
    to_submit: Vec<&'static str>,
    acknowledged: Vec<JobId>,
    spoken: BTreeMap<JobId, u64>,
    /// Looks at each job while it trains.
    ages: BTreeMap<JobId, u32>,
}

impl Scenario {
    /// Whether all is done; none if the scheduler is gone.
    fn go_on(&mut self, handle: &Handle) -> Option<bool> {
        if let Some(name) = self.to_submit.pop() {
            match handle.submit(request(name, 1)).wait() {
                Ok(job) => self.acknowledged.push(job),
                Err(_) => {
                    self.to_submit.push(name);
                    return None;
                }
            }
        }
        self.world.speak(handle, &mut self.spoken);
        for (&job, &generation) in &self.spoken {
            let Some(assignment) = handle.assignment(job).map(|watch| watch.borrow().clone()) else { continue };
            if assignment.generation != generation {
                continue;
            }
            let age = self.ages.entry(job).or_default();
            *age += 1;
            if *age > 20 {
                assignment.replicas.iter().rev().for_each(|it| self.world.exit(it.replica, Exit::Code(0)));
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
        let jobs = handle.look(|cluster| cluster.engine().jobs().len()).wait().ok()?;
        Some(jobs == 0 && self.to_submit.is_empty())
    }

    /// Plays until all is done, or the scheduler is gone; returns whether it was killed.
    fn live(&mut self, settings: ServerSettings) -> bool {
        let server = self.world.serve(settings);
        let done = eventually("the end", || match self.go_on(server.handle()) {
            Some(false) => None,
            Some(true) => Some(true),
            None => Some(false),
        });
        if done {
            // It may be killed while it shuts down.
            let _ = server.handle().shut_down().wait();
        }
        match server.join() {
            Ok(()) => false,
            Err(ServerError::Halted) => true,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Kills the scheduler after so many points, each time that it is started, and then lets it finish. Returns how often
/// it was killed.
#[track_caller]
fn survive(kills: &[u64]) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let mut scenario = Scenario {
        world: World::new(&[("a", 2), ("b", 2)]),
        to_submit: vec!["three", "two", "one"],
        acknowledged: Vec::new(),
        spoken: BTreeMap::new(),
        ages: BTreeMap::new(),
    };
    let mut killed = 0;
    for halt_after in kills.iter().copied().map(Some).chain([None]) {
        let was_killed = scenario.live(ServerSettings { halt_after, ..settings(folder.path(), elastic()) });
        scenario.world.check();
        if !was_killed {
            break;
        }
        killed += 1;
    }
    assert_eq!(scenario.acknowledged.len(), 3);
    let (store, recovered) = Store::open(folder.path()).unwrap();
    assert!(recovered.live_jobs.is_empty() && recovered.replicas.is_empty() && recovered.groups.is_empty());
    let reader = store.reader().unwrap();
    for &job in &scenario.acknowledged {
        let ended = reader.job(job).unwrap().unwrap().ended.unwrap();
        let (state, retries) = (ended.summary.state, ended.summary.usage.retries);
        assert_eq!((state, retries), (JobState::Succeeded, 0), "{job}, kills {kills:?}");
    }
    assert!(scenario.world.running().is_empty());
    killed
}

#[test]
fn a_scheduler_that_is_killed_once_anywhere_loses_nothing_and_starts_nothing_twice() {
    let killed: usize = (0..75).map(|point| survive(&[point])).sum();
    // How many points there are depends on what shares a commit.
    assert!(killed >= 30, "only {killed} of the points were reached");
}

#[test]
fn a_scheduler_that_is_killed_again_and_again_loses_nothing_and_starts_nothing_twice() {
    for step in [1, 2, 3, 5, 8] {
        let kills: Vec<u64> = (0..30).map(|life| 1 + (life * step) % 11).collect();
        let killed = survive(&kills);
        assert!(killed >= 5, "killed {killed} times");
    }
}

#[test]
fn a_job_whose_record_is_damaged_is_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[]);
    let killed = ServerSettings { halt_after: Some(1), ..settings(folder.path(), PolicySettings::Fifo) };
    let server = world.serve(killed);
    assert_eq!(server.handle().submit(request("resnet", 1)).wait(), Err(Refused::Away));
    assert!(matches!(server.join(), Err(ServerError::Halted)));
    let database = rusqlite::Connection::open(folder.path().join("pollux.db")).unwrap();
    let damaged = database.execute("UPDATE journal SET record = substr(record, 1, 20)", []).unwrap();
    assert_eq!(damaged, 1);
    drop(database);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    assert_eq!(phase(server.handle(), JobId(1)).as_deref(), Some("queued"));
    assert_eq!(server.damaged(), Some(1));
    server.handle().shut_down().wait().unwrap();
    server.join().unwrap();
    let (store, _) = Store::open(folder.path()).unwrap();
    let history = store.reader().unwrap().history(0, None, 100).unwrap();
    assert!(history.iter().any(|entry| entry.event == Ok(HistoryEvent::Damaged { record: 1 })), "{history:?}");
    drop(store);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    assert_eq!(phase(server.handle(), JobId(1)).as_deref(), Some("queued"), "it has a record again");
}
