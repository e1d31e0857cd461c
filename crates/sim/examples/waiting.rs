//! The table behind the choice of the default policy in docs/policies.md: completion and waiting at several loads, with and
//! without declared work, with and without gangs.

use pollux_job::{Flexibility, JobSpec, Work};
use pollux_policy::{PolicySettings, Timestamp};
use pollux_sim::{
    ApplicationSet, ClusterSpec, GeneratorSettings, Script, ScriptedJob, SimulationSettings, Workload, generate, play,
    simulate,
};

const SEEDS: u64 = 5;
/// Jobs at load 1 on eight GPUs, as 160 are on 64.
const JOBS: f64 = 20.0;
/// One job in so many is a gang.
const GANGS: usize = 5;

#[derive(Default)]
struct Row {
    completion_s: f64,
    rho_max: f64,
    wait_max_s: f64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let applications = ApplicationSet::parametric();
    println!(
        "2x4 GPUs, {JOBS} jobs at load 1, {SEEDS} seeds; minutes on average, largest rho, longest wait in minutes"
    );
    for (heading, declared, gangs) in [
        ("declared", true, false),
        ("undeclared", false, false),
        ("undeclared, a fifth of the jobs gangs", false, true),
    ] {
        println!("\n{heading}");
        for load in [0.5, 1.0, 1.5, 2.0, 3.0] {
            for policy in ["pollux", "castor", "tiresias", "fifo"] {
                let mut row = Row::default();
                for seed in 0..SEEDS {
                    let jobs = (JOBS * load) as u32;
                    let wanted =
                        GeneratorSettings { jobs, seed, requested_replicas_max: 8, ..GeneratorSettings::default() };
                    let workload = generate(&wanted, &applications)?;
                    let cluster: ClusterSpec = "2x4".parse()?;
                    let settings = SimulationSettings {
                        declare_epochs: declared,
                        ..SimulationSettings::new(PolicySettings::named(policy)?, cluster)
                    };
                    if gangs {
                        row.add_script(&settings, &applications, &workload)?;
                    } else {
                        row.add_workload(&settings, &applications, &workload)?;
                    }
                }
                let completion = row.completion_s / 60.0 / SEEDS as f64;
                let rho = if gangs { "-".to_owned() } else { format!("{:.1}", row.rho_max) };
                println!("{load:>4} {policy:<10} {completion:>8.1} {rho:>8} {:>8.0}", row.wait_max_s / 60.0);
            }
        }
    }
    Ok(())
}

impl Row {
    fn add_workload(
        &mut self,
        settings: &SimulationSettings,
        applications: &ApplicationSet,
        workload: &Workload,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let outcome = simulate(settings, applications, workload, &mut |_| ())?;
        self.completion_s += outcome.summary().avg_jct_s;
        for job in &outcome.jobs {
            self.rho_max = self.rho_max.max(job.rho);
            self.wait_max_s = self.wait_max_s.max(job.started_s - job.submitted_s);
        }
        Ok(())
    }

    /// The same jobs, some of them as gangs of what they ask for.
    fn add_script(
        &mut self,
        settings: &SimulationSettings,
        applications: &ApplicationSet,
        workload: &Workload,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let adapts = settings.policy.adapts_batches();
        let jobs = workload.jobs().iter().enumerate().map(|(idx, job)| {
            let is_gang = idx % GANGS == GANGS - 1;
            let spec = JobSpec {
                replicas: if adapts && !is_gang { 1 } else { job.requested_replicas },
                flexibility: if is_gang { Flexibility::Rigid } else { Flexibility::Elastic },
                batch_size: Some(job.requested_batch),
                work: settings.declare_epochs.then(|| Work::Epochs(applications.get(job.application).epochs())),
                ..JobSpec::new(&job.name, job.requested_replicas)
            };
            let submitted = Timestamp(job.submitted_s * 1000);
            ScriptedJob { submitted, spec, application: job.application, fails_after_s: None }
        });
        let script = Script { settings: settings.clone(), jobs: jobs.collect(), lines: Vec::new() };
        let outcome = play(&script, applications, Timestamp(u64::MAX))?;
        let lives = script.jobs.iter().zip(&outcome.jobs);
        let completions: Vec<f64> =
            lives.clone().filter_map(|(job, life)| Some(life.ended?.since_s(job.submitted))).collect();
        self.completion_s += completions.iter().sum::<f64>() / completions.len() as f64;
        for (job, life) in lives {
            let waited_s = life.started.map_or(f64::INFINITY, |started| started.since_s(job.submitted));
            self.wait_max_s = self.wait_max_s.max(waited_s);
        }
        Ok(())
    }
}
