use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pollux_policy::PolicySettings;
use pollux_server::{CopyError, JournalCopy, ServerSettings};
use pollux_store::{Batch, Store};

use crate::world::{World, eventually, phase, request, settings};

/// A copy that outlives the disk, and may be out of reach.
#[derive(Debug, Default)]
struct Elsewhere {
    database: Mutex<Option<Vec<u8>>>,
    lines: Mutex<Vec<String>>,
    is_away: AtomicBool,
    refusals: AtomicBool,
}

impl Elsewhere {
    fn reached(&self) -> Result<(), CopyError> {
        if self.is_away.load(Ordering::Acquire) {
            self.refusals.store(true, Ordering::Release);
            return Err(CopyError::Unavailable("away".to_owned()));
        }
        Ok(())
    }
}

impl JournalCopy for Elsewhere {
    fn append(&self, lines: &[String]) -> Result<(), CopyError> {
        self.reached()?;
        self.lines.lock().unwrap().extend_from_slice(lines);
        Ok(())
    }

    fn replace(&self, database: &Path) -> Result<(), CopyError> {
        self.reached()?;
        *self.database.lock().unwrap() = Some(fs::read(database).unwrap());
        self.lines.lock().unwrap().clear();
        Ok(())
    }
}

#[test]
fn a_scheduler_that_lost_its_disk_goes_on_from_the_copy_and_starts_nothing_twice() {
    let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let world = World::new(&[("a", 2)]);
    let elsewhere = Arc::new(Elsewhere::default());
    let copied = |folder: &Path| ServerSettings {
        journal_copy: Some(Arc::clone(&elsewhere) as Arc<dyn JournalCopy>),
        ..settings(folder, PolicySettings::Fifo)
    };
    let server = world.serve(copied(first.path()));
    let handle = server.handle();
    let early = handle.submit(request("early", 1)).wait().unwrap();
    eventually("the launch", || (!world.running_for(early).is_empty()).then_some(()));

    elsewhere.is_away.store(true, Ordering::Release);
    let late = handle.submit(request("late", 1)).wait().unwrap();
    eventually("a copy that fails", || elsewhere.refusals.load(Ordering::Acquire).then_some(()));
    assert!(world.running_for(late).is_empty(), "what is not copied is not done");
    elsewhere.is_away.store(false, Ordering::Release);
    eventually("the launch of the other", || (!world.running_for(late).is_empty()).then_some(()));
    handle.shut_down().wait().unwrap();
    server.join().unwrap();

    let before: Vec<u64> = world.running().iter().map(|order| order.replica.0).collect();
    let since: Vec<Batch> =
        elsewhere.lines.lock().unwrap().iter().map(|line| Batch::from_text(line).unwrap()).collect();
    let epoch = Store::open(first.path()).unwrap().0.epoch();
    Store::rebuild(second.path(), elsewhere.database.lock().unwrap().as_deref(), &since, epoch).unwrap();
    let server = world.serve(copied(second.path()));
    let handle = server.handle();
    for job in [early, late] {
        eventually("the job of before", || phase(handle, job));
    }
    let third = handle.submit(request("third", 1)).wait().unwrap();
    assert!(third > late, "no number is given twice");
    let after: Vec<u64> = world.running().iter().map(|order| order.replica.0).collect();
    assert_eq!(after, before);
    handle.shut_down().wait().unwrap();
    server.join().unwrap();
    world.check();
}
