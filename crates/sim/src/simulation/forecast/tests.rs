use pollux_engine::{Engine, EngineSettings, Event};
use pollux_job::{After, Work};
use pollux_model::GpuTypeName;
use pollux_policy::{JobId, NodeId, PolicySettings, Timestamp};

mod several_types;

use super::trainees::ForecastJob;
use super::*;
use crate::simulation::run::World;
use crate::{ApplicationName, ApplicationSet, SimulationSettings, Workload, WorkloadJob};

/// Jobs of all applications but the longest, submitted within minutes.
fn workload(jobs: usize) -> Workload {
    use ApplicationName::{Bert, Cifar10, Deepspeech2, Ncf, Yolov3};
    let of = [(Cifar10, 512), (Deepspeech2, 80), (Ncf, 32_768), (Cifar10, 256), (Yolov3, 16), (Bert, 24)];
    let job = |idx: usize| {
        let (application, requested_batch) = of[idx % of.len()];
        let (name, submitted_s) = (format!("{application}-{idx}"), 60 * idx as u64);
        let requested_replicas = 1 + idx as u32 % 4;
        WorkloadJob { name, submitted_s, requested_replicas, requested_batch, ..WorkloadJob::of(application) }
    };
    Workload::new("forecast", None, (0..jobs).map(job).collect()).unwrap()
}

fn settings(policy: &str) -> SimulationSettings {
    SimulationSettings::new(PolicySettings::named(policy).unwrap(), "4x4".parse().unwrap())
}

/// The world as a live cluster at this moment.
fn live(world: &World<'_>) -> LiveCluster {
    let settings = EngineSettings { restart_cost_default_s: 30.0, ..EngineSettings::default() };
    LiveCluster { now: world.now, state: world.engine.state(), settings, policy: world.settings.policy.clone() }
}

/// Plays a workload until `is_there`, and lets `look` see what it is then, and when its jobs really were complete, in
/// seconds from then.
fn halfway<R>(
    policy: &str,
    jobs: usize,
    is_there: impl Fn(&World<'_>) -> bool,
    look: impl FnOnce(&LiveCluster, &[Option<f64>]) -> R,
) -> R {
    let (settings, applications, workload) = (settings(policy), ApplicationSet::parametric(), workload(jobs));
    let mut world = World::new(&settings, &applications, &workload).unwrap();
    while !is_there(&world) {
        world.turn().unwrap();
    }
    let cluster = live(&world);
    world.run(&mut |_| ()).unwrap();
    let complete = world.jobs.iter().map(|job| job.finished.filter(|at| *at > cluster.now));
    let complete: Vec<Option<f64>> = complete.map(|at| at.map(|at| at.since_s(cluster.now))).collect();
    look(&cluster, &complete)
}

fn has_run(seconds: f64) -> impl Fn(&World<'_>) -> bool {
    move |world| world.now.as_s() >= seconds
}

fn predicted(cluster: &LiveCluster, changes: &[Change]) -> Forecast {
    forecast(cluster, changes, &mut || true).unwrap()
}

fn completion_s(forecast: &Forecast, job: u64) -> Result<f64, Unforeseen> {
    forecast.jobs.iter().find(|it| it.id == JobId(job)).unwrap().completion_s
}

/// What a live cluster does if every job goes on as it has told: the forecast after `seconds`, and what then happened.
fn told_worlds(cluster: &LiveCluster, seconds: f64) -> Vec<(f64, f64)> {
    let engine = Engine::restore(cluster.settings, &cluster.policy, cluster.state.clone()).unwrap();
    let settings = SimulationSettings { restart_delay_s: 30.0, ..settings(cluster.policy.name()) };
    let trainees: Vec<ForecastJob> =
        engine.jobs().map(|job| ForecastJob::live(job, &engine, &cluster.policy, &cluster.settings)).collect();
    let jobs = trainees.iter().map(|trainee| trainee.sim_job(&settings)).collect();
    let mut world = World::around(engine, &settings, jobs);
    world.now = cluster.now;
    world.take_over();
    world.awaited = (0..trainees.len()).filter(|&idx| trainees[idx].outlook.is_ok()).collect();
    while world.now < cluster.now.after_s(seconds) {
        world.turn().unwrap();
    }
    let later = live(&world);
    let forecast = predicted(&later, &[]);
    world.run(&mut |_| ()).unwrap();
    let real = |id| world.jobs.iter().find(|job| job.id == id).unwrap().finished.map(|at| at.since_s(later.now));
    forecast.jobs.iter().filter_map(|it| it.completion_s.ok().zip(real(it.id))).collect()
}

#[test]
fn jobs_that_go_on_as_they_have_told_end_when_it_was_forecast() {
    for policy in [
        "pollux", "castor", "sia", "gavel", "optimus", "tiresias", "themis", "gandiva", "antman", "slaq", "srtf",
        "fifo",
    ] {
        halfway(policy, 12, has_run(3_000.0), |cluster, _| {
            for seconds in [0.0, 100.0, 700.0] {
                let both = told_worlds(cluster, seconds);
                let error = |&(predicted, real): &(f64, f64)| (predicted - real).abs() / real;
                let worst = both.iter().map(error).fold(0.0, f64::max);
                // Ends of epochs are rounded to seconds, and what a change costs a job is known once it had one.
                assert!(both.len() > 3 && worst < 0.001, "{policy} after {seconds} s: {both:?}");
            }
        });
    }
}

#[test]
fn what_is_forecast_halfway_is_about_what_then_happens() {
    // Castor lets the shortest go first: of jobs about as long, a small error exchanges the ends.
    let of =
        [("pollux", 3_000.0, 0.25), ("pollux", 5_000.0, 0.25), ("castor", 3_000.0, 0.45), ("castor", 5_000.0, 0.6)];
    for (policy, moment_s, error_max) in of {
        halfway(policy, 12, has_run(moment_s), |cluster, complete| {
            let forecast = predicted(cluster, &[]);
            assert_eq!(forecast, predicted(cluster, &[]), "the same question has the same answer");
            // What agents still learn, and noise that grows as training goes on, is not predicted.
            let real = |it: &JobForecast| complete[it.id.0 as usize].unwrap();
            let ratios: Vec<f64> = forecast.jobs.iter().map(|it| it.completion_s.unwrap() / real(it)).collect();
            let mean = ratios.iter().map(|ratio| (ratio - 1.0).abs()).sum::<f64>() / ratios.len() as f64;
            assert!(mean < error_max, "{policy} at {moment_s} s: {ratios:?}");
        });
    }
}

#[test]
fn changes_have_consequences() {
    halfway("pollux", 12, has_run(3_000.0), |cluster, _| {
        let before = predicted(cluster, &[]);
        let mean = |forecast: &Forecast| {
            let known = forecast.jobs.iter().filter_map(|it| it.completion_s.ok()).take(before.jobs.len());
            known.sum::<f64>() / before.jobs.len() as f64
        };
        let nodes = Change::AddNodes { count: 4, gpus: 4, gpu_type: GpuTypeName::default() };
        let larger = predicted(cluster, &[nodes]);
        assert!(mean(&larger) < 0.9 * mean(&before), "{before:?} {larger:?}");

        let smaller = predicted(cluster, &[0, 1, 2].map(|node| Change::Drain(NodeId(node))));
        assert!(mean(&smaller) > 1.1 * mean(&before), "{before:?} {smaller:?}");

        let another = predicted(cluster, &[Change::Policy(PolicySettings::named("castor").unwrap())]);
        assert_ne!(another, before);

        let first = before.jobs[0].id;
        let cancelled = predicted(cluster, &[Change::Cancel(first)]);
        assert_eq!(cancelled.jobs[0].completion_s, Err(Unforeseen::Cancelled));
        let paused = predicted(cluster, &[Change::Pause(first)]);
        assert_eq!(paused.jobs[0].completion_s, Err(Unforeseen::Paused));
        assert_eq!(paused.jobs[1..], cancelled.jobs[1..], "neither has GPUs");
        let resumed = predicted(cluster, &[Change::Pause(first), Change::Resume(first)]);
        assert!(resumed.jobs[0].completion_s.unwrap() >= before.jobs[0].completion_s.unwrap());
    });
}

#[test]
fn a_job_that_does_not_exist_trains_like_another_one_or_like_an_application() {
    halfway("pollux", 12, has_run(3_000.0), |cluster, _| {
        let before = predicted(cluster, &[]);
        let engine = Engine::restore(cluster.settings, &cluster.policy, cluster.state.clone()).unwrap();
        let alike = engine.job(before.jobs[0].id).unwrap();
        let report = alike.report().unwrap().report.clone();
        let training = Training::Like { report, restart_cost_s: alike.usage(cluster.now).restart_cost_s };
        let spec = pollux_job::JobSpec { name: "new".to_owned(), ..alike.spec().clone() };
        let like = Newcomer { spec: spec.clone(), training };
        let short = pollux_job::JobSpec { work: Some(Work::Epochs(1)), ..spec };
        let short = Newcomer { spec: short, training: Training::Application(ApplicationName::Cifar10) };
        let after = predicted(cluster, &[Change::Submit(Box::new(like)), Change::Submit(Box::new(short))]);
        let [.., like, short] = &after.jobs[..] else { panic!("{after:?}") };
        assert_eq!((like.id, short.id), (JobId(12), JobId(13)));
        assert!(like.completion_s.unwrap() > before.jobs[0].completion_s.unwrap(), "it begins at the beginning");
        assert!(short.completion_s.unwrap() < like.completion_s.unwrap());
        let sum = |forecast: &Forecast| forecast.jobs.iter().take(6).map(|it| it.completion_s.unwrap()).sum::<f64>();
        assert!(sum(&after) > sum(&before), "others have less");
    });
}

#[test]
fn a_forecast_keeps_to_the_batch_that_users_fixed_where_the_policy_does() {
    halfway("tiresias", 8, has_run(3_000.0), |cluster, _| {
        let new = |batch_size| {
            let spec = pollux_job::JobSpec { batch_size: Some(batch_size), ..pollux_job::JobSpec::new("new", 1) };
            Change::Submit(Box::new(Newcomer { spec, training: Training::Application(ApplicationName::Cifar10) }))
        };
        let [small, large] = [128, 1024].map(|batch_size| completion_s(&predicted(cluster, &[new(batch_size)]), 8));
        assert!(small.is_ok() && large.is_ok() && small != large, "{small:?} {large:?}");
        let adaptive = Change::Policy(PolicySettings::named("castor").unwrap());
        let [small, large] =
            [128, 1024].map(|size| completion_s(&predicted(cluster, &[adaptive.clone(), new(size)]), 8));
        assert_eq!(small, large, "the batch is chosen for it");
    });
}

#[test]
fn time_limits_and_dependencies_end_jobs_in_forecasts_too() {
    halfway("castor", 4, has_run(1_000.0), |cluster, _| {
        let new = |spec: pollux_job::JobSpec| {
            Change::Submit(Box::new(Newcomer { spec, training: Training::Application(ApplicationName::Imagenet) }))
        };
        let limited = pollux_job::JobSpec { time_limit: Some(600), ..pollux_job::JobSpec::new("limited", 1) };
        let after = |after| vec![pollux_job::Dependency { job: JobId(4), after }];
        let waits = pollux_job::JobSpec { depends_on: after(After::Success), ..pollux_job::JobSpec::new("waits", 1) };
        let follows = pollux_job::JobSpec { depends_on: after(After::End), ..pollux_job::JobSpec::new("follows", 1) };
        let forecast = predicted(cluster, &[limited, waits, follows].map(new));
        assert_eq!(completion_s(&forecast, 4), Err(Unforeseen::TimeLimit { limit_s: 600 }));
        assert_eq!(completion_s(&forecast, 5), Err(Unforeseen::Dependency { job: JobId(4) }));
        assert!(completion_s(&forecast, 6).is_ok(), "{forecast:?}");
    });
}

#[test]
fn a_job_that_waits_is_told_when_it_starts_even_if_nobody_knows_when_it_ends() {
    halfway("fifo", 4, has_run(1_000.0), |cluster, complete| {
        let engine = Engine::restore(cluster.settings, &cluster.policy, cluster.state.clone()).unwrap();
        let (id, alike) = engine.jobs().find_map(|job| Some((job.id(), job.report()?.report.clone()))).unwrap();
        let new = |replicas| {
            let spec = engine.job(id).unwrap().spec().clone();
            let spec = pollux_job::JobSpec { work: None, replicas, replicas_min: replicas, replicas_max: None, ..spec };
            let training = Training::Like { report: alike.clone(), restart_cost_s: None };
            Change::Submit(Box::new(Newcomer { spec, training }))
        };
        let forecast = predicted(cluster, &[new(16), new(17)]);
        let [live @ .., whole, too_large] = &forecast.jobs[..] else { panic!("{forecast:?}") };
        let last = live.iter().map(|job| job.completion_s.unwrap()).fold(0.0, f64::max);
        assert_eq!(whole.completion_s, Err(Unforeseen::NoWork));
        let start = whole.start_s.unwrap();
        assert!(last <= start && start <= last + 120.0, "{start} after {last}: all others have to be complete");
        assert_eq!(too_large.start_s, None);
        assert!(live.iter().all(|job| job.start_s.is_none()), "{live:?} have GPUs, of {complete:?}");
        assert_eq!(forecast.horizon_s, last, "what is told of the cluster is about known ends");
    });
}

#[test]
fn a_job_that_waits_for_one_without_an_end_is_told_which() {
    halfway("castor", 2, has_run(100.0), |cluster, _| {
        let dependency = pollux_job::Dependency { job: JobId(0), after: After::End };
        let spec = pollux_job::JobSpec { depends_on: vec![dependency], ..pollux_job::JobSpec::new("waits", 1) };
        let training = Training::Application(ApplicationName::Cifar10);
        let waits = Change::Submit(Box::new(Newcomer { spec, training }));
        let forecast = predicted(cluster, &[Change::Pause(JobId(0)), waits]);
        assert_eq!(completion_s(&forecast, 2), Err(Unforeseen::Waits { job: JobId(0) }), "{forecast:?}");
    });
}

#[test]
fn a_job_that_no_node_can_run_is_told_what_it_lacks() {
    halfway("castor", 2, has_run(100.0), |cluster, _| {
        let lacks = |spec: pollux_job::JobSpec| {
            let training = Training::Application(ApplicationName::Cifar10);
            let forecast = predicted(cluster, &[Change::Submit(Box::new(Newcomer { spec, training }))]);
            completion_s(&forecast, 2).unwrap_err()
        };
        let spec = || pollux_job::JobSpec::new("new", 1);
        assert_eq!(lacks(pollux_job::JobSpec { gpu_types: vec!["H100".to_owned()], ..spec() }), Unforeseen::NoSuchType);
        let large = pollux_job::JobSpec { gpus_per_replica: 8, ..spec() };
        assert_eq!(lacks(large), Unforeseen::TooLarge { resource: "GPUs" });
        let many = pollux_job::JobSpec { replicas: 9, replicas_min: 9, gpus_per_replica: 2, ..spec() };
        assert_eq!(lacks(many), Unforeseen::TooFewGpus { needed: 18, usable: 16 });
    });
}

#[test]
fn what_cannot_be_known_is_not_made_up() {
    let mut engine = Engine::new(EngineSettings::default(), &PolicySettings::Fifo).unwrap();
    let mut out = Vec::new();
    let policy = PolicySettings::Fifo;
    let empty = |engine: &Engine| LiveCluster {
        now: engine.now(),
        state: engine.state(),
        settings: EngineSettings::default(),
        policy: policy.clone(),
    };
    let message =
        |cluster: &LiveCluster, changes: &[Change]| forecast(cluster, changes, &mut || true).unwrap_err().to_string();
    assert_eq!(message(&empty(&engine), &[]), "no node is up: expected a cluster with one or more");
    let gpu_type = GpuTypeName::default();
    let joined = Event::NodeJoined { node: NodeId(3), gpus: 2, gpu_type, cpus: None, memory: None };
    engine.step(Timestamp(0), joined, &mut out);
    let nothing = Forecast { jobs: Vec::new(), horizon_s: 0.0, gpu_utilisation: None, cut: None };
    assert_eq!(predicted(&empty(&engine), &[]), nothing);
    for (job, replicas) in [(1, 1), (2, 2)] {
        let spec = pollux_job::JobSpec::new("quiet", replicas);
        engine.step(Timestamp(1), Event::JobSubmitted { job: JobId(job), spec }, &mut out);
    }
    let cluster = empty(&engine);
    assert_eq!(completion_s(&predicted(&cluster, &[]), 1), Err(Unforeseen::NoReport));

    let spec = pollux_job::JobSpec { work: Some(Work::Epochs(1)), ..pollux_job::JobSpec::new("new", 2) };
    let new = Newcomer { spec, training: Training::Application(ApplicationName::Cifar10) };
    let new = Change::Submit(Box::new(new));
    let behind = predicted(&cluster, std::slice::from_ref(&new));
    assert_eq!(completion_s(&behind, 3), Err(Unforeseen::Held), "the first keeps what it has");
    let alone = [Change::Cancel(JobId(1)), Change::Cancel(JobId(2)), new];
    assert!(completion_s(&predicted(&cluster, &alone), 3).unwrap() > 0.0);
    let impatient = forecast(&cluster, &alone, &mut || false).unwrap();
    assert_eq!((impatient.cut, completion_s(&impatient, 3)), (Some(Cut::Patience), Err(Unforeseen::Cut)));

    assert_eq!(message(&cluster, &[Change::Cancel(JobId(9))]), "job 9 is unknown");
    assert_eq!(message(&cluster, &[Change::Drain(NodeId(9))]), "node 9 is unknown");
    let oracle = Change::Policy(PolicySettings::OptimusOracle);
    let accepted = "expected policies of live clusters";
    assert_eq!(
        message(&cluster, &[oracle]),
        format!("policy optimus-oracle has to know what jobs will do: {accepted}")
    );
}
