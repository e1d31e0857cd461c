use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pollux_api::Job;
use pollux_client::{Client, Connection, EventQuery, JobAction, JobQuery};
use rustix::process::{Pid, Signal, kill_process};

use super::DemoError;
use super::scenario::{DemoJob, LAYOUT, Sharing};

const START_MAX: Duration = Duration::from_secs(30);
const END_MAX: Duration = Duration::from_secs(15);

/// A scheduler of the demo's own, and everything below it. All of it ends with this.
pub(super) struct DemoCluster {
    _daemon: Daemon,
    client: Client,
    sharing: Sharing,
    folder: PathBuf,
    trainer: PathBuf,
}

impl DemoCluster {
    /// Starts a scheduler and waits until it answers.
    pub(super) fn start(folder: &Path, sharing: Sharing, trainer: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(folder)?;
        let (state, talk) = (folder.join("state"), folder.join("daemon.log"));
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("up").arg("--state").arg(&state);
        command.args(["--listen", "127.0.0.1:0", "--nodes", LAYOUT, "--policy", sharing.policy()]);
        command.args(["--round-interval", "5", "--grace", "10"]);
        // A group of its own: Ctrl-C is for the demo, which ends the jobs first.
        let daemon = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&talk)?);
        let mut daemon = Daemon(daemon.spawn()?);
        let deadline = Instant::now() + START_MAX;
        loop {
            let client = Connection::find(None, None, &state).and_then(|connection| Client::new(&connection));
            if let Ok(client) = client
                && client.cluster().is_ok()
            {
                return Ok(Self {
                    _daemon: daemon,
                    client,
                    sharing,
                    folder: folder.to_owned(),
                    trainer: trainer.to_owned(),
                });
            }
            if daemon.0.try_wait()?.is_some() || Instant::now() > deadline {
                let talk = fs::read_to_string(&talk).unwrap_or_default();
                let talk = talk.lines().last().unwrap_or("it said nothing").to_owned();
                return Err(DemoError::NotStarted { talk }.into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn submit(&self, job: &DemoJob) -> anyhow::Result<()> {
        self.client.submit(&job.request(self.sharing, &self.trainer, &self.folder))?;
        Ok(())
    }

    /// Every job, in order of submission.
    pub(super) fn jobs(&self) -> anyhow::Result<Vec<Job>> {
        let mut jobs = self.client.jobs_up_to(1_000, JobQuery::default())?.jobs;
        jobs.sort_by_key(|job| job.id);
        Ok(jobs)
    }

    /// Seconds that trainings stood still for each change of their groups.
    pub(super) fn pauses_s(&self) -> anyhow::Result<Vec<f64>> {
        let query = EventQuery { after: 0, job: None, limit: Some(1_000) };
        let events = self.client.events(query)?.events;
        Ok(events.iter().filter_map(|event| event.detail.get("pause_s")?.as_f64()).collect())
    }
}

/// Ends what still runs, then the scheduler.
impl Drop for DemoCluster {
    fn drop(&mut self) {
        let deadline = Instant::now() + END_MAX;
        // A scheduler that does not answer cannot be asked to end its trainings, which then go on to their ends.
        while let Ok(jobs) = self.jobs() {
            let live: Vec<u64> = jobs.iter().filter(|job| job.ended_ms.is_none()).map(|job| job.id).collect();
            if live.is_empty() || Instant::now() > deadline {
                break;
            }
            for id in live {
                let _ = self.client.act(id, JobAction::Cancel);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended, and then there is nothing to do.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}
