use pollux_model::{Goodput, GpuType, Parallelism, StepParams};
use pollux_policy::{
    Binding, CastorSettings, EndedJob, Flexibility, NodeId, PolicySettings, PolluxSettings, TypeProfile,
};

use crate::world::{Job, World};

fn pollux(settings: PolluxSettings) -> Box<dyn pollux_policy::Policy + Send> {
    PolicySettings::Pollux(settings).build()
}

fn castor() -> Box<dyn pollux_policy::Policy + Send> {
    PolicySettings::Castor(CastorSettings::default()).build()
}

#[test]
fn jobs_that_scale_better_get_more() {
    let world = World::new(4, 4, vec![Job::measured(64, 0.001), Job::measured(64, 1.0)]);
    let replicas = world.replicas(&mut *pollux(PolluxSettings { fairness: 1.0, ..PolluxSettings::default() }));
    assert!(replicas[0] > replicas[1], "{replicas:?}");
}

#[test]
fn a_lower_power_is_fairer() {
    let world = World::new(4, 4, vec![Job::measured(64, 0.001), Job::measured(64, 0.1), Job::measured(64, 0.5)]);
    let smallest_speedup = |fairness: f64| {
        let settings = PolluxSettings { fairness, ..PolluxSettings::default() };
        let plan = world.plan(&mut *pollux(settings));
        world.with_view(|_, view| {
            let speedup = |(job, assignment): (&pollux_policy::JobView<'_>, &pollux_policy::Assignment)| {
                let goodput = &job.profiles[0].goodput;
                let fair = goodput.best(pollux_model::Shape::new(1, 6).unwrap()).unwrap().goodput;
                assignment.allocation.shape().map_or(0.0, |shape| goodput.best(shape).unwrap().goodput / fair)
            };
            view.jobs.iter().zip(&plan.assignments).map(speedup).fold(f64::INFINITY, f64::min)
        })
    };
    let by_power: Vec<f64> = [1.0, 0.0, -1.0, -10.0, f64::NEG_INFINITY].map(smallest_speedup).to_vec();
    assert!(by_power.is_sorted_by(|a, b| *a <= b * 1.001), "{by_power:?}");
    assert!(by_power[4] > by_power[0], "{by_power:?}");
}

#[test]
fn a_job_may_not_exceed_twice_what_it_was_measured_at() {
    let world = World::new(4, 4, vec![Job::measured(3, 0.001)]);
    let plan = world.plan(&mut *pollux(PolluxSettings::default()));
    assert_eq!(plan.assignments[0].allocation.replicas(), 6);
    assert_eq!(plan.assignments[0].reason.binding, Binding::Profile);
    assert_eq!(world.replicas(&mut *castor()), [12], "castor explores more boldly");
}

#[test]
fn an_unmeasured_job_starts_on_one_gpu() {
    let world = World::new(4, 4, vec![Job::default()]);
    assert_eq!(world.replicas(&mut *pollux(PolluxSettings::default())), [1]);
}

#[test]
fn two_multi_node_jobs_share_no_node_unless_allowed() {
    let jobs: Vec<Job> = (0..3).map(|_| Job { min: 6, ..Job::measured(64, 0.001) }).collect();
    let world = World::new(4, 4, jobs);
    let running = |avoid_interference| {
        let settings = PolluxSettings { avoid_interference, fairness: -1.0, ..PolluxSettings::default() };
        world.replicas(&mut *pollux(settings)).iter().filter(|replicas| **replicas > 0).count()
    };
    assert_eq!(running(true), 2, "six replicas take two nodes each");
    assert_eq!(running(false), 2, "16 GPUs hold two gangs of six");
    let world = World::new(3, 4, (0..2).map(|_| Job { min: 6, ..Job::measured(64, 0.001) }).collect());
    let settings = PolluxSettings { avoid_interference: false, ..PolluxSettings::default() };
    assert_eq!(world.replicas(&mut *pollux(settings)), [6, 6]);
    assert_eq!(world.replicas(&mut *pollux(PolluxSettings::default())).iter().filter(|held| **held > 0).count(), 1);
}

#[test]
fn a_small_gain_does_not_pay_for_a_restart() {
    // Young and often restarted: a change would cost it more than half of its speedup.
    let mut job = Job::measured(8, 0.02).running(&[(0, 4)]);
    (job.age_s, job.restarts) = (300, 5);
    let world = World::new(2, 4, vec![job]);
    let plan = world.plan(&mut *pollux(PolluxSettings::default()));
    assert_eq!(plan.assignments[0].allocation, world.jobs[0].allocation);
    assert_eq!(plan.assignments[0].reason.binding, Binding::RestartCost);
}

#[test]
fn a_first_start_is_not_a_restart() {
    let newcomer = Job { age_s: 0, ..Job::default() };
    let world = World::new(1, 4, vec![Job::measured(4, 0.01).running(&[(0, 4)]), newcomer]);
    assert_eq!(world.replicas(&mut *pollux(PolluxSettings::default()))[1], 1);
}

#[test]
fn rigid_and_non_preemptible_jobs_keep_what_they_have() {
    let rigid = Job { requested: 3, flexibility: Flexibility::Rigid, ..Job::default() }.running(&[(0, 3)]);
    let pinned = Job { flexibility: Flexibility::NonPreemptible, ..Job::measured(4, 0.5) }.running(&[(1, 4)]);
    let waiting = Job { requested: 2, flexibility: Flexibility::Rigid, ..Job::default() };
    let world = World::new(2, 4, vec![rigid, pinned, waiting, Job::measured(8, 0.001)]);
    for policy in [&mut *pollux(PolluxSettings::default()), &mut *castor()] {
        let plan = world.plan(policy);
        assert_eq!(plan.assignments[0].allocation, world.jobs[0].allocation);
        assert_eq!(plan.assignments[1].allocation, world.jobs[1].allocation);
        assert_eq!(plan.assignments[2].allocation.replicas(), 0, "a gang of two does not fit one GPU");
        assert_eq!(plan.assignments[3].allocation.replicas(), 1);
    }
}

#[test]
fn a_draining_node_is_emptied() {
    let mut world = World::new(2, 4, vec![Job::measured(4, 0.01).running(&[(1, 4)])]);
    world.nodes[1].schedulable = false;
    let plan = world.plan(&mut *pollux(PolluxSettings::default()));
    assert_eq!(plan.assignments[0].allocation.replicas_on(NodeId(0)), 4);
}

#[test]
fn a_job_runs_on_one_kind_of_gpu() {
    let mut world = World::new(4, 4, vec![Job::measured(64, 0.001)]);
    for node in &mut world.nodes[2..] {
        node.gpu_type = GpuType(1);
    }
    // Four times as fast in everything: no ratio tells the kinds apart, only the goodput itself.
    let slow = world.jobs[0].profiles[0];
    let quick = slow.goodput.throughput.params().to_array().map(|param| if param > 1.1 { param } else { param / 4.0 });
    let quick = StepParams { gamma: slow.goodput.throughput.params().gamma, ..StepParams::from_array(quick) };
    let throughput = Parallelism::DataParallel.model(quick).unwrap();
    let goodput = Goodput { throughput, ..slow.goodput };
    world.jobs[0].profiles.push(TypeProfile { gpu_type: GpuType(1), goodput, ..slow });
    for policy in [&mut *pollux(PolluxSettings::default()), &mut *castor()] {
        let plan = world.plan(policy);
        let nodes: Vec<u32> = plan.assignments[0].allocation.iter().map(|(node, _)| node.0).collect();
        assert_eq!(nodes, [2, 3], "the kind that is faster");
    }
}

#[test]
fn castor_prefers_the_job_soonest_done_and_starves_nobody() {
    let sized = |samples| Job { remaining_samples: Some(samples), age_s: 1, ..Job::measured(16, 0.01) };
    let world = World::new(4, 4, vec![sized(1e8), sized(1e5)]);
    let replicas = world.replicas(&mut *castor());
    assert!(replicas[1] > replicas[0] && replicas[0] > 0, "{replicas:?}");
}

#[test]
fn castor_lets_a_long_job_in_that_has_waited_for_its_share() {
    let long = |age_s| Job { remaining_samples: Some(1e9), age_s, queued_s: age_s, ..Job::measured(1, 0.01) };
    let short = || Job { remaining_samples: Some(1e5), age_s: 60, ..Job::measured(1, 0.01) };
    let held = |age_s| {
        let jobs: Vec<Job> = std::iter::once(long(age_s)).chain((0..30).map(|_| short())).collect();
        World::new(4, 4, jobs).replicas(&mut *castor())[0]
    };
    assert_eq!(held(1), 0, "thirty short jobs go before it");
    assert!(held(90_000) > 0, "a day without a GPU is long enough");
}

#[test]
fn castor_does_not_favour_a_job_that_outlives_what_it_declared() {
    let job = |remaining, age_s| Job { remaining_samples: Some(remaining), age_s, ..Job::measured(16, 0.01) };
    let running = |job: Job, node| Job { executed_s: 40_000.0, ..job.running(&[(node, 4)]) };
    let world = World::new(4, 4, vec![running(job(0.0, 50_000), 0), running(job(1e6, 50_000), 1)]);
    let replicas = world.replicas(&mut *castor());
    assert!(replicas[0] <= replicas[1], "{replicas:?}");
}

fn ended(samples: &[f64], declared: Option<f64>) -> Vec<EndedJob> {
    samples.iter().map(|&samples| EndedJob { samples, samples_declared: declared }).collect()
}

#[test]
fn castor_takes_a_job_to_last_as_long_as_ended_ones_of_its_application() {
    let job = |application, samples: f64| Job {
        application: Some(application),
        ended: ended(&[samples; 8], None),
        ..Job::measured(64, 0.05)
    };
    let replicas = World::new(4, 4, vec![job("long", 1e9), job("short", 1e5)]).replicas(&mut *castor());
    assert!(replicas[1] > replicas[0] && replicas[0] > 0, "{replicas:?}");
}

#[test]
fn castor_believes_declarations_as_far_as_those_of_ended_jobs_were_right() {
    let job = |declared: f64, ended: Vec<EndedJob>| Job {
        application: Some("resnet"),
        ended,
        remaining_samples: Some(declared),
        ..Job::measured(64, 0.05)
    };
    let held = |declared_before: f64| {
        let jobs = [1e9, 1e5].map(|declared| job(declared, ended(&[1e7; 8], Some(declared_before))));
        World::new(4, 4, jobs.to_vec()).replicas(&mut *castor())
    };
    let (right, wrong) = (held(1e7), held(1e9));
    assert!(right[1] > right[0] && wrong[0] > right[0], "{right:?} {wrong:?}");
}

#[test]
fn castor_without_declared_work_prefers_the_younger() {
    let aged = |age_s: u64, node| {
        let job = Job { age_s, ..Job::measured(16, 0.01) }.running(&[(node, 4)]);
        Job { executed_s: age_s as f64, ..job }
    };
    let world = World::new(4, 4, vec![aged(50_000, 0), aged(5_000, 1)]);
    let replicas = world.replicas(&mut *castor());
    assert!(replicas[1] > replicas[0] && replicas[0] > 0, "{replicas:?}");
}

#[test]
fn reasons_name_what_a_gpu_more_or_fewer_is_worth_and_who_would_pay() {
    let jobs = vec![Job::measured(64, 0.05).running(&[(0, 4)]), Job::measured(64, 0.05).running(&[(1, 4)])];
    let world = World::new(2, 4, jobs);
    let plan = world.plan(&mut *pollux(PolluxSettings::default()));
    let reason = plan.assignments[0].reason;
    assert!(reason.one_fewer.is_some_and(|loss| (-1.0..0.0).contains(&loss)), "{reason:?}");
    assert!(reason.one_more.is_some(), "{reason:?}");
    assert!(reason.payer.is_some_and(|(payer, loss)| payer.0 == 1 && loss < 0.0), "{reason:?}");
}

fn both() -> [Box<dyn pollux_policy::Policy + Send>; 2] {
    [pollux(PolluxSettings::default()), castor()]
}

#[test]
fn a_higher_priority_goes_first_where_gpus_are_short_and_takes_no_more_than_that() {
    for mut policy in both() {
        let job = |priority| Job { priority, age_s: 60, ..Job::measured(4, 0.01) };
        let world = World::new(1, 4, [0, 0, 1, 0, 2, 0, 1, 1].map(job).to_vec());
        assert_eq!(world.replicas(&mut *policy), [0, 0, 1, 0, 1, 0, 1, 1], "{}", policy.name());
        let world = World::new(1, 4, vec![job(0).running(&[(0, 4)]), job(5)]);
        let shared = world.replicas(&mut *policy);
        assert!(shared[0] > 0 && shared[1] >= shared[0], "{}: {shared:?}", policy.name());
    }
}

#[test]
fn a_job_below_zero_uses_what_others_leave() {
    for mut policy in both() {
        let job = |priority, max| Job { priority, max, age_s: 60, ..Job::measured(4, 0.001) };
        let world = World::new(1, 4, vec![job(-1, 64).running(&[(0, 4)]), job(0, 3)]);
        assert_eq!(world.replicas(&mut *policy), [1, 3], "{}", policy.name());
        let alone = World::new(1, 4, vec![job(-1, 64), job(-1, 64)]);
        let held = alone.replicas(&mut *policy);
        assert!(held.iter().sum::<u32>() == 4 && !held.contains(&0), "{}: {held:?}", policy.name());
    }
}

#[test]
fn equal_priorities_change_nothing() {
    for priority in [-7, 3] {
        for (mut one, mut other) in both().into_iter().zip(both()) {
            let jobs = |priority| {
                let job = |profiled: u32| Job { priority, ..Job::measured(profiled, 0.01 * f64::from(profiled)) };
                World::new(3, 4, (1..9).map(job).collect())
            };
            assert_eq!(jobs(0).plan(&mut *one), jobs(priority).plan(&mut *other));
        }
    }
}

#[test]
fn a_gang_that_has_waited_too_long_is_let_in_by_those_who_have_had_their_turn() {
    for mut policy in both() {
        let single = || Job { max: 1, ..Job::measured(1, 0.01) };
        let gang = |queued_s| Job { requested: 4, flexibility: Flexibility::Rigid, queued_s, ..Job::default() };
        let singles = |running_s| (0..7).map(move |node| Job { running_s, ..single() }.running(&[(node / 4, 1)]));
        let held = |queued_s, running_s, policy: &mut dyn pollux_policy::Policy| {
            let jobs = singles(running_s).map(|job| Job { queued_s: 10_000, ..job }).chain([gang(queued_s)]);
            World::new(2, 4, jobs.collect()).replicas(policy)
        };
        assert_eq!(held(2_900, 4_000, &mut *policy)[7], 4, "{}", policy.name());
        assert_eq!(held(2_900, 4_000, &mut *policy).iter().sum::<u32>(), 8, "the others go on where there is room");
        assert_eq!(held(2_900, 100, &mut *policy)[7], 0, "they came before it and have only just got in");
    }
}

#[test]
fn whoever_waits_longest_is_let_in_first_and_keeps_its_turn() {
    for mut policy in both() {
        let job = |queued_s| Job { queued_s, max: 1, age_s: 20_000, ..Job::measured(1, 0.01) };
        let old = |running_s, node| Job { queued_s: 19_000, running_s, ..job(0) }.running(&[(node, 1)]);
        let world = World::new(2, 1, vec![old(18_000, 0), old(100, 1), job(8_000), job(9_000)]);
        assert_eq!(world.replicas(&mut *policy), [0, 1, 0, 1], "{}", policy.name());
    }
}

#[test]
fn nobody_who_could_not_be_moved_starts_before_a_gang_that_waits_for_room() {
    for mut policy in both() {
        let rigid =
            |requested, queued_s| Job { requested, flexibility: Flexibility::Rigid, queued_s, ..Job::default() };
        let runs = Job { queued_s: 5_000, ..rigid(2, 0) }.running(&[(0, 2)]);
        let world = World::new(1, 4, vec![runs.clone(), rigid(4, 4_500), rigid(2, 10)]);
        assert_eq!(world.replicas(&mut *policy), [2, 0, 0], "{}", policy.name());
        let world = World::new(1, 4, vec![runs, rigid(4, 10), rigid(2, 10)]);
        assert_eq!(world.replicas(&mut *policy), [2, 0, 2], "nobody has waited long: {}", policy.name());
    }
}

#[test]
fn a_new_job_begins_with_what_it_asks_for_if_nobody_uses_that() {
    for mut policy in both() {
        let new = |requested| Job { requested, ..Job::default() };
        let held = |jobs: Vec<Job>, policy: &mut dyn pollux_policy::Policy| World::new(2, 4, jobs).replicas(policy);
        assert_eq!(held(vec![new(4)], &mut *policy), [4]);
        assert_eq!(held(vec![new(6)], &mut *policy), [6], "over two nodes");
        assert_eq!(held(vec![new(64)], &mut *policy), [8], "as many as there are");
        assert_eq!(held(vec![new(8), new(3)], &mut *policy), [7, 1], "everybody else that waits gets one");
        let full = Job { max: 7, ..Job::measured(8, 0.001) }.running(&[(0, 4), (1, 3)]);
        assert_eq!(held(vec![full, new(4)], &mut *policy), [7, 1], "it takes nothing from others");
        let interrupted = Job { executed_s: 100.0, ..new(4) };
        assert_eq!(held(vec![interrupted], &mut *policy), [4], "it was not measured before it was stopped");
        let measured = Job { requested: 4, max: 4, ..Job::measured(1, 50.0) };
        assert_eq!(held(vec![measured], &mut *policy), [1], "its profile decides");
    }
}

#[test]
fn a_job_that_can_never_run_makes_nobody_wait_longer_or_begin_smaller() {
    for mut policy in both() {
        let gang = |requested| Job { requested, flexibility: Flexibility::Rigid, queued_s: 2_900, ..Job::default() };
        let singles =
            || (0..7).map(|node| Job { queued_s: 10_000, max: 1, ..Job::measured(1, 0.01) }.running(&[(node / 4, 1)]));
        let jobs = singles().chain([gang(4), Job { queued_s: 9_000, ..gang(4_000) }]).collect();
        let held = World::new(2, 4, jobs).replicas(&mut *policy);
        assert_eq!((held[7], held[8]), (4, 0), "{}", policy.name());
        let new = Job { requested: 4, ..Job::default() };
        let far_too_large = Job { cpus: 1, ..gang(4_000) };
        assert_eq!(World::new(2, 4, vec![far_too_large, new]).replicas(&mut *policy), [0, 4], "{}", policy.name());
    }
}

/// Node 1 has GPUs of another kind.
fn of_two_kinds(jobs: Vec<Job>) -> World {
    let mut world = World::new(2, 4, jobs);
    world.nodes[1].gpu_type = GpuType(1);
    world
}

#[test]
fn who_needs_other_kinds_of_gpu_makes_nobody_wait_longer_or_begin_smaller() {
    for mut policy in both() {
        let only = |kind, job| Job { gpu_types: Some(vec![GpuType(kind)]), ..job };
        let gang = |requested, queued_s| Job { requested, flexibility: Flexibility::Rigid, queued_s, ..Job::default() };
        let crowd = (0..40).map(|_| only(1, gang(4, 100)));
        let singles =
            (0..4).map(|_| only(0, Job { queued_s: 10_000, max: 1, ..Job::measured(1, 0.01) }.running(&[(0, 1)])));
        let world = of_two_kinds(singles.chain([only(0, gang(4, 3_700))]).chain(crowd.clone()).collect());
        assert_eq!(world.replicas(&mut *policy)[4], 4, "{}: twice as much is needed of its kind", policy.name());
        let world = of_two_kinds(crowd.chain([only(0, Job { requested: 4, ..Job::default() })]).collect());
        assert_eq!(world.replicas(&mut *policy)[40], 4, "{}", policy.name());
    }
}

#[test]
fn a_gang_without_a_possible_batch_holds_no_other_gang_up() {
    for mut policy in both() {
        let gang = |requested, queued_s| Job { requested, flexibility: Flexibility::Rigid, queued_s, ..Job::default() };
        let mut never = gang(6, 9_000);
        never.profiles = vec![crate::world::profile(GpuType::default(), 6, 0.01)];
        never.profiles[0].goodput.limits = pollux_model::BatchLimits::new(4, 4, 1, 4).unwrap();
        let full =
            (0..8).map(|node| Job { queued_s: 10_000, max: 1, ..Job::measured(1, 0.01) }.running(&[(node / 4, 1)]));
        let world = World::new(2, 4, full.chain([never, gang(4, 8_500)]).collect());
        let held = world.replicas(&mut *policy);
        assert_eq!((held[8], held[9]), (0, 4), "{}: six replicas share four samples", policy.name());
    }
}

#[test]
fn a_new_job_spans_nodes_that_no_other_job_spans() {
    for mut policy in both() {
        let spans = Job { min: 8, max: 8, ..Job::measured(8, 0.001) }.running(&[(0, 4), (1, 4)]);
        let new = || Job { requested: 6, ..Job::default() };
        let plan = World::new(4, 4, vec![spans.clone(), new()]).plan(&mut *policy);
        let places: Vec<(u32, u32)> =
            plan.assignments[1].allocation.iter().map(|(node, held)| (node.0, held)).collect();
        assert_eq!(places, [(2, 4), (3, 2)], "{}", policy.name());
        let world = World::new(3, 4, vec![spans, new()]);
        assert_eq!(world.replicas(&mut *policy), [8, 4], "{}: one node is left", policy.name());
    }
}
