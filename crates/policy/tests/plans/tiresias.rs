use pollux_model::GpuType;
use pollux_policy::{
    Consolidate, JobId, Plan, Policy, PolicySettings, SucceededJob, TiresiasPriority, TiresiasSettings,
};

use crate::world::{Job, World, profile};

fn gang(requested: u32, age_s: u64) -> Job {
    Job { requested, age_s, ..Job::default() }
}

/// A gang of four that holds the first node, or held it, for so many hours.
fn worked(hours: f64, runs: bool) -> Job {
    let job = Job { executed_s: hours * 3600.0, ..gang(4, 90_000) };
    if runs { Job { executed_s: job.executed_s, ..job.running(&[(0, 4)]) } } else { job }
}

fn tiresias(settings: TiresiasSettings) -> Box<dyn Policy + Send> {
    let settings = PolicySettings::Tiresias(settings);
    settings.check().expect("good settings");
    settings.build()
}

fn replicas(settings: TiresiasSettings, world: &World) -> Vec<u32> {
    world.replicas(&mut *tiresias(settings))
}

fn places(plan: &Plan, job: usize) -> Vec<(u32, u32)> {
    plan.assignments[job].allocation.iter().map(|(node, replicas)| (node.0, replicas)).collect()
}

#[test]
fn a_short_job_overtakes_one_that_has_had_its_share() {
    let world = |hours| World::new(1, 4, vec![worked(hours, true), gang(4, 10)]);
    assert_eq!(replicas(TiresiasSettings::default(), &world(3.9)), [4, 0]);
    assert_eq!(replicas(TiresiasSettings::default(), &world(4.1)), [0, 4]);
}

#[test]
fn holes_are_filled_with_jobs_that_fit() {
    let world = World::new(1, 4, vec![gang(3, 30), gang(2, 20), gang(1, 10)]);
    assert_eq!(replicas(TiresiasSettings::default(), &world), [3, 0, 1]);
}

#[test]
fn the_emptiest_nodes_are_taken_in_order() {
    let world = World::new(3, 4, vec![gang(2, 30).running(&[(0, 2)]), gang(3, 20)]);
    assert_eq!(places(&world.plan(&mut *tiresias(TiresiasSettings::default())), 1), [(1, 3)]);
}

#[test]
fn each_of_three_queues_goes_before_the_next_whoever_came_first() {
    let world = World::new(1, 4, vec![worked(3.0, false), worked(1.5, false), worked(0.5, false)]);
    let settings = |queue_gpu_hours: &[f64]| TiresiasSettings {
        queue_gpu_hours: queue_gpu_hours.to_vec(),
        ..TiresiasSettings::default()
    };
    assert_eq!(replicas(settings(&[4.0, 8.0]), &world), [0, 0, 4]);
    assert_eq!(replicas(settings(&[8.0]), &world), [0, 4, 0], "two in the first queue, in order of arrival");
    assert_eq!(replicas(settings(&[]), &world), [4, 0, 0], "one queue is first come, first served");
    let mut without_the_short = world;
    without_the_short.jobs.pop();
    assert_eq!(replicas(settings(&[4.0, 8.0]), &without_the_short), [0, 4]);
}

#[test]
fn a_demoted_job_goes_to_the_end_of_its_queue() {
    let mut policy = tiresias(TiresiasSettings::default());
    let mut world = World::new(1, 4, vec![worked(3.9, true), worked(5.0, false)]);
    assert_eq!(world.replicas(&mut *policy), [4, 0]);
    world.jobs[0].executed_s = 4.1 * 3600.0;
    assert_eq!(world.replicas(&mut *policy), [0, 4]);
}

#[test]
fn a_starved_job_is_promoted_and_starts_over() {
    let settings = TiresiasSettings { promote_knob: Some(2.0), ..TiresiasSettings::default() };
    let mut policy = tiresias(settings.clone());
    let stream = |age_s| Job { executed_s: 60.0, ..gang(4, age_s) };
    let mut world = World::new(1, 4, vec![worked(5.0, true), stream(100)]);
    assert_eq!(world.replicas(&mut *policy), [0, 4], "it is preempted");
    let later = |world: &mut World, hours: u64| {
        world.now_s += hours * 3600;
        world.jobs[0].age_s += hours * 3600;
        world.jobs[0].allocation = pollux_policy::Allocation::NONE;
    };
    later(&mut world, 9);
    assert_eq!(world.replicas(&mut *policy), [0, 4], "nine hours are less than twice five");
    later(&mut world, 2);
    world.jobs[1] = stream(50);
    world.jobs.push(stream(40));
    assert_eq!(world.replicas(&mut *policy), [0, 4, 0], "it comes to the first queue after those who are there");
    world.jobs[1].executed_s = 5.0 * 3600.0;
    assert_eq!(world.replicas(&mut *policy), [4, 0, 0], "and goes before those who come later");
    world.jobs[0] = Job { age_s: world.jobs[0].age_s, ..worked(8.9, true) };
    assert_eq!(world.replicas(&mut *policy), [4, 0, 0], "its service is counted from there");
    world.jobs[0].executed_s = 9.1 * 3600.0;
    assert_eq!(world.replicas(&mut *policy), [0, 0, 4]);
}

#[test]
fn without_the_knob_nobody_is_promoted() {
    let world = World::new(1, 4, vec![Job { age_s: 99_000, ..worked(5.0, false) }, gang(4, 10)]);
    assert_eq!(replicas(TiresiasSettings::default(), &world), [0, 4]);
}

/// Of two jobs of one GPU-hour or of twenty, the second has almost had its hour.
fn bimodal() -> (World, TiresiasSettings) {
    let world = World::new(1, 4, vec![worked(0.3, false), worked(0.24, false)]);
    let settings = TiresiasSettings {
        queue_gpu_hours: vec![16.0],
        priority: TiresiasPriority::Gittins,
        job_gpu_hours: [[1.0; 8], [20.0; 8]].concat(),
        ..TiresiasSettings::default()
    };
    (world, settings)
}

#[test]
fn gittins_prefers_the_job_that_is_likelier_to_end_soon() {
    let (world, settings) = bimodal();
    assert_eq!(replicas(settings.clone(), &world), [0, 4]);
    assert_eq!(replicas(TiresiasSettings { priority: TiresiasPriority::Las, ..settings }, &world), [4, 0]);
}

#[test]
fn gittins_is_las_before_it_has_learned_enough() {
    let (mut world, settings) = bimodal();
    let mut policy = tiresias(TiresiasSettings { job_gpu_hours: Vec::new(), ..settings });
    let finished = |id: u64| {
        let hours = if id < 20 { 1.0 } else { 20.0 };
        SucceededJob { id: JobId(1000 + id), attained_gpu_s: hours * 3600.0, executed_s: 900.0 * hours }
    };
    world.succeeded = (0..10).map(finished).collect();
    assert_eq!(world.replicas(&mut *policy), [4, 0]);
    world.succeeded = (10..40).map(finished).collect();
    assert_eq!(world.replicas(&mut *policy), [0, 4]);
}

/// Three GPUs are free on three nodes; a gang of two asks for them.
fn scattered(sync_s: f64, waited_s: u64) -> World {
    let profiles = vec![profile(GpuType::default(), 4, sync_s)];
    let holder = |node| Job { max: 3, ..gang(3, 90_000) }.running(&[(node, 3)]);
    let asking = Job { profiles, ..gang(2, waited_s) };
    World::new(3, 4, vec![holder(0), holder(1), holder(2), asking])
}

#[test]
fn only_jobs_that_need_it_wait_for_consolidation() {
    let needed = || TiresiasSettings { consolidate: Consolidate::Needed, ..TiresiasSettings::default() };
    let granted = |settings, world: World| replicas(settings, &world)[3];
    assert_eq!(granted(needed(), scattered(1.0, 60)), 0, "steps twice as long across nodes");
    assert_eq!(granted(needed(), scattered(1e-4, 60)), 2, "no longer to speak of");
    assert_eq!(granted(TiresiasSettings::default(), scattered(1.0, 60)), 2);
    let always = TiresiasSettings { consolidate: Consolidate::Always, ..TiresiasSettings::default() };
    assert_eq!(granted(always, scattered(1e-4, 60)), 0);
    let bold = TiresiasSettings { consolidate_margin: 10.0, ..needed() };
    assert_eq!(granted(bold, scattered(1.0, 60)), 2);
}

#[test]
fn nobody_waits_for_consolidation_for_ever() {
    let settings = TiresiasSettings { consolidate: Consolidate::Always, ..TiresiasSettings::default() };
    assert_eq!(replicas(settings, &scattered(1.0, 3600))[3], 2);
}

#[test]
fn a_sensitive_gang_takes_the_node_with_room_for_it_and_leaves_the_rest_to_others() {
    let settings = TiresiasSettings { consolidate: Consolidate::Needed, ..TiresiasSettings::default() };
    let mut world = scattered(1.0, 60);
    world.jobs.push(gang(1, 10));
    world.jobs.push(gang(2, 5));
    assert_eq!(replicas(settings.clone(), &world)[3..], [0, 1, 2], "those behind it use what it leaves");
    world.jobs[1].allocation = pollux_policy::Allocation::on(pollux_policy::NodeId(1), 2);
    world.jobs[1].requested = 2;
    assert_eq!(places(&world.plan(&mut *tiresias(settings)), 3), [(1, 2)]);
}

#[test]
fn settings_that_make_no_queues_are_named() {
    let refused = |settings| PolicySettings::Tiresias(settings).check().unwrap_err().to_string();
    let queues = TiresiasSettings { queue_gpu_hours: vec![4.0, 4.0], ..TiresiasSettings::default() };
    assert_eq!(refused(queues), "queue_gpu_hours 4: expected increasing numbers above 0");
    let knob = TiresiasSettings { promote_knob: Some(-1.0), ..TiresiasSettings::default() };
    assert_eq!(refused(knob), "promote_knob -1: expected numbers above 0");
    let sizes = TiresiasSettings { job_gpu_hours: vec![1.0, f64::NAN], ..TiresiasSettings::default() };
    assert_eq!(refused(sizes), "job_gpu_hours NaN: expected numbers above 0");
}
