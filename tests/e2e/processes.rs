//! Workers, as the system sees them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// A process of a replica.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorkerProcess {
    pub(crate) pid: i32,
    pub(crate) replica: u64,
    pub(crate) job: u64,
    /// In the group that it was started for.
    pub(crate) rank: u32,
    /// The address of its machine.
    pub(crate) host: String,
    pub(crate) slot: u32,
}

/// Everything that runs for replicas of state folders below this one, shims left out.
pub(crate) fn workers(state: &Path) -> Vec<WorkerProcess> {
    let state = &state.canonicalize().unwrap_or_else(|_| state.to_owned());
    let mut found: Vec<WorkerProcess> = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            worker(pid, state)
        })
        .collect();
    found.sort();
    found
}

fn worker(pid: i32, state: &Path) -> Option<WorkerProcess> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let variables: BTreeMap<&str, &str> = environment
        .split(|&byte| byte == 0)
        .filter_map(|variable| std::str::from_utf8(variable).ok()?.split_once('='))
        .collect();
    let is_ours = Path::new(variables.get("POLLUX_CHECKPOINT_DIR")?).starts_with(state);
    let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    // Between its end and its funeral a process has no command line any more.
    let is_shim = command.split('\0').nth(1) == Some("shim");
    let number = |name| variables.get(name)?.parse::<u64>().ok();
    (is_ours && !is_shim && !command.is_empty()).then_some(WorkerProcess {
        pid,
        replica: number("POLLUX_REPLICA_ID")?,
        job: number("POLLUX_JOB_ID")?,
        rank: number("RANK")?.try_into().ok()?,
        host: (*variables.get("POLLUX_HOST_ADDRESS")?).to_owned(),
        slot: number("POLLUX_SLOT")?.try_into().ok()?,
    })
}

/// Ends what a test that went wrong has left.
pub(crate) fn end_workers(state: &Path) {
    for worker in workers(state) {
        if let Some(pid) = Pid::from_raw(worker.pid) {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
