use std::fs;

use serde_json::Value;

use super::{WORKLOAD, command, folder, sim, workload};

#[test]
fn the_table_has_a_line_per_policy_and_a_ratio_to_the_first() {
    let path = workload("table", WORKLOAD);
    let result = sim(&["compare", "--policy", "fifo,srtf", "--cluster", "2x4", "--workload", path.to_str().unwrap()]);
    assert_eq!((result.code, result.stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = result.stdout.lines().collect();
    assert!(
        lines[0].ends_with(
            ": cluster 2x4 (8 GPUs), rounds of 60 s, 30 s per restart, epochs declared, parametric profiles"
        )
    );
    let headings = "policy ratio avg p50 p99 makespan GPU time util restarts queued ρ max ρ p90 ρ > 1 efficiency";
    assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>().join(" "), headings);
    assert_eq!(lines[5], "jobs (3 jobs)");
    assert!(lines[6].starts_with("  fifo  1.000"), "{}", lines[6]);
    assert!(lines[7].starts_with("  srtf  1.000"), "{}", lines[7]);
    let width = |line: &str| line.chars().count();
    assert!(lines[6..8].iter().all(|line| width(line) == width(lines[2])), "columns are aligned");
    assert_eq!(lines.len(), 8);
}

#[test]
fn several_workloads_end_with_their_mean() {
    let args = ["compare", "--policy", "fifo,tiresias", "--generate-jobs", "5", "--seed", "1,2"];
    let result = sim(&args);
    let mean = result.stdout.lines().position(|line| line == "mean of 2").expect("a mean");
    assert_eq!(result.stdout.lines().count(), mean + 3);
    let value = |line: &str, column: usize| line.split_whitespace().nth(column).unwrap().parse::<f64>().unwrap();
    let fifo: Vec<f64> =
        result.stdout.lines().filter(|line| line.starts_with("  fifo")).map(|line| value(line, 2)).collect();
    assert!((f64::midpoint(fifo[0], fifo[1]) - fifo[2]).abs() < 0.11, "{fifo:?}");
}

#[test]
fn the_best_is_coloured_where_colours_are_wanted() {
    let args = ["compare", "--policy", "fifo,tiresias", "--generate-jobs", "5"];
    let coloured = |variable| {
        let output = command().args(args).env(variable, "1").output().unwrap();
        String::from_utf8(output.stdout).unwrap().contains("\u{1b}[1m\u{1b}[32m")
    };
    assert!(coloured("CLICOLOR_FORCE") && !coloured("NO_COLOR"));
}

#[test]
fn json_has_every_run_and_every_job_under_stable_names() {
    let path = workload("json", WORKLOAD);
    let result = sim(&["run", "--policy", "pollux,fifo", "-o", "json", "--workload", path.to_str().unwrap()]);
    let report = result.json();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.iter().map(|run| run["policy"].as_str().unwrap()).collect::<Vec<_>>(), ["pollux", "fifo"]);
    for run in runs {
        assert_eq!((&run["workload"], &run["seed"]), (&Value::from("jobs"), &Value::from(0)));
        for name in
            ["avg_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "gpu_hours", "utilisation", "rho_max", "rho_p90"]
        {
            assert!(run[name].as_f64().unwrap() > 0.0, "{name}");
        }
        assert!(run["restarts_per_job"].is_number() && run["rho_above_1"].is_number());
        let jobs = run["jobs"].as_array().unwrap();
        assert_eq!(jobs.len(), 3);
        let completion_s = |job: &Value| job["finished_s"].as_f64().unwrap() - job["submitted_s"].as_f64().unwrap();
        let average = jobs.iter().map(completion_s).sum::<f64>() / 3.0;
        assert!((average / run["avg_jct_s"].as_f64().unwrap() - 1.0).abs() < 1e-9);
        assert!(jobs[0]["name"] == "first" && jobs[0]["restarts"].is_u64() && jobs[0]["gpu_seconds"].is_f64());
    }
}

#[test]
fn the_same_bytes_come_from_any_number_of_threads() {
    let run = |threads: &str| {
        let args = ["compare", "--generate-jobs", "12", "--seed", "3,4", "--failures", "2", "-o", "json"];
        let result = sim(&[&args[..], &["--jobs", threads]].concat());
        assert_eq!(result.code, Some(0), "{}", result.stderr);
        result.stdout
    };
    let first = run("1");
    assert!(first.len() > 1000);
    assert!([run("2"), run("1"), run("2"), run("7")].iter().all(|other| *other == first));
}

/// Ten-minute jobs of a cluster.
fn log() -> String {
    let row = |minute| format!("2017-10-09 03:{minute}:00,600.0,1,600.0,a\n");
    let rows: String = (10..60).map(row).collect();
    format!("timestamp,duration,num_gpus,gpu_time,cluster\n{rows}")
}

/// What each run's workload is called.
fn workloads(report: &Value) -> Vec<&str> {
    report["runs"].as_array().unwrap().iter().map(|run| run["workload"].as_str().unwrap()).collect()
}

#[test]
fn a_log_is_known_by_its_columns_and_drawn_from_with_each_seed() {
    let path = folder("log").join("log.csv");
    fs::write(&path, log()).unwrap();
    let args = ["run", "--policy", "fifo", "--generate-jobs", "4", "--seed", "5,6", "-o", "json", "--workload"];
    let report = sim(&[&args[..], &[path.to_str().unwrap()]].concat()).json();
    assert_eq!(workloads(&report), ["philly-5", "philly-6"]);
    assert_eq!(report["runs"][0]["jobs"].as_array().unwrap().len(), 4);
}

#[test]
fn workloads_of_one_name_are_told_apart_by_their_folders() {
    let paths = [workload("same/a", WORKLOAD), workload("same/b", WORKLOAD)].map(|path| path.display().to_string());
    let report = sim(&["run", "--policy", "fifo", "-o", "json", "--workload", &paths[0], &paths[1]]).json();
    for (run, path) in report["runs"].as_array().unwrap().iter().zip(&paths) {
        assert_eq!(format!("{}.csv", run["workload"].as_str().unwrap()), *path);
    }
}

#[test]
fn workloads_that_are_called_the_same_are_numbered() {
    let folder = folder("numbered");
    let first = WORKLOAD.lines().take(2).collect::<Vec<_>>().join("\n");
    for (name, text) in [("one.csv", WORKLOAD), ("one.txt", &first), ("a.csv", &log()), ("b.csv", &log())] {
        fs::write(folder.join(name), text).unwrap();
    }
    let run = |args: &[&str]| {
        let all = ["compare", "--policy", "fifo,srtf", "--generate-jobs", "4", "--report", ".", "--workload"];
        let output = command().current_dir(&folder).args(all).args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let table = run(&["one.csv", "./one.txt"]);
    let titles = |table: &str| -> Vec<String> {
        table.lines().filter(|line| line.ends_with(" jobs)") || line.starts_with("mean")).map(str::to_owned).collect()
    };
    assert_eq!(titles(&table), ["one (3 jobs)", "one#2 (1 jobs)", "mean of 2"]);
    assert_eq!(table.lines().filter(|line| line.starts_with("  fifo ")).count(), 3);
    assert_eq!(table.lines().filter(|line| line.starts_with("  srtf ")).count(), 3);
    let page = fs::read_to_string(folder.join("index.html")).unwrap();
    assert_eq!(["\"one\"", "\"one#2\""].map(|workload| page.matches(workload).count()), [1, 1]);

    let report = serde_json::from_str(&run(&["a.csv", "b.csv", "--seed", "0,1", "-o", "json"])).unwrap();
    let expected = ["philly-0", "philly-1", "philly-0#2", "philly-1#2"];
    assert_eq!(workloads(&report), expected.map(|workload| [workload; 2]).concat());
    let report =
        serde_json::from_str(&run(&["one.csv", "one.txt", "--seed", "0,1", "--failures", "9", "-o", "json"])).unwrap();
    let expected = ["one-0", "one-1", "one-0#2", "one-1#2"];
    assert_eq!(workloads(&report), expected.map(|workload| [workload; 2]).concat());
}

#[test]
fn reports_show_what_tells_a_run_from_others() {
    let folder = folder("shown");
    let cluster = folder.join("two.toml");
    let groups = "[[group]]\ncount = 4\ngpus = 8\ngpu_type = \"a100\"\n[[group]]\ncount = 3\ngpus = 4\n";
    fs::write(&cluster, groups).unwrap();
    let (cluster, folder) = (cluster.to_str().unwrap(), folder.to_str().unwrap());
    let args = ["run", "--policy", "fifo", "--generate-jobs", "4", "--load", "1.5", "--cluster", cluster, "--failures"];
    let args = [&args[..], &["3", "--failure-seed", "7", "--seed", "2", "--report", folder]].concat();
    let table = sim(&args).stdout;
    let line = table.lines().next().unwrap();
    let shown = format!("cluster {cluster} (4x8 a100, 3x4, 44 GPUs), rounds of");
    assert!(line.contains(&shown), "{line}");
    assert!(line.ends_with(", 4 jobs at load 1.5, 3 failures per node and day, failure seed 7"), "{line}");
    assert!(table.contains("\ngenerated-2 (6 jobs, seed 2)\n"), "{table}");
    let page = fs::read_to_string(format!("{folder}/index.html")).unwrap();
    for shown in [r#"["jobs","4 jobs at load 1.5"]"#, r#"["failure seed","7"]"#, "(4x8 a100, 3x4, 44 GPUs)"] {
        assert!(page.contains(shown), "{shown}");
    }
    let settings = sim(&[&args[..], &["-o", "json"]].concat()).json()["settings"].clone();
    assert_eq!((&settings["generate_jobs"], &settings["load"]), (&Value::from(4), &Value::from(1.5)));
    assert_eq!(settings["failure_seed"], 7);
    let groups = serde_json::json!([{"count": 4, "gpus": 8, "gpu_type": "a100"}, {"count": 3, "gpus": 4}]);
    assert_eq!(settings["groups"], groups);
}

#[test]
fn reports_show_nothing_that_does_not_apply() {
    let path = workload("applies", WORKLOAD);
    let args = ["run", "--policy", "fifo", "--failure-seed", "7", "--workload", path.to_str().unwrap()];
    let report = sim(&[&args[..], &["-o", "json"]].concat()).json();
    for name in ["generate_jobs", "load", "failure_seed", "groups", "autoscale"] {
        assert!(report["settings"].get(name).is_none(), "{name}");
    }
    let failing = sim(&["run", "--policy", "fifo", "--failures", "2", "--seed", "5", "--workload", args[6]]);
    assert!(failing.stdout.contains("\njobs (3 jobs, failure seed 5)\n"), "{}", failing.stdout);
}

#[test]
fn nodes_that_come_and_go_have_a_column_of_what_they_cost() {
    let path = workload("autoscale", WORKLOAD);
    let args = ["run", "--policy", "pollux", "--autoscale", "1..4", "--cluster", "2x4", "--workload"];
    let args = [&args[..], &[path.to_str().unwrap()]].concat();
    let table = sim(&args).stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].contains(": cluster 1..4x4 (16 GPUs), rounds of"), "{}", lines[0]);
    assert!(lines[0].ends_with(", nodes for a utility of 0.35 to 0.65"), "{}", lines[0]);
    assert!(lines[2].ends_with("efficiency  node time"), "{}", lines[2]);
    let report = sim(&[&args[..], &["-o", "json"]].concat()).json();
    let (run, autoscale) = (&report["runs"][0], &report["settings"]["autoscale"]);
    assert_eq!((&autoscale["settings"]["nodes_min"], &autoscale["settings"]["nodes_max"]), (&1.into(), &4.into()));
    let hours = |name: &str, unit: f64| run[name].as_f64().unwrap() / unit;
    let (paid, makespan) = (hours("node_hours", 1.0), hours("makespan_s", 3600.0));
    assert!(makespan <= paid && paid < 4.0 * makespan, "{paid} in {makespan}");
    assert_eq!(lines.last().unwrap().split_whitespace().last(), Some(format!("{paid:.1}").as_str()));
}

#[test]
fn a_seed_that_changes_nothing_is_said_to() {
    let path = workload("seeds", WORKLOAD);
    let args = ["run", "--policy", "fifo", "--seed", "1,2", "-o", "json", "--workload", path.to_str().unwrap()];
    let result = sim(&args);
    assert!(result.stderr.ends_with("is simulated once: a seed changes nothing about it\n"), "{}", result.stderr);
    assert_eq!(result.json()["runs"].as_array().unwrap().len(), 1);
    let failing = sim(&[&args[..], &["--failures", "50"]].concat()).json();
    assert_eq!(failing["runs"].as_array().unwrap().len(), 2);
}

#[test]
fn a_load_draws_jobs_of_a_workload_anew() {
    let path = workload("resampled", WORKLOAD);
    let run = |more: &[&str]| {
        let args = ["run", "--policy", "fifo", "-o", "json", "--workload", path.to_str().unwrap()];
        sim(&[&args[..], more].concat()).json()
    };
    let count = |report: &Value, idx: usize| report["runs"][idx]["jobs"].as_array().unwrap().len();
    let drawn = run(&["--load", "2", "--seed", "0,1"]);
    assert_eq!((workloads(&drawn), count(&drawn, 1)), (vec!["jobs-0", "jobs-1"], 6));
    assert_eq!(drawn["runs"][0]["seed"], 0);
    assert_eq!(drawn["settings"]["load"], 2.0);
    assert!(drawn["settings"].get("generate_jobs").is_none());
    assert_ne!(drawn["runs"][0]["jobs"], drawn["runs"][1]["jobs"]);
    let as_it_is = run(&["--load", "1"]);
    assert_eq!(as_it_is["runs"], run(&[])["runs"]);
    assert_eq!(workloads(&run(&["--load", "1", "--seed", "4"])), ["jobs-4"]);
}

#[test]
fn realistic_users_ask_for_other_gpus() {
    let table = |more: &[&str]| sim(&[&["run", "--policy", "fifo", "--generate-jobs", "30"], more].concat()).stdout;
    let (tuned, realistic) = (table(&[]), table(&["--requests", "realistic"]));
    assert_eq!(tuned, table(&["--requests", "tuned"]));
    assert_ne!(tuned.lines().last(), realistic.lines().last());
    assert!(realistic.lines().next().unwrap().ends_with(", 30 jobs at load 1 with realistic requests"));
}

#[test]
fn a_policy_file_is_a_policy_with_a_name_of_its_own() {
    let jobs = workload("policy_file", WORKLOAD);
    let path = jobs.with_file_name("worst-off.toml");
    fs::write(&path, "policy = \"pollux\"\nfairness = -inf\n").unwrap();
    let policies = format!("pollux,{}", path.display());
    let run = sim(&["compare", "--policy", &policies, "--workload", jobs.to_str().unwrap(), "-o", "json"]);
    let names: Vec<String> =
        run.json()["runs"].as_array().unwrap().iter().map(|run| run["policy"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["pollux", "worst-off"]);
}
