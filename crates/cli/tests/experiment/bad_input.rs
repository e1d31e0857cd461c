use super::{SMALL, experiment, run_in};

/// One line on stderr, nothing on stdout, exit code 2.
fn check(test: &str, old: &str, new: &str, expected: &str) {
    assert!(SMALL.contains(old), "{old}");
    let folder = experiment(&format!("bad_{test}"), &SMALL.replacen(old, new, 1));
    let result = run_in(&folder, &[]);
    assert_eq!((result.code, result.stdout.as_str()), (Some(2), ""), "{test}: {}", result.stderr);
    assert_eq!(result.stderr, format!("error: {expected}\n"), "{test}");
}

#[test]
fn lines_that_cannot_be_read_are_named() {
    let file = "small/experiment.toml";
    check(
        "field",
        "paper =",
        "papers =",
        &format!(
            "{file}:4: unknown field `papers`, expected one of `title`, `question`, `paper`, `workloads`, `sweep`, `seeds`, `measures`, `tolerance`, `settings`, `axis`, `reference`, `plot`, `rows`"
        ),
    );
    check(
        "kind",
        "\"bars\"",
        "\"pie\"",
        &format!("{file}:13: unknown variant `pie`, expected one of `bars`, `lines`, `fairness`, `timeline`"),
    );
    let accepted = "expected published, generated, shipped, sia/ with workloads there, or a file that ends in .csv";
    check("workloads", "\"generated\"", "\"made\"", &format!("{file}:5: workloads \"made\": {accepted}"));
    let accepted = "expected a name, or a table with policy and its settings";
    check("policy", "\"fifo\"", "3", &format!("{file}:10: policy 3: {accepted}"));
}

#[test]
fn wholes_that_make_no_sense_are_explained() {
    let file = "small/experiment.toml";
    check("seeds", "[0, 1]", "[]", &format!("{file}: no seeds; expected one or more"));
    check("repeated", "[0, 1]", "[2, 2]", &format!("{file}: seed 2 is given more than once; expected once"));
    check("measures", "[\"avg_jct_h\", \"makespan_h\"]", "[]", &format!("{file}: no measures; expected one or more"));
    let expected = "row \"FIFO\" expects avg_jct_h; expected the measures of the experiment";
    check("expected", "\"avg_jct_h\", \"makespan_h\"", "\"makespan_h\"", &format!("{file}: {expected}"));
    let expected = "row \"FIFO\": 2 expected figures of avg_jct_h; expected 1";
    check("figures", "avg_jct_h = 1", "avg_jct_h = [1, 2]", &format!("{file}: {expected}"));
    let expected = "row \"FIFO\" with tuned requests is there twice; expected rows that differ";
    check(
        "twice",
        "{ label = \"Tiresias\", policy = { policy = \"tiresias\" }, requests = \"realistic\" }",
        "{ label = \"FIFO\", policy = \"srtf\" }",
        &format!("{file}: {expected}"),
    );
    let expected = "a plot of lines without an axis; expected bars, or an [axis]";
    check("lines", "\"bars\"", "\"lines\"", &format!("{file}: {expected}"));
    check(
        "tolerance",
        "seeds =",
        "tolerance = -1\nseeds =",
        &format!("{file}: tolerance -1; expected a share from 0 to 1"),
    );
}

#[test]
fn sweeps_show_only_what_they_have() {
    let file = "small/experiment.toml";
    let sweep = "sweep = { application = \"cifar10\", trials = 4, keep_one_in = 2, first_epochs = 50 }\nseeds =";
    let accepted = "expected makespan_h, gpu_hours, node_hours, restarts_per_job";
    check("sweep", "seeds =", sweep, &format!("{file}: avg_jct_h of a sweep; {accepted}"));
    let trial = "policy = \"fifo\", trial = { replicas = 1, batch_size = 128 }";
    let expected = "row \"FIFO\" has a trial; accepted where the experiment has a [sweep]";
    check("trial", "policy = \"fifo\"", trial, &format!("{file}: {expected}"));
    let expected = "reference \"LIFO\"; expected the label of a row";
    check("reference", "seeds =", "reference = \"LIFO\"\nseeds =", &format!("{file}: {expected}"));
}

#[test]
fn policies_clusters_and_workloads_are_refused_before_the_work() {
    let file = "small/experiment.toml";
    let unknown = format!("{file}: row \"Tiresias\": unknown field `queue`");
    let folder = experiment("bad_setting", &SMALL.replace("\"tiresias\" }", "\"tiresias\", queue = 3 }"));
    let result = run_in(&folder, &[]);
    assert_eq!(result.code, Some(2));
    assert!(result.stderr.starts_with(&format!("error: {unknown}")), "{}", result.stderr);
    let nodes = "cluster: 0 nodes; expected 1 to 100000 in all, and 1 or more per group";
    check("cluster", "2x4", "0x4", &format!("{file}: {nodes}"));
    let jobs = "jobs 0 at load 1; expected 1 to 100000 jobs in all";
    check("jobs", "jobs = 6", "jobs = 0", &format!("{file}: {jobs}"));
    check("interval", "jobs = 6", "interval_s = 0, jobs = 6", "interval 0; expected 1 to 86400 seconds");
    let expected = "plot of job \"a\": no such job in generated-0; expected the name of one";
    check(
        "job",
        "{ kind = \"bars\", measures = [\"avg_jct_h\"] }",
        "{ kind = \"timeline\", job = \"a\", panels = [\"gpus\"] }",
        &format!("{file}: {expected}"),
    );
    let accepted = "load, scale, interval_s, restart_delay_s, interference, or a setting of every row's policy";
    let expected = format!("{file}: axis setting \"lod\": row \"FIFO\" has none; expected {accepted}");
    let lines = "{ kind = \"lines\", measures = [\"avg_jct_h\"] }\naxis = { setting = \"lod\", values = [1, 2] }";
    check("axis", "{ kind = \"bars\", measures = [\"avg_jct_h\"] }", lines, &expected);
}

#[test]
fn folders_that_are_not_there() {
    let folder = experiment("missing", SMALL);
    let result = run_in(&folder, &["--data", "nowhere"]);
    let accepted = "expected a folder that has one, or no data at all";
    assert_eq!((result.code, result.stderr), (Some(2), format!("error: data nowhere: no folder osdi21; {accepted}\n")));
    let result = run_in(&folder, &["--out", "small/experiment.toml/out"]);
    assert_eq!(result.code, Some(2));
    assert!(result.stderr.ends_with("; expected a folder that can be written\n"), "{}", result.stderr);
    std::fs::remove_file(folder.join("small/experiment.toml")).unwrap();
    let result = run_in(&folder, &[]);
    assert_eq!(result.code, Some(2));
    assert!(result.stderr.ends_with("; expected a folder with an experiment.toml\n"), "{}", result.stderr);
}
