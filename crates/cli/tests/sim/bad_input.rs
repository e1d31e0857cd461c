use std::fs;

use super::{WORKLOAD, folder, sim, workload};

/// One line on stderr, nothing on stdout, exit code 2.
fn check(args: &[&str], expected: &str) {
    let result = sim(args);
    assert_eq!((result.code, result.stdout.as_str()), (Some(2), ""), "{args:?}: {}", result.stderr);
    assert_eq!(result.stderr, format!("error: {expected}\n"), "{args:?}");
}

fn check_workload(test: &str, rows: &str, expected: &str) {
    let path = workload(test, &format!("name,time,application,num_replicas,batch_size\n{rows}"));
    let path = path.to_str().unwrap();
    check(&["run", "--policy", "fifo", "--workload", path], &expected.replace("FILE", path));
}

#[test]
fn unknown_and_repeated_policies() {
    let result = sim(&["compare", "--policy", "fifo,magic"]);
    assert_eq!(result.code, Some(2));
    assert!(result.stderr.starts_with("error: policy: unknown policy \"magic\": expected "), "{}", result.stderr);
    assert_eq!(result.stderr.lines().count(), 1);
    check(&["run", "--policy", "fifo,fifo"], "policy fifo is given more than once; expected once");
    check(&["run", "--seed", "1,2,1"], "seed 1 is given more than once; expected once");
}

#[test]
fn contradictory_clusters() {
    let shape = "expected NODESxGPUS such as 16x4, or a .toml file of node groups";
    check(&["run", "--cluster", "16"], &format!("cluster: cluster \"16\"; {shape}"));
    check(&["run", "--cluster", "0x4"], "cluster: 0 nodes; expected 1 to 100000 in all, and 1 or more per group");
    check(&["run", "--cluster", "4x0"], "cluster: 0 GPUs per node; expected 1 to 1024");
}

#[test]
fn ranges_of_nodes_that_are_none() {
    check(&["run", "--autoscale", "9..8"], "nodes_min 9 is above nodes_max 8");
    check(&["run", "--autoscale", "0..8"], "nodes_min 0: expected whole numbers from 1 to 100000");
    check(&["run", "--autoscale", "0..0"], "nodes_min 0: expected whole numbers from 1 to 100000");
    for value in ["16", "..", "1..", "..8", "1..x", "1...8", "-1..8"] {
        let result = sim(&["run", &format!("--autoscale={value}")]);
        let accepted = "expected the fewest and the most nodes, such as 1..16";
        assert_eq!((result.code, result.stdout.as_str()), (Some(2), ""), "{value}");
        assert!(result.stderr.contains(accepted), "{value}: {}", result.stderr);
    }
}

#[test]
fn settings_out_of_their_range() {
    check(&["run", "--interval", "0"], "interval 0; expected 1 to 86400 seconds");
    check(&["run", "--interval", "NaN"], "interval NaN; expected 1 to 86400 seconds");
    check(&["run", "--restart-delay", "-1"], "restart delay -1; expected 0 to 86400 seconds");
    check(&["run", "--resume-delay", "-1"], "resume delay -1; expected 0 to 86400 seconds");
    check(&["run", "--interference", "1"], "interference 1; expected a share from 0 to 0.99");
    check(&["run", "--failures", "-1"], "failures per node and day -1; expected 0 to 1000");
    check(&["run", "--generate-jobs", "0"], "jobs 0 at load 1; expected 1 to 100000 jobs in all");
    check(&["run", "--load", "-2"], "jobs 160 at load -2; expected 1 to 100000 jobs in all");
    for args in [&["--declare-epochs", "perhaps"][..], &["-o", "yaml"], &["--x"]] {
        let result = sim(&[&["run"], args].concat());
        assert_eq!((result.code, result.stdout.as_str()), (Some(2), ""), "{args:?}");
    }
}

#[test]
fn numbers_that_are_none() {
    let seeds = "whole numbers from 0 to 18446744073709551615";
    for (option, value, accepted) in [
        ("--interval", "abc", "seconds from 1 to 86400"),
        ("--restart-delay", "abc", "seconds from 0 to 86400"),
        ("--resume-delay", "abc", "seconds from 0 to 86400"),
        ("--interference", "abc", "a share from 0 to 0.99"),
        ("--failures", "x", "numbers from 0 to 1000"),
        ("--failure-seed", "-1", seeds),
        ("--seed", "x", seeds),
        ("--seed", "-1", seeds),
        ("--load", "x", "numbers above 0"),
        ("--generate-jobs", "-5", "whole numbers from 1 to 100000"),
        ("--jobs", "0", "whole numbers from 1 to 1024"),
        ("--jobs", "-1", "whole numbers from 1 to 1024"),
    ] {
        check(&["run", option, value], &format!("{option} is {value:?}; expected {accepted}"));
    }
}

#[test]
fn one_file_under_two_names() {
    let path = workload("twice", WORKLOAD);
    let other = path.with_file_name(".").join("../twice/jobs.csv");
    let (path, other) = (path.to_str().unwrap(), other.to_str().unwrap());
    for second in [path, other] {
        let expected = format!("workload {second} is given more than once; expected once");
        check(&["run", "--workload", path, second], &expected);
    }
}

#[test]
fn workloads_with_mistakes_name_file_and_line() {
    check_workload("types", "a,now,ncf,1,256\n", "FILE:2: time \"now\"; expected seconds, 0 or more");
    let applications = "bert, cifar10, deepspeech2, imagenet, ncf, yolov3";
    let expected = format!("FILE:3: application \"gpt\"; expected {applications}");
    check_workload("unknown", "a,0,ncf,1,256\nb,0,gpt,1,256\n", &expected);
    let expected = "FILE:3: time \"4\"; expected 5 or more, jobs come in order of time";
    check_workload("order", "a,5,ncf,1,256\nb,4,ncf,1,256\n", expected);
    check_workload("none", "", "FILE: no rows below the header; expected one row or more");
}

#[test]
fn jobs_that_can_never_run() {
    let expected = "jobs: job a asks for 65 replicas; expected up to the 64 that fit the cluster";
    check_workload("large", "a,0,cifar10,65,4096\n", expected);
    let expected = "jobs: job a asks for batch 9999999 at 1 replicas; expected batches of yolov3 up to 512";
    check_workload("batch", "a,0,yolov3,1,9999999\n", expected);
}

#[test]
fn files_that_are_not_there() {
    let folder = folder("missing");
    let (file, traces) = (folder.join("none.csv"), folder.join("traces"));
    let result = sim(&["run", "--workload", file.to_str().unwrap()]);
    assert_eq!(result.code, Some(2));
    assert!(result.stderr.starts_with(&format!("error: workload {}: ", file.display())), "{}", result.stderr);
    let result = sim(&["run", "--traces", traces.to_str().unwrap()]);
    assert_eq!(result.code, Some(2));
    assert!(result.stderr.starts_with(&format!("error: traces {}: ", traces.display())), "{}", result.stderr);
    let result = sim(&["run", "--traces", folder.to_str().unwrap()]);
    assert!(result.code == Some(2) && result.stderr.contains("placements.csv"), "{}", result.stderr);
    let result = sim(&["run", "--workload", folder.to_str().unwrap()]);
    assert!(result.code == Some(2) && result.stderr.lines().count() == 1, "{}", result.stderr);
}

#[test]
fn policy_files_with_mistakes() {
    let refuse = |name: &str, text: &str, reason: &str| {
        let path = folder(&format!("policy_{name}")).join("mine.toml");
        fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap();
        let accepted = "expected policy = \"pollux\" (or another name) and settings of that policy";
        check(&["run", "--policy", path], &format!("{path}: {reason}; {accepted}"));
    };
    refuse("nan", "policy = \"pollux\"\nfairness = nan", "fairness NaN: expected numbers up to 10, -inf included");
    refuse(
        "name",
        "policy = \"polux\"",
        "unknown variant `polux`, expected one of `pollux`, `castor`, `sia`, `gavel`, `fifo`, `tiresias`, `srtf`, \
         `themis`, `gandiva`, `antman`, `optimus`, `optimus-oracle`, `slaq`",
    );
    refuse("setting", "policy = \"themis\"\nlease = 3", "unknown field `lease`, expected `fairness_knob` or `lease_s`");
    refuse("none", "policy = \"fifo\"\nlease = 3", "unknown field `lease`, there are no fields");
    refuse(
        "queues",
        "policy = \"tiresias\"\nqueue_gpu_hours = [2, 1]",
        "queue_gpu_hours 1: expected increasing numbers above 0",
    );
}
