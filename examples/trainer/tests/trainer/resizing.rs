//! Groups that grow and shrink while they train.

use pollux_model::BatchMode;

use crate::processes::{Folder, Trainer, eventually};
use crate::scheduler::Job;

const SAMPLES: u32 = 1000;

fn job(name: &str, step_s: f64, more: &[&str]) -> Job {
    let folder = Folder::new(name);
    let (pace, audit) = (folder.pace(step_s), folder.path("audit"));
    let arguments = [&["--samples", "1000", "--epochs", "100000", "--pace", &pace, "--audit", &audit], more].concat();
    Job::new(folder, &arguments)
}

fn epochs(job: &Job) -> u32 {
    job.folder.audited_epochs(SAMPLES)
}

/// Trains a little under the group as it is.
fn train_on(job: &Job) {
    let before = epochs(job);
    eventually("another epoch", || epochs(job) > before);
}

/// Stops the job, and lets a group of another size finish it.
fn finish(job: &mut Job, count: usize, more: &[&str]) -> u32 {
    job.stop();
    let total = epochs(job) + 3;
    let audit = job.folder.path("audit");
    let arguments = ["--samples", "1000", "--epochs", &total.to_string(), "--audit", &audit];
    job.set_arguments(&[&arguments[..], more].concat());
    job.launch(count);
    job.expect_exits(0);
    assert_eq!(epochs(job), total);
    total
}

#[test]
fn a_group_grows_shrinks_and_loses_its_rank_0_without_losing_or_repeating_a_sample() {
    let mut job = job("resized", 0.01, &["--fixed-batch"]);
    job.launch(2);
    train_on(&job);
    let mut pauses = vec![("2 to 4", job.resize(&[], 2))];
    train_on(&job);
    // Only rank 2 stays, which then leads.
    let group = job.group.clone();
    pauses.push(("4 to 1", job.resize(&[group[0], group[1], group[3]], 0)));
    assert_eq!(job.group, [group[2]]);
    train_on(&job);
    pauses.push(("1 to 3", job.resize(&[], 2)));
    train_on(&job);
    // Rank 0 leaves and others come, in one go.
    pauses.push(("3 to 4, rank 0 replaced", job.resize(&[job.group[0]], 2)));
    train_on(&job);
    for (change, pause_s) in pauses {
        println!("{change}: paused for {:.1} ms", pause_s * 1e3);
    }
    let total = finish(&mut job, 2, &["--fixed-batch"]);

    let (losses, accuracy) = job.folder.losses();
    assert_eq!(losses.len() as u32, total, "every epoch was told once: {}", job.folder.logs());
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let third = losses.len() / 3;
    assert!(mean(&losses[..third]) > mean(&losses[losses.len() - third..]), "{losses:?}");

    let fixed = Folder::new("not-resized");
    let arguments = ["--samples", "1000", "--epochs", &total.to_string(), "--fixed-batch"];
    assert_eq!(Trainer::start(&fixed, "fixed", &arguments, &[]).wait(), Some(0));
    let (_, expected) = fixed.losses();
    assert!(accuracy > expected - 0.05, "{accuracy} {expected}");
}

#[test]
fn a_tuned_group_reports_what_it_learned_at_every_size() {
    let settings = ["--batch-size", "32", "--optimiser", "adam"];
    let mut job = job("tuned-resized", 0.003, &settings);
    job.launch(1);
    train_on(&job);
    job.resize(&[], 3);
    train_on(&job);
    let mut told = None;
    eventually("a report of the larger group", || {
        told = job.scheduler.last_report().filter(|last| last.generation == 2).map(|last| last.report);
        told.as_ref().is_some_and(|report| {
            let profiled = report.types.first().is_some_and(|learned| learned.replicas_profiled == 4);
            profiled && report.noise.is_some() && report.samples_per_s.is_some_and(|rate| rate > 0.0)
        })
    });
    let report = told.unwrap();
    assert!(u64::from(report.progress.epochs) * u64::from(SAMPLES) <= report.progress.samples, "{report:?}");
    // The model that was paced by is the model that was learned.
    let step_s = report.types[0].model.params().compute_s(8.0);
    assert!((step_s / 0.003 - 1.0).abs() < 0.01, "{step_s}");
    finish(&mut job, 1, &settings);
}

#[test]
fn survivors_train_on_while_they_wait_for_newcomers_and_take_whom_a_later_change_sends() {
    let mut job = job("waiting", 0.005, &["--fixed-batch"]);
    job.launch(3);
    // One of two newcomers never comes; meanwhile rank 2 has to go.
    job.change(&[job.group[2]], 2);
    let (leaves, missing) = (17 + 2, *job.group.last().unwrap());
    drop(job.replicas.remove(&missing));
    assert_eq!(job.replicas.remove(&leaves).unwrap().wait(), Some(143));
    train_on(&job);
    train_on(&job);
    // The next change keeps the newcomer that waits.
    job.group.retain(|&replica| replica != missing);
    let waiting = *job.group.last().unwrap();
    job.change(&[], 1);
    job.wait_ready();
    assert!(job.group.contains(&waiting) && job.group.len() == 4);
    train_on(&job);
    finish(&mut job, 1, &[]);
}

#[test]
fn whatever_the_series_of_changes_no_sample_is_lost_or_repeated() {
    let mut job = job("any-changes", 0.002, &[]);
    job.launch(2);
    let mut trained = job.group.clone();
    let mut dice = 20_210_714_u64;
    let mut roll = |sides: usize| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) as usize % sides
    };
    for _ in 0..15 {
        // Somebody who trains must stay; those who have not joined yet may go again.
        let stays = trained[roll(trained.len())];
        let remove: Vec<u64> = job.group.iter().copied().filter(|&replica| replica != stays && roll(3) == 0).collect();
        let add = roll(3).min(5_usize.saturating_sub(job.group.len() - remove.len()));
        job.change(&remove, add);
        for replica in &remove {
            let code = job.replicas.remove(replica).unwrap().wait();
            // One that had not even started to listen was ended by the signal.
            let expected = code == Some(143) || (code.is_none() && !trained.contains(replica));
            assert!(expected, "{replica} ended with {code:?}: {}", job.folder.logs());
        }
        // Now and then the next change comes before this one is complete.
        if roll(3) > 0 {
            job.wait_ready();
            trained.clone_from(&job.group);
        } else {
            trained.retain(|replica| !remove.contains(replica));
        }
    }
    job.wait_ready();
    train_on(&job);
    finish(&mut job, 3, &[]);
}

#[test]
fn a_training_goes_on_to_its_end_without_the_scheduler() {
    let folder = Folder::new("orphaned");
    let (pace, audit) = (folder.pace(0.005), folder.path("audit"));
    let mut job = Job::new(folder, &["--samples", "1000", "--epochs", "20", "--pace", &pace, "--audit", &audit]);
    job.launch(2);
    let Job { scheduler, mut replicas, folder, .. } = job;
    drop(scheduler);
    for trainer in replicas.values_mut() {
        assert_eq!(trainer.wait(), Some(0), "{}", folder.logs());
    }
    assert_eq!(folder.audited_epochs(SAMPLES), 20);
}

/// The batch that the newest report tells of, at the size of the group.
fn reported_batch(job: &Job) -> Option<u32> {
    let report = job.scheduler.last_report().filter(|report| report.generation == job.generation)?.report;
    let tuning = report.tuning?;
    Some(job.group.len() as u32 * tuning.local_batch * (tuning.accumulation_steps + 1))
}

#[test]
fn a_batch_that_the_scheduler_leaves_to_the_user_is_kept_at_every_size_and_types_are_reported_by_name() {
    let mut job = job("fixed", 0.002, &["--batch-size", "64", "--max-batch-size", "4096"]);
    job.batch = BatchMode::Fixed { batch_size: Some(96) };
    job.launch(2);
    eventually("a report", || reported_batch(&job) == Some(96));
    job.resize(&[], 1);
    eventually("a report of three", || reported_batch(&job) == Some(96));
    let measured = || job.scheduler.last_report().is_some_and(|report| !report.report.types.is_empty());
    eventually("a model", measured);
    let types = job.scheduler.last_report().unwrap().report.types;
    assert_eq!(types[0].gpu_type.as_str(), "t4");
    // Nobody named a batch: the baseline is kept.
    job.batch = BatchMode::Fixed { batch_size: None };
    job.resize(&[job.group[2]], 0);
    eventually("a report of the baseline", || reported_batch(&job) == Some(64));
    job.batch = BatchMode::Adaptive;
    job.resize(&[], 1);
    eventually("a larger batch", || reported_batch(&job).is_some_and(|batch| batch > 96));
    job.stop();
}
