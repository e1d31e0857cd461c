//! One process, without a scheduler.

use std::fs;

use crate::processes::{Folder, Trainer, eventually, number};

const SAMPLES: u32 = 1000;

fn run(folder: &Folder, name: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let code = Trainer::start(folder, name, arguments, &[]).wait();
    (code, fs::read_to_string(folder.path(&format!("{name}.log"))).unwrap())
}

#[test]
fn a_training_learns_and_says_so() {
    for optimiser in ["sgd", "adam"] {
        let folder = Folder::new(&format!("alone-{optimiser}"));
        let audit = folder.path("audit");
        let arguments = ["--samples", "2000", "--epochs", "15", "--optimiser", optimiser, "--audit", &audit];
        let (code, log) = run(&folder, "alone", &arguments);
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("done: 15 epochs, 30000 samples"), "{log}");
        let (losses, accuracy) = folder.losses();
        assert!(losses.len() == 15 && losses[14] < 0.7 * losses[0] && accuracy > 0.6, "{log}");
        assert_eq!(folder.audited_epochs(2000), 15);
        let noise: Vec<f64> = log.lines().filter_map(|line| number(line, "noise scale ")).collect();
        assert!(noise.len() == 15 && noise[14] > 1.5 * noise[0], "noise did not grow: {log}");
    }
}

#[test]
fn a_training_that_was_stopped_carries_on_at_the_very_sample_as_if_it_had_not_been() {
    let folder = Folder::new("stopped");
    let (pace, audit, checkpoints) = (folder.pace(0.01), folder.path("audit"), folder.path("checkpoints"));
    let common = ["--samples", "1000", "--epochs", "12", "--fixed-batch", "--batch-size", "48"];
    let saved = [&common[..], &["--audit", &audit, "--checkpoint-dir", &checkpoints]].concat();
    let slow = [&saved[..], &["--pace", &pace]].concat();
    let mut stops = 0;
    while stops < 3 {
        let name = format!("part-{stops}");
        let before = folder.audited_epochs(SAMPLES);
        let mut trainer = Trainer::start(&folder, &name, &slow, &[]);
        eventually("another epoch", || folder.audited_epochs(SAMPLES) > before);
        trainer.signal("TERM");
        assert_eq!(trainer.wait(), Some(143));
        stops += 1;
    }
    let (code, log) = run(&folder, "part-9", &saved);
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("carrying on in epoch") && log.contains("done: 12 epochs, 12000 samples"), "{log}");
    assert_eq!(folder.audited_epochs(SAMPLES), 12);

    // What is done needs no more doing.
    assert_eq!(run(&folder, "part-9-again", &saved).0, Some(0));
    assert_eq!(folder.audited_epochs(SAMPLES), 12);

    let whole = Folder::new("not-stopped");
    assert_eq!(run(&whole, "whole", &common).0, Some(0));
    assert_eq!(folder.losses(), whole.losses());
}

#[test]
fn progress_may_be_the_goal_instead_of_passes() {
    let folder = Folder::new("progress");
    // Nothing is proven by a fixed baseline batch but its own progress: as many epochs as passes.
    let arguments =
        ["--samples", "1000", "--epochs", "4", "--until", "progress", "--fixed-batch", "--batch-size", "50"];
    let (code, log) = run(&folder, "fixed", &arguments);
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("done: 4 epochs, 4000 samples"), "{log}");
}

#[test]
fn mistakes_are_one_line_and_exit_with_2() {
    let folder = Folder::new("mistakes");
    for (arguments, expected) in [
        (&["--epochs", "0"][..], "'--epochs <N>'"),
        (&["--label-noise", "2"], "expected numbers from 0 to 0.9"),
        (&["--batch-size", "4096"], "batch_size_baseline 4096 and batch_size_max 1024"),
        (&["--local-batch", "7"], "two whole numbers like 1..128"),
        (&["--pace", "splendid"], "expected good, medium, poor"),
        (&["--pages", "9"], "'--pages'"),
    ] {
        let (code, log) = run(&folder, "mistake", arguments);
        assert_eq!(code, Some(2), "{log}");
        assert!(log.starts_with("error: ") && log.contains(expected) && log.lines().count() == 1, "{log}");
    }
    let half = Trainer::start(&folder, "half", &[], &[("POLLUX_JOB_ID", "12".to_owned())]).wait();
    let log = fs::read_to_string(folder.path("half.log")).unwrap();
    assert_eq!((half, log.as_str()), (Some(2), HALF));
}

const HALF: &str = "error: POLLUX_URL is not set, but POLLUX_JOB_ID is; expected both or neither\n";

#[test]
fn a_paced_training_says_so_and_a_quiet_one_says_nothing() {
    let folder = Folder::new("paced");
    let pace = folder.pace(0.001);
    let (code, log) = run(&folder, "paced", &["--samples", "256", "--epochs", "1", "--pace", &pace]);
    assert!(code == Some(0) && log.starts_with(&format!("paced like {pace}: each step sleeps")), "{log}");
    assert_eq!(run(&folder, "quiet", &["--samples", "256", "--epochs", "1", "-q", "--pace", &pace]).1, "");
}

#[test]
fn a_checkpoint_of_another_training_is_refused() {
    let folder = Folder::new("another");
    let checkpoints = folder.path("checkpoints");
    let arguments = |width| ["--samples", "256", "--epochs", "1", "--checkpoint-dir", &checkpoints, "--width", width];
    assert_eq!(run(&folder, "first", &arguments("8")).0, Some(0));
    let (code, log) = run(&folder, "second", &arguments("9"));
    assert!(code == Some(1) && log.contains("belongs to another training"), "{log}");
}
