//! What jobs of one application are lent of each other.

use pollux_model::{BatchLimits, Parallelism};

use super::*;

/// Measured on so many replicas, with so many seconds of compute and of synchronisation.
fn profile(replicas_profiled: u32, compute_s: f64, sync_s: f64) -> TypeProfile {
    let params = StepParams {
        alpha_compute: compute_s,
        beta_compute: 1e-8,
        alpha_internode: sync_s,
        beta_internode: 1e-8,
        alpha_intranode: sync_s,
        beta_intranode: 1e-8,
        gamma: 1.0,
    };
    let goodput = Goodput {
        throughput: Parallelism::DataParallel.model(params).unwrap(),
        noise: NoiseStatistics::new(1.0, f64::from(replicas_profiled)).unwrap(),
        limits: BatchLimits::new(64, 1024, 8, 128).unwrap(),
    };
    TypeProfile { gpu_type: GpuType::default(), goodput, replicas_profiled, is_estimated: false }
}

fn after_one_job(measured: TypeProfile) -> TypeKnowledge {
    let mut knowledge = TypeKnowledge::new(true);
    knowledge.learn(Timestamp(1), "bert", &[measured], Some(1_000));
    knowledge
}

fn lent(knowledge: &TypeKnowledge, own: &[TypeProfile]) -> Vec<TypeProfile> {
    let mut profiles = own.to_vec();
    knowledge.lend(Some("bert"), &mut profiles, None);
    profiles
}

#[test]
fn a_job_that_was_never_measured_is_lent_what_its_application_did_and_the_noise_it_began_with() {
    let (first, later) = (profile(2, 0.1, 0.02), profile(8, 0.11, 0.03));
    let mut knowledge = after_one_job(first);
    knowledge.learn(Timestamp(2), "bert", &[later], None);
    let expected =
        TypeProfile { goodput: Goodput { noise: first.goodput.noise, ..later.goodput }, is_estimated: true, ..later };
    assert_eq!(lent(&knowledge, &[]), [expected]);
    assert_eq!(knowledge.epoch_samples(Some("bert")), Some(1_000));
    let mut elsewhere = Vec::new();
    knowledge.lend(Some("bert"), &mut elsewhere, Some(&[GpuType(1)]));
    knowledge.lend(Some("ncf"), &mut elsewhere, None);
    knowledge.lend(None, &mut elsewhere, None);
    assert_eq!(elsewhere, [], "on types that it may not use, of other applications and without a name nothing");
}

#[test]
fn a_job_keeps_its_own_noise_and_what_it_measured_otherwise_than_others_of_its_application() {
    let of_others = profile(8, 0.1, 0.02);
    let knowledge = after_one_job(of_others);
    let alike = profile(2, 0.12, 0.02);
    let expected =
        TypeProfile { goodput: Goodput { throughput: of_others.goodput.throughput, ..alike.goodput }, ..of_others };
    assert_eq!(lent(&knowledge, &[alike]), [expected]);
    for unlike in [profile(2, 0.3, 0.02), profile(2, 0.1, 0.5), profile(16, 0.1, 0.02)] {
        assert_eq!(lent(&knowledge, &[unlike]), [unlike], "slower, slower together, or measured on more");
    }
}

#[test]
fn nothing_is_lent_where_the_policy_does_not_plan_by_it() {
    let mut knowledge = TypeKnowledge::new(false);
    knowledge.learn(Timestamp(1), "bert", &[profile(8, 0.1, 0.02)], Some(1_000));
    knowledge.end(Timestamp(1), "bert", EndedJob { samples: 5.0, samples_declared: None });
    assert_eq!(lent(&knowledge, &[]), []);
    assert_eq!((knowledge.ended(Some("bert")), knowledge.epoch_samples(Some("bert"))), (&[][..], None));
}

#[test]
fn of_too_many_applications_and_ended_jobs_the_oldest_are_forgotten() {
    let mut knowledge = TypeKnowledge::new(true);
    let ended = |samples: u32| EndedJob { samples: f64::from(samples), samples_declared: None };
    for number in 0..=APPLICATIONS_MAX {
        let now = Timestamp(if number == 0 { 5_000 } else { number as u64 });
        knowledge.end(now, &number.to_string(), ended(1));
    }
    assert_eq!(knowledge.applications().count(), APPLICATIONS_MAX);
    assert_eq!([0, 1, 2].map(|number: u32| knowledge.ended(Some(&number.to_string())).len()), [1, 0, 1]);
    (2..=40).for_each(|samples| knowledge.end(Timestamp(9_000), "0", ended(samples)));
    let kept = knowledge.ended(Some("0"));
    assert_eq!((kept.len(), kept[0], kept[31]), (ENDED_MAX, ended(9), ended(40)));
    knowledge.end(Timestamp(9_001), "0", EndedJob { samples: f64::NAN, samples_declared: None });
    assert_eq!(knowledge.ended(Some("0"))[31], ended(40), "no size at all");
}
