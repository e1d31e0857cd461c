//! Plans where GPUs are of several types.

use pollux_model::{BatchLimits, Goodput, GpuType, GpuTypeName, NoiseStatistics, Parallelism, StepParams};
use pollux_policy::{
    Binding, CastorSettings, GavelObjective, GavelSettings, NodeId, NodeView, Plan, PolicySettings, PolluxSettings,
    SiaSettings, TypeProfile,
};

use crate::world::{Job, World, faster, profile};

/// Parameters of a step on the first type, bounds on batches, noise scale.
type Trained = ([f64; 7], [u32; 4], f64);

/// How many times as fast as on the first type an application is on each of three, and how it trains there.
const APPLICATIONS: [([f64; 3], Trained); 3] = [
    ([1.0, 2.07, 10.8], ([0.44, 0.037, 1.2, 1e-8, 0.047, 0.005, 1.0], [12, 384, 4, 12], 16_000.0)),
    ([1.0, 2.27, 6.9], ([0.024, 0.00062, 0.11, 0.00012, 0.0092, 0.0014, 1.27], [128, 4096, 32, 1024], 2_000.0)),
    ([1.0, 0.42, 2.03], ([0.22, 0.0138, 1.08, 1e-8, 0.135, 0.118, 2.0], [8, 512, 4, 8], 400.0)),
];

/// Numbers from 0 to 1 that are the same every time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn job(numbers: &mut Numbers) -> Job {
    let (speeds, (mut params, [baseline, batch_max, local_min, local_max], noise_scale)) =
        APPLICATIONS[(numbers.next() * 3.0) as usize];
    params[0] *= 0.8 + 0.4 * numbers.next();
    params[1] *= 0.8 + 0.4 * numbers.next();
    let goodput = Goodput {
        throughput: Parallelism::DataParallel.model(StepParams::from_array(params)).expect("within bounds"),
        noise: NoiseStatistics::from_noise_scale(noise_scale * (0.3 + 3.0 * numbers.next()), baseline)
            .expect("positive"),
        limits: BatchLimits::new(baseline, batch_max, local_min, local_max).expect("ordered"),
    };
    let replicas_profiled = 1 << (numbers.next() * 5.0) as u32;
    let slow = TypeProfile { gpu_type: GpuType(0), goodput, replicas_profiled, is_estimated: false };
    let profiles = (0..).zip(speeds).map(|(kind, times)| faster(&slow, GpuType(kind), times)).collect();
    let remaining_samples = Some(1e6 * (0.1 + numbers.next()));
    Job { age_s: (numbers.next() * 20_000.0) as u64, remaining_samples, profiles, ..Job::default() }
}

/// So many times six nodes of four, three of eight and two of eight GPUs, of three types.
fn cluster(times: u32, jobs: Vec<Job>) -> World {
    let groups = [(6 * times, 4, 0), (3 * times, 8, 1), (2 * times, 8, 2)];
    let nodes = groups.into_iter().flat_map(|(count, gpus, kind)| (0..count).map(move |_| (gpus, GpuType(kind))));
    let node = |(id, (gpus, gpu_type))| NodeView {
        id: NodeId(id),
        gpus,
        gpu_type,
        cpus: None,
        memory: None,
        schedulable: true,
    };
    World { nodes: (0..).zip(nodes).map(node).collect(), ..World::new(0, 0, jobs) }
}

/// How far plans are below their bound on average, over rounds in which jobs come and go.
fn mean_gap(settings: &PolicySettings, times: u32, jobs: usize, rounds: u32) -> f64 {
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    let mut world = cluster(times, (0..jobs).map(|_| job(&mut numbers)).collect());
    let mut policy = settings.build();
    let mut gaps = 0.0;
    for _ in 0..rounds {
        let plan = world.plan(&mut *policy);
        let quality = plan.quality.expect("it measures its plans");
        gaps += 1.0 - quality.objective / quality.upper_bound;
        world.carry_out(&plan, 60);
        for _ in 0..jobs.div_ceil(50) {
            let leaving = (numbers.next() * jobs as f64) as usize;
            world.jobs[leaving] = job(&mut numbers);
        }
    }
    gaps / f64::from(rounds)
}

#[test]
fn plans_on_three_types_are_close_to_their_bound() {
    let castor = PolicySettings::Castor(CastorSettings::default());
    let sia = PolicySettings::Sia(SiaSettings::default());
    for (settings, jobs, most) in [(&castor, 160, 0.005), (&castor, 38, 0.006), (&sia, 160, 0.002), (&sia, 38, 0.002)] {
        let gap = mean_gap(settings, 1, jobs, 8);
        assert!(gap < most, "{}: {jobs} jobs, {gap}", settings.name());
    }
}

#[test]
fn what_is_kept_from_round_to_round_changes_no_plan() {
    let policies = [
        PolicySettings::Castor(CastorSettings::default()),
        PolicySettings::Pollux(PolluxSettings::default()),
        PolicySettings::Sia(SiaSettings::default()),
    ];
    for settings in policies {
        let mut numbers = Numbers(0x1234_5678_9abc_def1);
        let mut world = cluster(1, (0..40).map(|_| job(&mut numbers)).collect());
        let mut policy = settings.build();
        for round in 0..12 {
            let plan = world.plan(&mut *policy);
            assert_eq!(plan, world.plan(&mut *settings.build()), "{}, round {round}", settings.name());
            world.carry_out(&plan, 60);
            // Jobs end and come, learn more, may have fewer types or sizes, and nodes drain.
            let changed = (numbers.next() * world.jobs.len() as f64) as usize;
            match round % 6 {
                0 => world.jobs[changed].gone = true,
                1 => world.jobs.push(job(&mut numbers)),
                2 => world.jobs[changed].profiles = job(&mut numbers).profiles,
                3 => world.jobs[changed].gpu_types = Some(vec![GpuType(0), GpuType(2)]),
                4 => world.jobs[changed].profiles.iter_mut().for_each(|profile| profile.replicas_profiled *= 3),
                _ => world.nodes.iter_mut().skip(9).for_each(|node| node.schedulable = !node.schedulable),
            }
        }
    }
}

/// The types that jobs get, and how many GPUs of them.
fn types(world: &World, settings: &PolicySettings) -> Vec<Option<(u16, u32)>> {
    let plan = world.plan(&mut *settings.build());
    let kind = |node: NodeId| world.nodes[node.0 as usize].gpu_type.0;
    let held = |allocation: &pollux_policy::Allocation| {
        allocation.iter().next().map(|(node, _)| (kind(node), allocation.replicas()))
    };
    plan.assignments.iter().map(|assignment| held(&assignment.allocation)).collect()
}

/// A job that was measured on one GPU of each of three types, and how fast it is on them.
fn with_speeds(speeds: [f64; 3]) -> Job {
    let profiles = (0..).zip(speeds).map(|(kind, times)| faster(&profile(GpuType(0), 1, 0.001), GpuType(kind), times));
    Job { profiles: profiles.collect(), ..Job::default() }
}

fn sia() -> PolicySettings {
    PolicySettings::Sia(SiaSettings::default())
}

#[test]
fn sia_gives_the_fast_type_to_those_who_gain_most_by_it() {
    let (indifferent, eager) = (with_speeds([1.0, 1.1, 1.2]), with_speeds([1.0, 2.0, 10.0]));
    let jobs: Vec<Job> = (0..16).map(|idx| if idx % 2 == 0 { indifferent.clone() } else { eager.clone() }).collect();
    let types = types(&cluster(1, jobs), &sia());
    assert!(types.iter().skip(1).step_by(2).all(|held| *held == Some((2, 2))), "{types:?}");
    assert!(types.iter().step_by(2).all(|held| held.is_some_and(|(kind, _)| kind < 2)), "{types:?}");
}

#[test]
fn sia_at_most_doubles_what_was_measured_and_starts_the_unmeasured_on_the_least() {
    let measured = |profiled| {
        let mut job = with_speeds([1.0, 1.0, 4.0]);
        job.profiles.iter_mut().for_each(|profile| profile.replicas_profiled = profiled);
        job
    };
    let only = |job: Job| types(&cluster(1, vec![job]), &sia())[0].map(|(_, gpus)| gpus);
    assert_eq!(
        [only(Job::default()), only(measured(1)), only(measured(3)), only(measured(8))],
        [1, 2, 4, 16].map(Some)
    );
    let any = PolicySettings::Sia(SiaSettings { whole_shapes: false, rounded: false, ..SiaSettings::default() });
    assert_eq!(types(&cluster(1, vec![measured(3)]), &any)[0], Some((2, 6)), "no power of two");
}

#[test]
fn sia_leaves_those_waiting_whose_smallest_size_would_cost_others_more() {
    let jobs = vec![with_speeds([1.0, 1.0, 10.0]); 80];
    let types = types(&cluster(1, jobs), &sia());
    let held = |kind: u16| types.iter().flatten().filter(|held| held.0 == kind).map(|held| held.1).collect::<Vec<_>>();
    let counts = [held(0), held(1), held(2)];
    assert_eq!(
        counts,
        [vec![2; 12], vec![2; 12], vec![1; 16]],
        "a second slow GPU for one is worth more than one for each"
    );
}

#[test]
fn pollux_that_is_blind_to_types_plans_as_if_they_were_alike_and_leaves_every_job_one_of_them() {
    let pollux = |type_blind| PolicySettings::Pollux(PolluxSettings { type_blind, ..PolluxSettings::default() });
    let world = |speeds: [f64; 3]| {
        let mut job = with_speeds(speeds);
        job.profiles.iter_mut().for_each(|profile| profile.replicas_profiled = 32);
        cluster(1, vec![with_speeds([1.0; 3]), job, with_speeds(speeds)])
    };
    let (alike, unlike) = (world([1.0; 3]), world([1.0, 2.0, 10.0]));
    assert_eq!(types(&alike, &pollux(true)), types(&unlike, &pollux(true)));
    assert_ne!(types(&alike, &pollux(false)), types(&unlike, &pollux(false)));
    let plan = unlike.plan(&mut *pollux(true).build());
    for assignment in &plan.assignments {
        let mut kinds: Vec<_> =
            assignment.allocation.iter().map(|(node, _)| unlike.nodes[node.0 as usize].gpu_type).collect();
        kinds.dedup();
        assert_eq!(kinds.len(), 1, "{plan:?}");
    }
    let mut choosy = world([1.0; 3]);
    choosy.jobs[1].gpu_types = Some(vec![GpuType(2)]);
    let held = types(&choosy, &pollux(true))[1];
    assert!(held.is_none_or(|(kind, _)| kind == 2), "{held:?}");
}

fn gavel(objective: GavelObjective) -> Box<dyn pollux_policy::Policy + Send> {
    PolicySettings::Gavel(GavelSettings { objective, ..GavelSettings::default() }).build()
}

/// One GPU of each of two types, and jobs that are so many times as fast on the second.
fn two_gpus(times: &[f64]) -> World {
    let mut world = World::new(2, 1, times.iter().map(|&times| with_speeds([1.0, times, 1.0])).collect());
    world.nodes[1].gpu_type = GpuType(1);
    world
}

#[test]
fn gavel_gives_every_job_its_share_of_rounds() {
    let mut world = two_gpus(&[1.0, 1.0, 1.0, 1.0]);
    let mut policy = gavel(GavelObjective::MaxMin);
    let mut held = [0; 4];
    for _ in 0..40 {
        let plan = world.plan(&mut *policy);
        for (held, assignment) in held.iter_mut().zip(&plan.assignments) {
            *held += assignment.allocation.replicas();
        }
        world.carry_out(&plan, 360);
    }
    assert!(held.iter().all(|held| (19..=21).contains(held)), "{held:?}: half of the time each");
}

#[test]
fn gavel_prefers_the_type_on_which_a_job_gains_most_and_keeps_it_for_a_round() {
    let mut world = two_gpus(&[1.0, 8.0]);
    let mut policy = gavel(GavelObjective::MaxMin);
    assert_eq!(world.round(&mut *policy, 60), "0*1 1*1");
    assert_eq!([0; 4].map(|_| world.round(&mut *policy, 60)), ["0*1 1*1"; 4]);
    world.jobs.push(with_speeds([1.0, 20.0, 1.0]));
    assert_eq!(world.round(&mut *policy, 60), "0*1 1*1 -", "whoever comes within a round waits for its end");
    assert!(!world.round(&mut *policy, 360).ends_with('-'), "and then goes first");
}

#[test]
fn gavel_goes_on_with_what_it_remembers() {
    let mut world = two_gpus(&[1.0, 2.0, 3.0]);
    let mut policy = gavel(GavelObjective::FinishTime);
    for _ in 0..5 {
        world.round(&mut *policy, 360);
    }
    let mut restored = gavel(GavelObjective::FinishTime);
    assert!(restored.restore(policy.save().expect("it remembers shares")));
    assert_eq!(restored.save(), policy.save());
    assert_eq!(world.plan(&mut *restored), world.plan(&mut *policy));
}

#[test]
fn gavel_shares_out_over_owners_before_their_jobs() {
    let mut world = two_gpus(&[1.0, 1.0, 1.0, 1.0, 1.0]);
    for (idx, job) in world.jobs.iter_mut().enumerate() {
        job.owner = if idx == 0 { "ada" } else { "bob" };
    }
    let mut policy = gavel(GavelObjective::Hierarchical);
    let mut held = [0; 5];
    for _ in 0..40 {
        let plan = world.plan(&mut *policy);
        for (held, assignment) in held.iter_mut().zip(&plan.assignments) {
            *held += assignment.allocation.replicas();
        }
        world.carry_out(&plan, 360);
    }
    assert!(held[0] >= 38, "ada's one job runs all the time: {held:?}");
    assert!(held[1..].iter().all(|held| (9..=11).contains(held)), "bob's four share the other GPU: {held:?}");
}

#[test]
fn gavel_uses_cheap_gpus_and_says_who_will_be_late_there() {
    let mut world = two_gpus(&[4.0, 4.0, 4.0]);
    world.type_names = ["cheap", "dear"].map(|name| GpuTypeName::new(name).expect("a name")).to_vec();
    world.jobs.iter_mut().for_each(|job| (job.age_s, job.remaining_samples) = (0, Some(1e6)));
    let settings = GavelSettings {
        objective: GavelObjective::Cost,
        gpu_costs: [("dear".to_owned(), 100.0)].into(),
        ..GavelSettings::default()
    };
    let mut policy = PolicySettings::Gavel(settings.clone()).build();
    let plan = world.plan(&mut *policy);
    let bindings =
        |plan: &Plan| plan.assignments.iter().map(|assignment| assignment.reason.binding).collect::<Vec<_>>();
    assert!(!bindings(&plan).contains(&Binding::Late), "nobody said when they should be done");
    let soon = GavelSettings { slowdown_max: Some(1.0), ..settings };
    let plan = world.plan(&mut *PolicySettings::Gavel(soon).build());
    let late = bindings(&plan).into_iter().filter(|binding| *binding == Binding::Late).count();
    assert_eq!(late, 2, "one of three can have the fast GPU all the time");
}
