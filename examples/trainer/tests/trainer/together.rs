//! Several processes of a fixed group, as any launcher would start them.

use crate::processes::{Folder, Trainer, eventually, free_port};

fn start(folder: &Folder, count: usize, arguments: &[&str]) -> Vec<Trainer> {
    let port = free_port();
    (0..count).map(|rank| Trainer::start_rank(folder, rank, count, port, arguments)).collect()
}

fn wait(trainers: &mut [Trainer]) -> Vec<Option<i32>> {
    trainers.iter_mut().map(Trainer::wait).collect()
}

#[test]
fn one_two_and_four_processes_learn_the_same() {
    for optimiser in ["sgd", "adam"] {
        let mut curves = Vec::new();
        for count in [1, 2, 4] {
            let folder = Folder::new(&format!("same-{optimiser}-{count}"));
            let arguments =
                ["--samples", "1000", "--epochs", "4", "--batch-size", "64", "--fixed-batch", "--optimiser", optimiser];
            assert_eq!(wait(&mut start(&folder, count, &arguments)), vec![Some(0); count], "{}", folder.logs());
            curves.push(folder.losses().0);
        }
        for curve in &curves {
            assert_eq!(curve.len(), 4);
            for (loss, expected) in curve.iter().zip(&curves[0]) {
                assert!((loss - expected).abs() < 5e-4, "{curves:?}");
            }
        }
    }
}

#[test]
fn a_batch_that_is_tuned_while_several_train_visits_every_sample_once() {
    let folder = Folder::new("tuned");
    let (pace, audit) = (folder.pace(0.002), folder.path("audit"));
    let arguments = ["--samples", "1000", "--epochs", "12", "--batch-size", "20", "--pace", &pace, "--audit", &audit];
    assert_eq!(wait(&mut start(&folder, 3, &arguments)), [Some(0); 3], "{}", folder.logs());
    assert_eq!(folder.audited_epochs(1000), 12);
    let logs = folder.logs();
    let batches: Vec<_> = logs.lines().filter_map(|line| line.split("batch ").nth(1)?.split(' ').next()).collect();
    // Steps that cost the same whatever their batch make a larger one pay.
    let (first, last): (u32, u32) = (batches[0].parse().unwrap(), batches.last().unwrap().parse().unwrap());
    assert!(first == 21 && last > 4 * first, "{logs}");
}

#[test]
fn when_one_of_several_is_told_to_stop_all_is_saved_and_all_stop() {
    let folder = Folder::new("one-stopped");
    let (pace, audit, checkpoints) = (folder.pace(0.005), folder.path("audit"), folder.path("checkpoints"));
    let arguments = [
        "--samples",
        "500",
        "--epochs",
        "100000",
        "--pace",
        &pace,
        "--audit",
        &audit,
        "--checkpoint-dir",
        &checkpoints,
    ];
    let mut trainers = start(&folder, 3, &arguments);
    eventually("an epoch", || folder.audited_epochs(500) > 0);
    trainers[1].signal("TERM");
    // Without a scheduler the instruction of one is the instruction for all.
    assert_eq!(wait(&mut trainers), [Some(143); 3], "{}", folder.logs());
    let done = folder.audited_epochs(500);
    let epochs = (done + 1).to_string();
    let arguments = [&["--epochs", &epochs, "--samples", "500"], &arguments[6..]].concat();
    assert_eq!(wait(&mut start(&folder, 2, &arguments)), [Some(0); 2], "{}", folder.logs());
    assert_eq!(folder.audited_epochs(500), done + 1);
}
