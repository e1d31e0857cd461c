//! Threads for what may wait for a disk, so that nobody else does.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

type Work = Box<dyn FnOnce() + Send>;

/// Some threads that end when nobody can ask them for anything.
#[derive(Clone, Debug)]
pub(crate) struct DiskThreads {
    work: Sender<Work>,
}

impl DiskThreads {
    pub(crate) fn start(name: &str, threads: u32) -> io::Result<Self> {
        let (work, received) = mpsc::channel();
        let received = Arc::new(Mutex::new(received));
        for _ in 0..threads {
            let received = Arc::clone(&received);
            thread::Builder::new().name(name.to_owned()).spawn(move || run(&received))?;
        }
        Ok(Self { work })
    }

    pub(crate) fn run(&self, work: impl FnOnce() + Send + 'static) {
        #[expect(clippy::let_underscore_must_use, reason = "the threads live as long as somebody can ask them")]
        let _ = self.work.send(Box::new(work));
    }
}

fn run(received: &Mutex<Receiver<Work>>) {
    loop {
        let work = received.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match work {
            Ok(work) => work(),
            Err(_) => return,
        }
    }
}
