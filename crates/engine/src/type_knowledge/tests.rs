use pollux_model::{BatchLimits, NoiseStatistics, Parallelism};

use super::*;

const T4: GpuType = GpuType(0);
const A100: GpuType = GpuType(1);
const V100: GpuType = GpuType(2);

/// A job that takes so many seconds to compute any micro-batch, and to synchronise on several nodes.
fn profile(gpu_type: GpuType, compute_s: f64, sync_s: f64, replicas_profiled: u32) -> TypeProfile {
    let params = StepParams {
        alpha_compute: compute_s,
        beta_compute: 1e-8,
        alpha_internode: sync_s,
        beta_internode: 1e-8,
        alpha_intranode: sync_s / 2.0,
        beta_intranode: 1e-8,
        gamma: 1.0,
    };
    let goodput = Goodput {
        throughput: Parallelism::DataParallel.model(params).unwrap(),
        noise: NoiseStatistics::new(1.0, 20.0).unwrap(),
        limits: BatchLimits::new(64, 1024, 16, 64).unwrap(),
    };
    TypeProfile { gpu_type, goodput, replicas_profiled, is_estimated: false }
}

fn learned(application: &str, measured: &[TypeProfile]) -> TypeKnowledge {
    let mut knowledge = TypeKnowledge::default();
    knowledge.learn(Timestamp(1), application, measured, None);
    knowledge
}

fn compared(jobs: &[&[TypeProfile]]) -> TypeKnowledge {
    let mut knowledge = TypeKnowledge::default();
    knowledge.compare(jobs.iter().copied());
    knowledge
}

/// What a job with these profiles is taken to do on so many types.
fn completed(
    knowledge: &TypeKnowledge,
    application: Option<&str>,
    own: &[TypeProfile],
    types: usize,
) -> Vec<TypeProfile> {
    let mut profiles = own.to_vec();
    knowledge.complete(application, &mut profiles, types, None);
    profiles
}

/// Seconds of compute and of synchronisation over several nodes, in thousandths.
fn thousandths(profile: &TypeProfile) -> (u32, u32) {
    let params = profile.goodput.throughput.params();
    ((params.alpha_compute * 1e3).round() as u32, (params.alpha_internode * 1e3).round() as u32)
}

#[test]
fn a_type_that_a_job_never_ran_on_computes_as_much_faster_as_for_those_that_ran_on_both() {
    let both = [profile(T4, 0.4, 0.1, 4), profile(A100, 0.1, 0.1, 4)];
    let knowledge = compared(&[&both]);
    let told = completed(&knowledge, None, &[profile(T4, 0.8, 0.3, 2)], 2);
    assert_eq!(told.iter().map(thousandths).collect::<Vec<_>>(), [(800, 300), (200, 300)]);
    assert_eq!(told.iter().map(|profile| profile.is_estimated).collect::<Vec<_>>(), [false, true]);
    assert_eq!(told[1].replicas_profiled, 0, "nothing was measured there");
    let back = completed(&knowledge, None, &[profile(A100, 0.2, 0.3, 2)], 2);
    assert_eq!(thousandths(&back[0]), (800, 300), "the other way round it is as much slower");
}

#[test]
fn the_median_of_all_jobs_counts_and_small_changes_are_no_news() {
    let job = |times: f64| [profile(T4, 0.1 * times, 0.1, 1), profile(A100, 0.1, 0.1, 1)];
    let jobs = [job(3.0), job(4.0), job(40.0)];
    let mut knowledge = compared(&[&jobs[0], &jobs[1], &jobs[2]]);
    assert_eq!(thousandths(&completed(&knowledge, None, &[profile(T4, 0.4, 0.1, 1)], 2)[1]).0, 100);
    let version = knowledge.version();
    let nearly = [job(4.1)];
    knowledge.compare(nearly.iter().map(|job| &job[..]));
    assert_eq!(knowledge.version(), version);
    let other = [job(8.0)];
    knowledge.compare(other.iter().map(|job| &job[..]));
    assert!(knowledge.version() > version);
    assert_eq!(thousandths(&completed(&knowledge, None, &[profile(T4, 0.4, 0.1, 1)], 2)[1]).0, 50);
}

#[test]
fn where_nobody_ran_on_both_types_they_are_taken_to_be_alike() {
    let told = completed(&TypeKnowledge::default(), None, &[profile(A100, 0.2, 0.3, 2)], 2);
    assert_eq!(told.iter().map(thousandths).collect::<Vec<_>>(), [(200, 300), (200, 300)]);
    assert_eq!(told.iter().map(|profile| profile.is_estimated).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn what_others_of_its_application_measured_is_better_than_a_ratio() {
    let mut knowledge = learned("bert", &[profile(T4, 0.4, 0.1, 4), profile(A100, 0.05, 0.02, 8)]);
    let other = [profile(T4, 0.4, 0.1, 4), profile(A100, 0.2, 0.1, 4)];
    knowledge.compare([&other[..]].into_iter());
    let own = [profile(T4, 0.42, 0.12, 2)];
    assert_eq!(thousandths(&completed(&knowledge, Some("bert"), &own, 2)[1]), (50, 20));
    assert_eq!(thousandths(&completed(&knowledge, Some("resnet"), &own, 2)[1]), (210, 120), "half, as for others");
    assert_eq!(thousandths(&completed(&knowledge, None, &own, 2)[1]), (210, 120));
    let unlike = [profile(T4, 2.0, 0.12, 2)];
    assert_eq!(
        thousandths(&completed(&knowledge, Some("bert"), &unlike, 2)[1]),
        (1_000, 120),
        "its own steps differ from its application's, so those say nothing of it"
    );
}

#[test]
fn whoever_measured_on_more_replicas_of_an_application_knows_more() {
    let mut knowledge = learned("bert", &[profile(T4, 0.4, 0.1, 4), profile(A100, 0.1, 0.1, 1)]);
    knowledge.learn(Timestamp(1), "bert", &[profile(A100, 0.3, 0.3, 1)], None);
    let own = [profile(T4, 0.4, 0.1, 2)];
    assert_eq!(thousandths(&completed(&knowledge, Some("bert"), &own, 2)[1]), (100, 100), "one is no more than one");
    knowledge.learn(Timestamp(1), "bert", &[profile(A100, 0.2, 0.2, 2)], None);
    assert_eq!(thousandths(&completed(&knowledge, Some("bert"), &own, 2)[1]), (200, 200));
    let guessed = TypeProfile { is_estimated: true, ..profile(A100, 0.9, 0.9, 64) };
    let version = knowledge.version();
    knowledge.learn(Timestamp(1), "bert", &[guessed], None);
    assert_eq!(knowledge.version(), version, "an estimate teaches nothing");
}

#[test]
fn what_was_measured_on_several_replicas_is_never_overwritten() {
    let knowledge = learned("bert", &[profile(T4, 0.1, 0.1, 64), profile(A100, 0.1, 0.1, 64)]);
    let own = [profile(T4, 0.4, 0.2, 2), profile(A100, 0.3, 0.1, 8)];
    assert_eq!(completed(&knowledge, Some("bert"), &own, 2), own);
}

#[test]
fn what_was_measured_on_one_replica_alone_keeps_its_compute_and_learns_how_it_synchronises() {
    let own = [profile(T4, 0.4, 0.2, 4), profile(A100, 0.1, 1e-6, 1)];
    let told = completed(&TypeKnowledge::default(), None, &own, 2);
    assert_eq!(told[0], own[0]);
    assert_eq!(thousandths(&told[1]), (100, 50), "a quarter of what it takes where it computes four times as long");
    assert_eq!((told[1].is_estimated, told[1].replicas_profiled), (false, 1));
}

#[test]
fn only_types_that_a_job_may_run_on_are_estimated_and_before_it_measured_anything_none_is() {
    let knowledge = TypeKnowledge::default();
    let mut profiles = vec![profile(A100, 0.2, 0.3, 2)];
    knowledge.complete(None, &mut profiles, 3, Some(&[A100, V100]));
    assert_eq!(profiles.iter().map(|profile| profile.gpu_type).collect::<Vec<_>>(), [A100, V100]);
    assert!(completed(&knowledge, Some("bert"), &[], 3).is_empty());
    let alone = [profile(T4, 0.2, 0.3, 1)];
    assert_eq!(completed(&knowledge, None, &alone, 1), alone, "there is one type");
}

#[test]
fn what_was_saved_is_taken_up_but_for_what_makes_no_sense() {
    let mut knowledge = TypeKnowledge::default();
    knowledge.resume([(T4, A100, 0.25), (A100, T4, 4.0), (T4, V100, f64::NAN), (A100, V100, -1.0)].into_iter());
    assert_eq!(knowledge.ratios().collect::<Vec<_>>(), [(T4, A100, 0.25)]);
    let told = completed(&knowledge, None, &[profile(T4, 0.4, 0.1, 2)], 3);
    assert_eq!(told.iter().map(|profile| thousandths(profile).0).collect::<Vec<_>>(), [400, 100, 400]);
}
