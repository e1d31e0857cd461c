use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, io, process, thread};

use pollux_policy::JobId;

use super::Faults;
use crate::{
    Backend, Epoch, Exit, LogChunk, LogReader, LogStart, NodeInfo, Observation, Observer, ReplicaId, ReplicaOrder,
};

/// What a backend on a busy machine, or far away, may take for anything.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// What is read of a log at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// Files and logs are looked at this often.
const LOOK: Duration = Duration::from_millis(5);

/// A backend under test, and all that it has observed.
pub struct Trial {
    open: Box<dyn Fn(Observer) -> Box<dyn Backend>>,
    backend: Option<Box<dyn Backend>>,
    heard: Arc<Heard>,
    /// What reads logs, also while the backend is dead.
    logs: Option<Arc<dyn LogReader>>,
    /// Of the scheduler that the test plays: one higher after every restart.
    epoch: Epoch,
    first_node: Option<NodeInfo>,
    faults: Option<Box<dyn Faults>>,
    replicas: u64,
    /// Files of this trial: one that scripts wait for, by the variable `GO`, and others beside it.
    folder: PathBuf,
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
        let folder = env::temp_dir().join(format!("pollux-conformance-{}-{trials}", process::id()));
        fs::create_dir_all(&folder).expect("the folder for temporary files can be written to");
        let mut trial = Self {
            open: Box::new(open),
            backend: None,
            heard: Arc::new(Heard::default()),
            logs: None,
            epoch: Epoch::default(),
            first_node: None,
            faults: None,
            replicas: 0,
            folder,
        };
        trial.restart();
        trial.adopt(&[]);
        trial
    }

    /// Checks what becomes of faults, too.
    #[must_use]
    pub fn with_faults(mut self, faults: impl Faults + 'static) -> Self {
        self.faults = Some(Box::new(faults));
        self
    }

    /// What causes faults.
    pub fn faults(&self) -> &dyn Faults {
        &**self.faults.as_ref().expect("a backend that offers no faults declines the checks that need them")
    }

    /// The epoch of the newest scheduler.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// A path of this trial's own.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Has the newest scheduler take over.
    pub fn adopt(&mut self, known: &[ReplicaId]) {
        let epoch = self.epoch;
        self.backend().adopt(epoch, known);
    }

    /// Stops a replica.
    pub fn stop(&mut self, replica: ReplicaId, grace: Duration) {
        let epoch = self.epoch;
        self.backend().stop(epoch, replica, grace);
    }

    /// Forgets a replica.
    pub fn forget(&mut self, replica: ReplicaId) {
        let epoch = self.epoch;
        self.backend().forget(epoch, replica);
    }

    /// Forgets all but some replicas.
    pub fn keep_only(&mut self, replicas: &[ReplicaId]) {
        let epoch = self.epoch;
        self.backend().keep_only(epoch, replicas);
    }

    /// The backend.
    pub fn backend(&mut self) -> &mut dyn Backend {
        &mut **self.backend.as_mut().expect("it was not asked for while dead")
    }

    /// Lets the backend die; what runs is not stopped.
    pub fn die(&mut self) {
        self.backend = None;
    }

    /// Lets the backend die and makes it again, with nothing heard, for a scheduler of the next epoch.
    pub fn restart(&mut self) {
        self.die();
        self.epoch.0 += 1;
        self.clear_observations();
        let heard = Arc::clone(&self.heard);
        self.backend = Some((self.open)(Box::new(move |observation| {
            heard.lock().push(observation);
            heard.more.notify_all();
        })));
        self.logs = self.backend.as_ref().map(|backend| backend.logs());
    }

    /// The first node that ever came up.
    pub fn node_info(&mut self) -> NodeInfo {
        if self.first_node.is_none() {
            self.first_node = Some(self.wait_for(|heard| match heard {
                Observation::NodeUp(node) if node.gpus > 0 => Some(node.clone()),
                // Whatever else was observed says nothing of it.
                _ => None,
            }));
        }
        self.first_node.clone().expect("it came up")
    }

    /// Its name.
    pub fn node(&mut self) -> String {
        self.node_info().name
    }

    /// An order to run a shell script.
    pub fn order(&mut self, script: &str) -> ReplicaOrder {
        self.replicas += 1;
        let go = self.path("go").to_string_lossy().into_owned();
        let checkpoint_dir = self.backend().checkpoints().location(JobId(1));
        ReplicaOrder {
            epoch: self.epoch,
            replica: ReplicaId(self.replicas),
            job: JobId(1),
            node: self.node(),
            gpus: 1,
            cpus: None,
            memory: None,
            shares_with: None,
            bundle: Vec::new(),
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            working_dir: env::temp_dir(),
            checkpoint_dir,
            restores: true,
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
        fs::write(self.path("go"), "").expect("the folder for temporary files can be written to");
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

    /// What a replica waits for that cannot run yet.
    pub fn pending_reason_of(&mut self, of: ReplicaId) -> String {
        self.wait_for(|heard| match heard {
            Observation::Pending { replica, reason } if *replica == of => Some(reason.clone()),
            // Whatever else was observed says nothing of it.
            _ => None,
        })
    }

    /// A replica does not start for lack of something that others have, and may once they are gone.
    pub fn assert_finds_no_room(&mut self, of: ReplicaId) {
        let refused = self.wait_for(|heard| match heard {
            Observation::StartFailed { replica, retryable, .. } => (*replica == of).then_some(*retryable),
            Observation::Pending { replica, .. } => (*replica == of).then_some(true),
            Observation::Started { replica } => (*replica == of).then_some(false),
            // Whatever else was observed says nothing of it.
            _ => None,
        });
        assert!(refused, "{of} runs, or is never tried again");
    }

    /// Waits until a replica's program runs.
    pub fn wait_for_start(&mut self, replica: ReplicaId) {
        self.wait_for(|heard| (heard == &Observation::Started { replica }).then_some(()));
    }

    /// Whether this was observed.
    pub fn heard(&self, observation: &Observation) -> bool {
        self.heard.lock().contains(observation)
    }

    /// Forgets what was observed.
    pub fn clear_observations(&mut self) {
        self.heard.lock().clear();
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

    /// What is kept of what a replica has written; also while the backend is dead.
    pub fn log(&mut self, replica: ReplicaId) -> String {
        let (mut log, mut at) = (Vec::new(), 0);
        loop {
            let chunk = self.read_log(replica, LogStart::At(at), CHUNK_BYTES);
            at = chunk.next;
            log.extend_from_slice(&chunk.bytes);
            if chunk.bytes.is_empty() {
                return String::from_utf8_lossy(&log).into_owned();
            }
        }
    }

    /// A piece of what a replica has written.
    pub fn read_log(&self, replica: ReplicaId, from: LogStart, bytes_max: usize) -> LogChunk {
        let logs = self.logs.as_ref().expect("there was a backend");
        wait_for_answer(|answer| logs.read(replica, from, bytes_max, answer)).expect("the log can be read")
    }

    /// Waits in a thread until nobody has a pipe open any more.
    pub fn wait_for_end_of(&self, pipe: &Path) -> Receiver<()> {
        let (sender, closed) = mpsc::channel();
        let pipe = pipe.to_owned();
        thread::spawn(move || {
            fs::read(pipe).expect("the pipe can be read");
            #[expect(clippy::let_underscore_must_use, reason = "a test that has failed does not listen")]
            let _ = sender.send(());
        });
        closed
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
        #[expect(clippy::let_underscore_must_use, reason = "what cannot be deleted costs only its room")]
        let _ = fs::remove_dir_all(&self.folder);
        if let (Some(faults), Some(node)) = (&self.faults, &self.first_node) {
            faults.mend(&node.name);
        }
        if let Some(backend) = &mut self.backend {
            for replica in 1..=self.replicas {
                backend.stop(self.epoch, ReplicaId(replica), Duration::ZERO);
            }
        }
    }
}

/// What a call answers that does not wait.
pub(super) fn wait_for_answer<T: Send + 'static>(
    ask: impl FnOnce(Box<dyn FnOnce(io::Result<T>) + Send>),
) -> io::Result<T> {
    let (sender, answer) = mpsc::channel();
    // A test that has failed does not listen.
    ask(Box::new(move |outcome| drop(sender.send(outcome))));
    answer.recv_timeout(DEADLINE).expect("it is answered")
}
