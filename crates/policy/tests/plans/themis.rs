use pollux_policy::{Flexibility, Policy, PolicySettings, ThemisSettings};

use crate::world::{Job, World};

fn themis(settings: ThemisSettings) -> Box<dyn Policy + Send> {
    let settings = PolicySettings::Themis(settings);
    settings.check().expect("good settings");
    settings.build()
}

/// A gang of four with so many samples to go.
fn gang(remaining: f64, age_s: u64) -> Job {
    let job = Job::measured(4, 0.01);
    Job { requested: 4, min: 4, max: 4, remaining_samples: Some(remaining), age_s, ..job }
}

fn later(world: &mut World, seconds: u64) {
    world.now_s += seconds;
    for job in &mut world.jobs {
        job.age_s += seconds;
    }
}

#[test]
fn the_job_with_the_worst_rho_goes_first_not_the_oldest() {
    let patient = World::new(1, 4, vec![gang(1e8, 4000), gang(1e5, 3000)]);
    assert_eq!(patient.replicas(&mut *themis(ThemisSettings::default())), [0, 4], "an hour is nothing to the long one");
    let alike = World::new(1, 4, vec![gang(1e5, 4000), gang(1e5, 3000)]);
    assert_eq!(alike.replicas(&mut *themis(ThemisSettings::default())), [4, 0]);
}

#[test]
fn a_lease_holds_until_it_expires() {
    let mut policy = themis(ThemisSettings::default());
    let mut world = World::new(1, 4, vec![gang(1e6, 4000).running(&[(0, 4)]), gang(1e6, 3000)]);
    assert_eq!(world.replicas(&mut *policy), [4, 0]);
    later(&mut world, 540);
    assert_eq!(world.replicas(&mut *policy), [4, 0], "although nothing is farther from fair than to have none");
    later(&mut world, 60);
    assert_eq!(world.replicas(&mut *policy), [0, 4]);
}

#[test]
fn without_others_a_lease_is_renewed_in_place() {
    let mut policy = themis(ThemisSettings::default());
    let mut world = World::new(2, 4, vec![gang(1e6, 4000).running(&[(1, 4)])]);
    for _ in 0..30 {
        assert_eq!(world.plan(&mut *policy).assignments[0].allocation, world.jobs[0].allocation);
        later(&mut world, 60);
    }
}

#[test]
fn elastic_jobs_share_by_auction_and_who_was_not_asked_gets_what_the_winners_pay() {
    let elastic = |age_s| Job { requested: 8, age_s, ..Job::default() };
    let world = World::new(1, 8, vec![elastic(300), elastic(300), elastic(10)]);
    let two_bid = ThemisSettings { fairness_knob: 0.5, ..ThemisSettings::default() };
    let replicas = world.replicas(&mut *themis(two_bid));
    assert!(replicas[0] == replicas[1] && replicas[0] < 4, "{replicas:?}");
    assert_eq!((replicas[2] > 0, replicas.iter().sum::<u32>()), (true, 8), "{replicas:?}");
    let nobody_else = World::new(1, 8, vec![elastic(300), elastic(300)]);
    let replicas = nobody_else.replicas(&mut *themis(ThemisSettings { fairness_knob: 0.0, ..two_bid }));
    assert_eq!(replicas.iter().sum::<u32>(), 8, "what nobody else wants is not left idle");
}

#[test]
fn what_the_auction_leaves_goes_to_the_others() {
    let small = |age_s| Job { requested: 1, age_s, ..Job::default() };
    let world = World::new(2, 4, (0..7).map(|idx| small(700 - idx)).collect());
    let one_bids = ThemisSettings { fairness_knob: 1.0, ..ThemisSettings::default() };
    assert_eq!(world.replicas(&mut *themis(one_bids)), [1; 7]);
}

#[test]
fn a_job_far_from_fair_grows_during_its_lease_if_that_pays_before_it_ends() {
    let mut policy = themis(ThemisSettings::default());
    let squeezed = Job { requested: 4, remaining_samples: Some(1e7), ..Job::measured(4, 0.001) };
    let mut world = World::new(1, 4, vec![squeezed.running(&[(0, 1)]), Job { requested: 3, ..Job::default() }]);
    world.jobs[1] = Job { flexibility: Flexibility::NonPreemptible, ..world.jobs[1].clone() }.running(&[(0, 3)]);
    assert_eq!(world.replicas(&mut *policy), [1, 3]);
    later(&mut world, 60);
    world.jobs.pop();
    assert_eq!(world.replicas(&mut *policy), [4]);
    later(&mut world, 520);
    assert_eq!(world.replicas(&mut *policy), [1], "twenty seconds do not pay for a restart");
}

#[test]
fn a_gang_is_put_on_the_fewest_nodes() {
    let single = Job { requested: 1, ..Job::default() }.running(&[(0, 1)]);
    let world = World::new(3, 4, vec![single, gang(1e6, 50)]);
    let plan = world.plan(&mut *themis(ThemisSettings::default()));
    assert_eq!(plan.assignments[1].allocation.iter().len(), 1);
}
