use proptest::prelude::*;

use super::*;

fn demand(gpus: f64, speeds: &[f64]) -> Demand {
    let speeds = speeds.to_vec();
    Demand { gpus, speeds, weight: 1.0, remaining_steps: 100.0, age_s: 0.0, total_steps: 100.0, entity: 0 }
}

fn aim(objective: GavelObjective) -> Aim {
    Aim { objective, costs: vec![1.0; 8], slowdown_max: None, entities: vec![(1.0, Turn::Fairness)] }
}

fn best(objective: GavelObjective, demands: &[Demand], gpus: &[f64]) -> Vec<Vec<f64>> {
    shares(&aim(objective), demands, gpus).unwrap().by_job
}

fn rounded(shares: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let round = |share: &f64| (share * 1e3).round() / 1e3;
    shares.iter().map(|shares| shares.iter().map(round).collect()).collect()
}

/// The example of the paper: one GPU of each of two types, three jobs that are four, three and two times as fast.
#[test]
fn the_job_that_gains_most_by_the_fast_type_has_most_of_it() {
    let demands = [demand(1.0, &[4.0, 1.0]), demand(1.0, &[3.0, 1.0]), demand(1.0, &[2.0, 1.0])];
    let shares = best(GavelObjective::MaxMin, &demands, &[1.0, 1.0]);
    let against_equal = |(demand, shares): (&Demand, &Vec<f64>)| {
        let speed: f64 = demand.speeds.iter().zip(shares).map(|(speed, share)| speed * share).sum();
        speed / demand.speeds.iter().sum::<f64>() * 2.0
    };
    let least = demands.iter().zip(&shares).map(against_equal).fold(f64::INFINITY, f64::min);
    assert!(least > 2.0 / 3.0 * 1.08, "an equal share of time gives two thirds, not {least}");
    assert!(shares[0][0] > shares[2][0], "{shares:?}");
}

#[test]
fn the_fast_type_goes_to_whoever_is_fastest_there_where_the_sum_counts() {
    let two = [demand(1.0, &[4.0, 1.0]), demand(1.0, &[3.0, 1.0])];
    let shares = rounded(&best(GavelObjective::Throughput, &two, &[1.0, 1.0]));
    assert_eq!(shares, [[1.0, 0.0], [0.0, 1.0]]);
}

#[test]
fn the_longest_job_has_most_time_where_the_last_to_end_counts() {
    let long = Demand { remaining_steps: 300.0, ..demand(1.0, &[1.0]) };
    let both = rounded(&best(GavelObjective::Makespan, &[long, demand(1.0, &[1.0])], &[1.0]));
    assert_eq!(both, [[0.75], [0.25]]);
}

#[test]
fn who_has_waited_longest_catches_up_where_the_time_to_the_end_counts() {
    let late = Demand { age_s: 200.0, ..demand(1.0, &[1.0]) };
    let both = best(GavelObjective::FinishTime, &[late, demand(1.0, &[1.0])], &[1.0]);
    assert!(both[0][0] > both[1][0] && both[0][0] + both[1][0] > 0.999, "{both:?}");
}

#[test]
fn thousands_of_jobs_are_divided_into_groups_and_no_gpu_is_given_twice() {
    let demands: Vec<Demand> =
        (0..1_000).map(|job| demand(f64::from(1 + job % 4), &[1.0, 1.0 + f64::from(job % 7)])).collect();
    let gpus = [300.0, 200.0];
    let shares = best(GavelObjective::MaxMin, &demands, &gpus);
    for kind in 0..2 {
        let used: f64 = demands.iter().zip(&shares).map(|(demand, shares)| demand.gpus * shares[kind]).sum();
        assert!(used <= gpus[kind] * (1.0 + 1e-6), "{used}");
    }
    assert!(shares.iter().all(|shares| shares.iter().sum::<f64>() > 0.0));
}

fn throughputs(demands: &[Demand], shares: &[Vec<f64>]) -> Vec<f64> {
    let of = |(demand, shares): (&Demand, &Vec<f64>)| -> f64 {
        demand.speeds.iter().zip(shares).map(|(speed, share)| speed * share).sum()
    };
    demands.iter().zip(shares).map(of).collect()
}

#[test]
fn what_the_worst_off_cannot_use_goes_to_others() {
    // The first runs on the only slow GPU alone; max-min may leave the others as slow as it, against what they are due.
    let demands = [demand(1.0, &[0.1, 0.0]), demand(1.0, &[0.0, 1.0]), demand(1.0, &[0.0, 1.0])];
    let shares = best(GavelObjective::WaterFilling, &demands, &[1.0, 4.0]);
    assert_eq!(rounded(&shares), [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]);
}

#[test]
fn an_entity_has_its_weight_however_many_jobs_it_has() {
    let demands: Vec<Demand> =
        (0..5).map(|job| Demand { entity: usize::from(job > 0), ..demand(1.0, &[1.0]) }).collect();
    let aim = Aim { entities: vec![(1.0, Turn::Fairness), (2.0, Turn::Fairness)], ..aim(GavelObjective::Hierarchical) };
    let shares = shares(&aim, &demands, &[1.5]).unwrap().by_job;
    assert_eq!(rounded(&shares), [[0.5], [0.25], [0.25], [0.25], [0.25]]);
}

#[test]
fn within_an_entity_the_oldest_job_has_everything_where_it_is_first_come_first_served() {
    let mut demands: Vec<Demand> = (0..3).map(|job| Demand { age_s: f64::from(job), ..demand(1.0, &[1.0]) }).collect();
    let fifo = Aim { entities: vec![(1.0, Turn::Fifo)], ..aim(GavelObjective::Hierarchical) };
    assert_eq!(rounded(&shares(&fifo, &demands, &[1.5]).unwrap().by_job), [[0.0], [0.5], [1.0]]);
    demands[2].speeds = vec![0.0];
    assert_eq!(rounded(&shares(&fifo, &demands, &[1.5]).unwrap().by_job), [[0.5], [1.0], [0.0]]);
}

#[test]
fn the_cheap_type_is_used_unless_a_job_would_be_late_there() {
    let costs = vec![10.0, 1.0];
    let cheap = Aim { costs: costs.clone(), ..aim(GavelObjective::Cost) };
    let demands = [demand(1.0, &[4.0, 1.0]), demand(1.0, &[4.0, 1.0])];
    let found = shares(&cheap, &demands, &[1.0, 2.0]).unwrap();
    assert_eq!((rounded(&found.by_job), found.late), (vec![vec![0.0, 1.0]; 2], vec![false; 2]));
    let soon = Aim { costs, slowdown_max: Some(2.0), ..aim(GavelObjective::Cost) };
    let found = shares(&soon, &demands[..1], &[1.0, 2.0]).unwrap();
    let [speed] = throughputs(&demands[..1], &found.by_job)[..] else { panic!("{found:?}") };
    assert!((speed - 2.0).abs() < 1e-4 && found.late == [false], "{found:?}");
    // Both need half of the one fast GPU at least; a third one cannot be in time.
    let three = [demands[0].clone(), demands[1].clone(), Demand { age_s: 49.0, ..demands[0].clone() }];
    let found = shares(&soon, &three, &[1.0, 0.0]).unwrap();
    assert_eq!(found.late.iter().filter(|late| **late).count(), found.late.len() - 2, "{found:?}");
}

#[test]
fn speeds_that_are_no_numbers_are_refused_and_an_equal_share_is_there_to_fall_back_to() {
    let broken = [demand(1.0, &[f64::INFINITY, 1.0]), demand(2.0, &[1.0, 0.0])];
    for objective in [GavelObjective::Throughput, GavelObjective::WaterFilling, GavelObjective::Cost] {
        assert_eq!(shares(&aim(objective), &broken, &[2.0, 1.0]), Err(Unsolved::NotFinite), "{objective:?}");
    }
    assert_eq!(rounded(&equal_shares(&broken, &[2.0, 1.0])), [[0.5, 0.5], [0.5, 0.0]]);
}

/// A few jobs on up to three types, some of them empty or fit for nobody.
fn random_jobs() -> impl Strategy<Value = (Vec<Demand>, Vec<f64>)> {
    let speed = prop_oneof![Just(0.0), 1e-6..1e6_f64, Just(f64::MIN_POSITIVE), Just(1e300)];
    let job = (
        prop_oneof![Just(1.0), Just(2.0), Just(8.0)],
        prop::collection::vec(speed, 3),
        prop_oneof![Just(1e-6), Just(1.0), Just(65_536.0)],
        1.0..1e9_f64,
        prop_oneof![Just(0.0), 0.0..1e7_f64],
        0..2usize,
    );
    let demand = job.prop_map(|(gpus, speeds, weight, remaining_steps, age_s, entity)| Demand {
        gpus,
        speeds,
        weight,
        remaining_steps,
        age_s,
        total_steps: remaining_steps * 2.0,
        entity,
    });
    (prop::collection::vec(demand, 0..12), prop::collection::vec(prop_oneof![Just(0.0), Just(1.0), Just(24.0)], 3))
}

proptest! {
    #[test]
    fn whatever_the_objective_shares_are_within_what_there_is_or_a_refusal(
        (demands, gpus) in random_jobs(),
        slowdown_max in prop::option::of(1.0..10.0_f64),
    ) {
        use GavelObjective::{Cost, FinishTime, Hierarchical, Makespan, MaxMin, Throughput, WaterFilling};
        let entities = vec![(1.0, Turn::Fairness), (3.0, Turn::Fifo)];
        for objective in [MaxMin, WaterFilling, Hierarchical, FinishTime, Makespan, Throughput, Cost] {
            let aim = Aim { objective, costs: vec![1.0, 5.0, 0.1], slowdown_max, entities: entities.clone() };
            let shares = match shares(&aim, &demands, &gpus) {
                Ok(shares) => shares.by_job,
                Err(_) => equal_shares(&demands, &gpus),
            };
            prop_assert_eq!(shares.len(), demands.len());
            for own in &shares {
                prop_assert!(own.iter().all(|share| *share >= 0.0) && own.iter().sum::<f64>() <= 1.0 + 1e-6, "{:?}", own);
            }
            for kind in 0..gpus.len() {
                let used: f64 = demands.iter().zip(&shares).map(|(demand, own)| demand.gpus * own[kind]).sum();
                prop_assert!(used <= gpus[kind] + 1e-5 * gpus[kind].max(1.0), "{:?}: {} of {}", objective, used, gpus[kind]);
            }
        }
    }
}
