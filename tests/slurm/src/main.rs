//! `make demo-slurm`: the same trainings twice on a real Slurm of four nodes, which somebody else uses, too. Once under Pollux,
//! whose allocations come and go and whose trainings follow them, and once as Slurm jobs of a fixed size.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pollux_job::{JobSpec, Phase, Work};
use pollux_slurm_bed::{Bed, Site, ports, program};

const NODES: u16 = 4;
/// Nodes of each training of a fixed size: two of them fit at once.
const FIXED_NODES: u16 = 2;
const LOOKS: Duration = Duration::from_millis(500);
/// Longest that one of the two runs may take.
const PATIENCE: Duration = Duration::from_secs(900);

struct Training {
    name: &'static str,
    arrival_s: u32,
    /// How its steps scale.
    pace: &'static str,
    epochs: u32,
}

const fn training(name: &'static str, arrival_s: u32, pace: &'static str, epochs: u32) -> Training {
    Training { name, arrival_s, pace, epochs }
}

const TRAININGS: [Training; 5] = [
    training("vision", 0, "good", 14),
    training("speech", 10, "medium", 8),
    training("recommender", 25, "poor", 5),
    training("language", 60, "good", 10),
    training("probe", 90, "medium", 3),
];
/// Somebody else's job: when it comes, its nodes, and how long it runs.
const OTHER: (&str, u32, u16, u32) = ("somebody else", 40, 2, 45);

/// What became of a run.
#[derive(Default)]
struct Record {
    /// Seconds from submission to completion.
    completion_s: BTreeMap<&'static str, f64>,
    /// Nodes of each training, one look after the other, from its submission on.
    nodes: BTreeMap<&'static str, Vec<u32>>,
    /// Slurm jobs that there were.
    slurm_jobs: usize,
}

fn main() -> anyhow::Result<()> {
    writeln!(io::stderr(), "1/2 under Pollux, in allocations of 3 minutes at most")?;
    let Some(ours) = under_pollux()? else { return Ok(()) };
    writeln!(io::stderr(), "2/2 as Slurm jobs of {FIXED_NODES} nodes each")?;
    let Some(theirs) = of_fixed_size()? else { return Ok(()) };
    print(&ours, &theirs).context("cannot print")
}

/// Seconds since 1970 as Slurm prints them.
fn slurm_times(bed: &Bed) -> Vec<(String, String, f64)> {
    let mut squeue = bed.command("squeue");
    squeue.args(["-h", "--states=all", "--format=%V|%e|%T|%j"]).env("SLURM_TIME_FORMAT", "%s");
    let listed = squeue.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let job = |line: &str| {
        let fields: Vec<&str> = line.splitn(4, '|').map(str::trim).collect();
        let &[submitted, ended, state, name] = &fields[..] else { return None };
        let took_s = ended.parse::<f64>().unwrap_or_default() - submitted.parse::<f64>().ok()?;
        Some((name.to_owned(), state.to_owned(), took_s))
    };
    listed.lines().filter_map(job).collect()
}

fn submit(bed: &Bed, name: &str, nodes: u16, command: &str) -> anyhow::Result<()> {
    let options = [format!("--job-name={name}"), format!("--nodes={nodes}"), format!("--wrap={command}")];
    let fixed = ["--ntasks-per-node=1", "--time=30", "--output=/dev/null"];
    let output = bed.command("sbatch").args(fixed).args(&options).output().context("sbatch")?;
    if output.status.success() { Ok(()) } else { bail!("sbatch: {}", String::from_utf8_lossy(&output.stderr)) }
}

fn submit_other(bed: &Bed) -> anyhow::Result<()> {
    let (name, _, nodes, length_s) = OTHER;
    submit(bed, name, nodes, &format!("sleep {length_s}"))
}

fn command(training: &Training) -> Vec<String> {
    let epochs = training.epochs.to_string();
    let options = ["--until", "progress", "--epochs", &epochs, "--pace", training.pace, "-q"];
    let trainer = program("pollux-trainer").to_string_lossy().into_owned();
    [trainer].into_iter().chain(options.map(str::to_owned)).collect()
}

/// Lets things arrive when they are due, until everything is done.
fn play(
    bed: &Bed,
    mut arrive: impl FnMut(&'static Training) -> anyhow::Result<()>,
    mut look: impl FnMut(&mut Record) -> anyhow::Result<bool>,
) -> anyhow::Result<Record> {
    let (begun, mut record) = (Instant::now(), Record::default());
    let (mut coming, mut is_other_due) = (TRAININGS.iter().peekable(), true);
    loop {
        let is_due = |at_s: u32| begun.elapsed() >= Duration::from_secs(at_s.into());
        while let Some(training) = coming.next_if(|training| is_due(training.arrival_s)) {
            arrive(training)?;
        }
        if is_other_due && is_due(OTHER.1) {
            submit_other(bed)?;
            is_other_due = false;
        }
        let is_done = look(&mut record)?;
        let other = slurm_times(bed).into_iter().find(|(name, state, _)| name == OTHER.0 && state == "COMPLETED");
        if let Some((_, _, took_s)) = &other {
            record.completion_s.insert(OTHER.0, *took_s);
        }
        if is_done && coming.peek().is_none() && other.is_some() {
            record.slurm_jobs = bed.jobs().len() - 1;
            return Ok(record);
        }
        if begun.elapsed() > PATIENCE {
            bail!("not done within {} s: {:?}", PATIENCE.as_secs(), bed.jobs());
        }
        std::thread::sleep(LOOKS);
    }
}

fn under_pollux() -> anyhow::Result<Option<Record>> {
    let Some(site) = Site::start(NODES) else { return Ok(None) };
    site.alloc_well(
        "add slurm main --time-limit 3m --slots 1 --backlog 4 --max-nodes 4 --idle-timeout 10s --drain-before 1m -- -p debug",
    );
    let (client, mut jobs) = (site.client()?, Vec::new());
    let submitted = std::cell::RefCell::new(Vec::new());
    let arrive = |training: &'static Training| {
        let spec = JobSpec {
            command: command(training),
            working_dir: site.bed.folder().to_owned(),
            replicas_max: Some(u32::from(NODES)),
            work: Some(Work::Epochs(training.epochs)),
            ..JobSpec::new(training.name, 1)
        };
        submitted.borrow_mut().push((training.name, client.submit(&spec)?.id));
        Ok(())
    };
    let look = |record: &mut Record| {
        jobs.append(&mut submitted.borrow_mut());
        for &(name, id) in &jobs {
            let job = client.job(id)?.job;
            match job.ended_ms {
                Some(_) if job.phase != Phase::Succeeded => bail!("{name} has {}", job.phase),
                Some(ended_ms) => {
                    let took_ms = ended_ms.saturating_sub(job.submitted_ms);
                    record.completion_s.insert(name, Duration::from_millis(took_ms).as_secs_f64());
                }
                None => record.nodes.entry(name).or_default().push(job.replicas),
            }
        }
        Ok(jobs.iter().all(|(name, _)| record.completion_s.contains_key(name)))
    };
    play(&site.bed, arrive, look).map(Some)
}

fn of_fixed_size() -> anyhow::Result<Option<Record>> {
    let Some(bed) = Bed::start(NODES) else { return Ok(None) };
    let submitted = std::cell::RefCell::new(Vec::new());
    let arrive = |training: &'static Training| {
        // Each node runs a rank, and all know where the first one listens.
        let rank = format!(
            "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS MASTER_ADDR=127.0.0.1 MASTER_PORT={} exec {} --fixed-batch",
            ports(1),
            command(training).join(" ")
        );
        submit(&bed, training.name, FIXED_NODES, &format!("srun --overlap sh -c '{rank}'"))?;
        submitted.borrow_mut().push(training.name);
        Ok(())
    };
    let look = |record: &mut Record| {
        let listed = slurm_times(&bed);
        for &name in submitted.borrow().iter() {
            let Some((_, state, took_s)) = listed.iter().find(|(listed, ..)| listed == name) else { continue };
            match state.as_str() {
                "COMPLETED" => drop(record.completion_s.insert(name, *took_s)),
                "PENDING" => record.nodes.entry(name).or_default().push(0),
                "RUNNING" | "CONFIGURING" | "COMPLETING" => {
                    record.nodes.entry(name).or_default().push(u32::from(FIXED_NODES));
                }
                _ => bail!("{name} has ended as {state}"),
            }
        }
        Ok(submitted.borrow().iter().all(|name| record.completion_s.contains_key(name)))
    };
    play(&bed, arrive, look).map(Some)
}

/// The numbers that a training had one after the other.
fn course(nodes: Option<&Vec<u32>>) -> String {
    let mut seen: Vec<u32> = nodes.cloned().unwrap_or_default();
    seen.dedup();
    seen.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

fn print(ours: &Record, theirs: &Record) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "\n{:<14} {:>8} {:>8} {:>6}   nodes under Pollux", "", "Pollux", "fixed", "ratio")?;
    let names: Vec<&str> = TRAININGS.iter().map(|training| training.name).collect();
    let seconds = |record: &Record, name: &str| record.completion_s.get(name).copied().unwrap_or(f64::NAN);
    for name in names.iter().copied().chain([OTHER.0]) {
        let (mine, fixed) = (seconds(ours, name), seconds(theirs, name));
        let nodes = course(ours.nodes.get(name));
        writeln!(out, "{name:<14} {mine:>6.0} s {fixed:>6.0} s {:>6.2}   {nodes}", mine / fixed)?;
    }
    let mean = |record: &Record| names.iter().map(|name| seconds(record, name)).sum::<f64>() / names.len() as f64;
    let (mine, fixed) = (mean(ours), mean(theirs));
    writeln!(out, "{:<14} {mine:>6.0} s {fixed:>6.0} s {:>6.2}", "trainings", mine / fixed)?;
    writeln!(out, "\nSlurm jobs: {} allocations under Pollux, {} of a fixed size", ours.slurm_jobs, theirs.slurm_jobs)?;
    writeln!(
        out,
        "fixed: {FIXED_NODES} nodes for each training, the batch its user chose. Times are from submission to completion."
    )
}
