use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use pollux_policy::JobId;

use crate::{Backend, Exit, Observation, Observer, ReplicaId, ReplicaOrder};

/// What a backend on a busy machine, or far away, may take for anything.
const DEADLINE: Duration = Duration::from_secs(60);

/// Files and logs are looked at this often.
const LOOK: Duration = Duration::from_millis(5);

/// A backend under test, and all that it has observed.
pub struct Trial {
    open: Box<dyn Fn(Observer) -> Box<dyn Backend>>,
    backend: Option<Box<dyn Backend>>,
    heard: Arc<Heard>,
    replicas: u64,
    /// Where each replica was last seen to write.
    files: BTreeMap<ReplicaId, Vec<PathBuf>>,
    /// A file that scripts wait for, by the variable `GO`.
    go: PathBuf,
}

#[derive(Default)]
struct Heard {
    observations: Mutex<Vec<Observation>>,
    more: Condvar,
}

impl Heard {
    fn lock(&self) -> MutexGuard<'_, Vec<Observation>> {
        self.observations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trial {
    /// Tries the backend that `open` makes; called again it makes one on the same state.
    pub fn new(open: impl Fn(Observer) -> Box<dyn Backend> + 'static) -> Self {
        static TRIALS: Mutex<u32> = Mutex::new(0);
        let mut trials = TRIALS.lock().unwrap_or_else(PoisonError::into_inner);
        *trials += 1;
        let go = env::temp_dir().join(format!("pollux-conformance-{}-{trials}", process::id()));
        let mut trial = Self {
            open: Box::new(open),
            backend: None,
            heard: Arc::new(Heard::default()),
            replicas: 0,
            files: BTreeMap::new(),
            go,
        };
        trial.restart();
        trial.backend().adopt(&[]);
        trial
    }

    /// The backend.
    pub fn backend(&mut self) -> &mut dyn Backend {
        &mut **self.backend.as_mut().expect("it was not asked for while dead")
    }

    /// Lets the backend die; what runs is not stopped.
    pub fn die(&mut self) {
        self.backend = None;
    }

    /// Lets the backend die and makes it again, with nothing heard.
    pub fn restart(&mut self) {
        self.die();
        self.unhear();
        let heard = Arc::clone(&self.heard);
        self.backend = Some((self.open)(Box::new(move |observation| {
            heard.lock().push(observation);
            heard.more.notify_all();
        })));
    }

    /// The first node that comes up.
    pub fn node(&mut self) -> String {
        self.wait_for(|heard| match heard {
            Observation::NodeUp { node, gpus: 1.., .. } => Some(node.clone()),
            // Whatever else was observed says nothing of it.
            _ => None,
        })
    }

    /// An order to run a shell script.
    pub fn order(&mut self, script: &str) -> ReplicaOrder {
        self.replicas += 1;
        let go = self.go.to_string_lossy().into_owned();
        ReplicaOrder {
            replica: ReplicaId(self.replicas),
            job: JobId(1),
            node: self.node(),
            gpus: 1,
            shares_with: None,
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            working_dir: env::temp_dir(),
            environment: BTreeMap::from([("GO".to_owned(), go)]),
            secrets: BTreeMap::new(),
        }
    }

    /// Starts a shell script.
    pub fn start(&mut self, script: &str) -> ReplicaId {
        let order = self.order(script);
        self.backend().start(&order);
        order.replica
    }

    /// Starts a worker that ignores SIGTERM, and waits until it does.
    pub fn start_deaf(&mut self) -> ReplicaId {
        let replica = self.start("trap '' TERM; echo deaf; while :; do sleep 0.02; done");
        self.wait_for_log(replica, "deaf");
        replica
    }

    /// Lets scripts that wait for the file `$GO` go on.
    pub fn go(&self) {
        fs::write(&self.go, "").expect("the folder for temporary files can be written to");
    }

    /// How a replica ends.
    pub fn exit_of(&mut self, of: ReplicaId) -> Exit {
        self.wait_for(|heard| match heard {
            Observation::Exited { replica, exit } if *replica == of => Some(*exit),
            // Whatever else was observed says nothing of it.
            _ => None,
        })
    }

    /// A replica dies of SIGKILL.
    pub fn assert_killed(&mut self, replica: ReplicaId) {
        let exit = self.exit_of(replica);
        assert!([Exit::Signal(9), Exit::Code(137)].contains(&exit), "{exit}");
    }

    /// Why a replica does not start, and whether another attempt makes sense.
    pub fn start_failure_of(&mut self, of: ReplicaId) -> (String, bool) {
        self.wait_for(|heard| match heard {
            Observation::StartFailed { replica, reason, retryable } if *replica == of => {
                Some((reason.clone(), *retryable))
            }
            // Whatever else was observed says nothing of it.
            _ => None,
        })
    }

    /// Waits until a replica's program runs.
    pub fn wait_for_start(&mut self, replica: ReplicaId) {
        self.wait_for(|heard| (heard == &Observation::Started { replica }).then_some(()));
    }

    /// Whether this was observed.
    pub fn heard(&self, observation: &Observation) -> bool {
        self.heard.lock().contains(observation)
    }

    /// Forgets what was observed, except that nodes came up.
    pub fn unhear(&mut self) {
        let restarted = self.backend.is_none();
        self.heard.lock().retain(|heard| !restarted && matches!(heard, Observation::NodeUp { .. }));
    }

    /// What is looked for in the first observation that has it, once that has come.
    pub fn wait_for<T>(&mut self, looked_for: impl Fn(&Observation) -> Option<T>) -> T {
        let deadline = Instant::now() + DEADLINE;
        let mut heard = self.heard.lock();
        loop {
            if let Some(found) = heard.iter().find_map(&looked_for) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "not observed within {DEADLINE:?}; observed were {heard:#?}");
            heard = self.heard.more.wait_timeout(heard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until a replica has written `text`; also while the backend is dead.
    pub fn wait_for_log(&mut self, replica: ReplicaId, text: &str) {
        self.wait_until(&format!("{replica} has written {text:?}"), |trial| trial.log(replica).contains(text));
    }

    /// What a replica has written; while the backend is dead, what it wrote to the files there were.
    pub fn log(&mut self, replica: ReplicaId) -> String {
        if let Some(backend) = &self.backend {
            self.files.insert(replica, backend.log_files(replica));
        }
        let files = self.files.get(&replica).into_iter().flatten();
        files.map(|file| String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned()).collect()
    }

    /// Waits until something is so.
    pub fn wait_until(&mut self, what: &str, mut so: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !so(self) {
            assert!(Instant::now() < deadline, "not so within {DEADLINE:?}: {what}");
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Trial {
    /// Nothing keeps running after a test, whether it passed or not.
    fn drop(&mut self) {
        // Most tests never wrote it.
        let _ = fs::remove_file(&self.go);
        if let Some(backend) = &mut self.backend {
            for replica in 1..=self.replicas {
                backend.stop(ReplicaId(replica), Duration::ZERO);
            }
        }
    }
}
