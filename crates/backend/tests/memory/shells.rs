use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use pollux_backend::memory::{MemoryCluster, Programs, StartFailure};
use pollux_backend::{Exit, ReplicaId, ReplicaOrder, SavedCheckpoints};
use pollux_policy::JobId;
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Programs as children of this process.
pub(crate) struct Shells {
    folder: PathBuf,
    /// Groups of processes that run.
    groups: Arc<Groups>,
}

#[derive(Default)]
struct Groups {
    running: Mutex<BTreeMap<ReplicaId, Pid>>,
    fewer: Condvar,
}

impl Groups {
    fn signal(&self, replica: ReplicaId, signal: Signal) {
        // A number is not used again as long as it is in the table: its process is waited for after it was removed.
        if let Some(group) = self.running.lock().unwrap().get(&replica) {
            match kill_process_group(*group, signal) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => panic!("{replica}: {error}"),
            }
        }
    }
}

impl Shells {
    pub(crate) fn new(test: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("memory").join(test);
        if folder.exists() {
            fs::remove_dir_all(&folder).unwrap();
        }
        fs::create_dir_all(&folder).unwrap();
        Self { folder, groups: Arc::default() }
    }

    fn checkpoints(&self, job: JobId) -> PathBuf {
        self.folder.join(job.0.to_string())
    }
}

impl Programs for Shells {
    fn start(&self, cluster: &MemoryCluster, order: &ReplicaOrder) -> Result<(), StartFailure> {
        fs::create_dir_all(&order.checkpoint_dir).unwrap();
        let mut command = Command::new(&order.command[0]);
        command.args(&order.command[1..]).current_dir(&order.working_dir);
        command.envs(&order.environment).envs(&order.secrets).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| StartFailure {
            reason: format!("program {}: {error}", order.command[0]),
            retryable: error.kind() != ErrorKind::NotFound,
        })?;
        self.groups.running.lock().unwrap().insert(order.replica, Pid::from_child(&child));
        let (cluster, groups, replica) = (cluster.clone(), Arc::clone(&self.groups), order.replica);
        thread::spawn(move || watch(&cluster, &groups, replica, child));
        Ok(())
    }

    fn stop(&self, _cluster: &MemoryCluster, replica: ReplicaId, grace: Duration) {
        self.groups.signal(replica, Signal::TERM);
        let groups = Arc::clone(&self.groups);
        thread::spawn(move || {
            let running = groups.running.lock().unwrap();
            drop(groups.fewer.wait_timeout_while(running, grace, |running| running.contains_key(&replica)).unwrap());
            groups.signal(replica, Signal::KILL);
        });
    }

    fn kill(&self, replica: ReplicaId) {
        self.groups.signal(replica, Signal::KILL);
        let running = self.groups.running.lock().unwrap();
        drop(self.groups.fewer.wait_while(running, |running| running.contains_key(&replica)).unwrap());
    }

    fn location(&self, job: JobId) -> String {
        self.checkpoints(job).to_string_lossy().into_owned()
    }

    fn saved(&self) -> Vec<SavedCheckpoints> {
        let jobs = fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap());
        let saved = jobs.map(|entry| {
            let files = fs::read_dir(entry.path()).unwrap().map(|file| file.unwrap().metadata().unwrap());
            let (bytes, written) = files.fold((0, SystemTime::UNIX_EPOCH), |(bytes, written), file| {
                (bytes + file.len(), written.max(file.modified().unwrap()))
            });
            SavedCheckpoints { job: JobId(entry.file_name().to_str().unwrap().parse().unwrap()), bytes, written }
        });
        saved.collect()
    }

    fn delete(&self, job: JobId) -> u64 {
        let Some(saved) = self.saved().into_iter().find(|saved| saved.job == job) else { return 0 };
        fs::remove_dir_all(self.checkpoints(job)).unwrap();
        saved.bytes
    }
}

/// Passes on what a program writes and how it ends; nothing of it is left by then.
fn watch(cluster: &MemoryCluster, groups: &Groups, replica: ReplicaId, mut child: Child) {
    let pipes: [Box<dyn Read + Send>; 2] =
        [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
    let readers = pipes.map(|mut pipe| {
        let cluster = cluster.clone();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                match pipe.read(&mut buffer).unwrap() {
                    0 => return,
                    bytes => cluster.write_log(replica, &buffer[..bytes]),
                }
            }
        })
    });
    // Its number is its own until it is waited for in earnest.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    retry_on_intr(|| waitid(WaitId::Pid(Pid::from_child(&child)), ended)).unwrap();
    groups.signal(replica, Signal::KILL);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    groups.running.lock().unwrap().remove(&replica);
    groups.fewer.notify_all();
    let status = child.wait().unwrap();
    let exit = status.code().map(Exit::Code).or(status.signal().map(Exit::Signal)).unwrap_or(Exit::Lost);
    cluster.exit(replica, exit);
}
