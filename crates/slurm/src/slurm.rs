//! The commands of Slurm.

use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pollux_api::AllocationQueueSpec;
use rustix::process::geteuid;

use crate::listing::{self, FORMAT, Listed};
use crate::process::{CommandError, Limits, one_line, run};

/// Longest that `sbatch` may take. It ends then by itself, also where the scheduler is gone.
pub(crate) const SBATCH_MAX: Duration = Duration::from_secs(60);
const LOOK: Limits = Limits { time: Duration::from_secs(30), bytes: 32 << 20 };
/// Somebody may wait for it, who waits no longer than 30 s.
const ORDER: Limits = Limits { time: Duration::from_secs(25), bytes: 64 << 10 };
/// Jobs that are cancelled by one command.
const CANCELLED_MAX: usize = 200;

/// What `sbatch --test-only` says of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rehearsal {
    /// Whether it would be taken.
    pub is_accepted: bool,
    /// What was said.
    pub said: String,
    /// The whole command, as it would be called.
    pub command: Vec<String>,
}

/// One allocation, as `sbatch` is told.
#[derive(Clone, Debug)]
pub(crate) struct Order<'a> {
    pub(crate) name: &'a str,
    pub(crate) spec: &'a AllocationQueueSpec,
    /// Where it prints to.
    pub(crate) output: &'a Path,
    /// The command line of its batch.
    pub(crate) batch: &'a str,
}

impl Order<'_> {
    fn arguments(&self) -> Vec<String> {
        let AllocationQueueSpec { time_limit_s, nodes_per_alloc, sbatch, .. } = self.spec;
        let (hours, minutes, seconds) = (time_limit_s / 3_600, time_limit_s / 60 % 60, time_limit_s % 60);
        let mut arguments = vec![
            "--parsable".to_owned(),
            format!("--job-name={}", self.name),
            format!("--nodes={nodes_per_alloc}"),
            "--ntasks-per-node=1".to_owned(),
            format!("--time={hours}:{minutes:02}:{seconds:02}"),
            "--no-requeue".to_owned(),
            format!("--output={}", self.output.display()),
        ];
        arguments.extend(sbatch.iter().cloned());
        arguments.push(format!("--wrap={}", self.batch));
        arguments
    }
}

/// A command without what the scheduler's own environment would tell it: a scheduler may itself run in an allocation.
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let is_ours = ["SBATCH_", "SQUEUE_", "SCANCEL_", "POLLUX_"].iter().any(|start| text.starts_with(start));
        let is_of_a_job = text.starts_with("SLURM_") && text != "SLURM_CONF" && text != "SLURM_JWT";
        if is_ours || is_of_a_job {
            command.env_remove(&name);
        }
    }
    command.env("SLURM_TIME_FORMAT", "%s");
    command
}

/// Asks for an allocation; its number in Slurm.
pub(crate) fn submit(order: &Order<'_>) -> Result<u64, CommandError> {
    let mut sbatch = command("timeout");
    sbatch.args(["--signal=KILL", &SBATCH_MAX.as_secs().to_string(), "sbatch"]).args(order.arguments());
    // It is meant for what is submitted, too.
    sbatch.env_remove("SLURM_TIME_FORMAT");
    let limits = Limits { time: SBATCH_MAX + Duration::from_secs(5), ..ORDER };
    let printed = run("sbatch", &mut sbatch, limits)?;
    let job = printed.stdout.trim().split(';').next().unwrap_or_default().parse().ok();
    job.ok_or_else(|| CommandError::Nonsense {
        program: "sbatch".to_owned(),
        printed: one_line(&printed.stdout),
        expected: "the number of a job",
    })
}

/// What would become of an allocation.
pub(crate) fn rehearse(order: &Order<'_>) -> Result<Rehearsal, CommandError> {
    let mut arguments = vec!["--test-only".to_owned()];
    arguments.extend(order.arguments());
    let outcome = run("sbatch", command("sbatch").env_remove("SLURM_TIME_FORMAT").args(&arguments), ORDER);
    arguments.insert(0, "sbatch".to_owned());
    let (is_accepted, said) = match outcome {
        Ok(printed) => (true, one_line(&format!("{}\n{}", printed.stderr, printed.stdout))),
        Err(CommandError::Refused { said, .. }) => (false, said),
        Err(error) => return Err(error),
    };
    Ok(Rehearsal { is_accepted, said, command: arguments })
}

/// This user's jobs whose names begin so, those that have ended lately included.
pub(crate) fn list(prefix: &str) -> Result<Vec<Listed>, CommandError> {
    let user = geteuid().as_raw().to_string();
    let mut squeue = command("squeue");
    squeue.args(["--noheader", "--states=all", &format!("--user={user}"), &format!("--format={FORMAT}")]);
    listing::parse(&run("squeue", &mut squeue, LOOK)?, prefix)
}

/// Ends jobs; those that have ended already are no failure.
pub(crate) fn cancel(jobs: &[u64]) -> Result<(), CommandError> {
    for some in jobs.chunks(CANCELLED_MAX) {
        run("scancel", command("scancel").arg("--quiet").args(some.iter().map(u64::to_string)), ORDER)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::spec;

    #[test]
    fn sbatch_is_told_ours_first_and_the_batch_last() {
        let order = Order {
            name: "pollux-ab-a100-1",
            spec: &AllocationQueueSpec { time_limit_s: 90_061, nodes_per_alloc: 2, max_nodes: None, ..spec("a100") },
            output: Path::new("/shared/slurm/out"),
            batch: "exec sh '/shared/slurm/script'",
        };
        assert_eq!(
            order.arguments(),
            [
                "--parsable",
                "--job-name=pollux-ab-a100-1",
                "--nodes=2",
                "--ntasks-per-node=1",
                "--time=25:01:01",
                "--no-requeue",
                "--output=/shared/slurm/out",
                "--gres=gpu:4",
                "--wrap=exec sh '/shared/slurm/script'"
            ]
        );
    }
}
