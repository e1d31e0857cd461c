//! Ranks that vanish.

use crate::processes::{Folder, eventually};
use crate::scheduler::Job;

const SAMPLES: u32 = 1000;

/// Kills the member of a rank, and lets the rest notice and the job start again.
fn lose(name: &str, rank: usize) {
    let folder = Folder::new(name);
    let (pace, audit) = (folder.pace(0.005), folder.path("audit"));
    let common = ["--samples", "1000", "--audit", &audit, "--checkpoint-every", "0.05"];
    let mut job = Job::new(folder, &[&common[..], &["--epochs", "100000", "--pace", &pace]].concat());
    for _ in 0..2 {
        job.launch(3);
        let before = job.folder.audited_epochs(SAMPLES);
        eventually("two epochs", || job.folder.audited_epochs(SAMPLES) >= before + 2);
        let mut killed = job.replicas.remove(&job.group[rank]).unwrap();
        killed.signal("KILL");
        assert_eq!(killed.wait(), None);
        job.expect_exits(75);
    }
    let total = (job.folder.audited_epochs(SAMPLES) + 2).to_string();
    job.set_arguments(&[&common[..], &["--epochs", &total]].concat());
    job.launch(2);
    job.expect_exits(0);
    assert_eq!(job.folder.audited_epochs(SAMPLES).to_string(), total);
    let carried_on = job.folder.logs().matches("carrying on in epoch").count();
    assert_eq!(carried_on, 2, "{}", job.folder.logs());
}

#[test]
fn a_killed_rank_ends_the_group_which_carries_on_with_exact_counts() {
    lose("killed-rank-1", 1);
}

#[test]
fn a_killed_rank_0_ends_the_group_which_carries_on_from_the_last_checkpoint_with_exact_counts() {
    lose("killed-rank-0", 0);
}

#[test]
fn a_signal_that_the_scheduler_does_not_explain_saves_the_group_and_ends_it() {
    let folder = Folder::new("unexplained");
    let (pace, audit) = (folder.pace(0.005), folder.path("audit"));
    let arguments = ["--samples", "1000", "--epochs", "100000", "--audit", &audit, "--pace", &pace];
    let mut job = Job::new(folder, &arguments);
    job.launch(2);
    let mut told = job.replicas.remove(&job.group[1]).unwrap();
    told.signal("TERM");
    assert_eq!(told.wait(), Some(143));
    job.expect_exits(75);
    let done = job.folder.audited_epochs(SAMPLES);
    let total = (done + 1).to_string();
    job.set_arguments(&["--samples", "1000", "--epochs", &total, "--audit", &audit]);
    job.launch(1);
    job.expect_exits(0);
    assert_eq!(job.folder.audited_epochs(SAMPLES), done + 1);
}
