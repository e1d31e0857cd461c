use std::fs;
use std::path::Path;

use super::{SMALL, experiment, run_in};

fn results(folder: &Path) -> [String; 3] {
    ["csv", "md", "svg"].map(|extension| fs::read_to_string(folder.join("small").with_extension(extension)).unwrap())
}

#[test]
fn two_runs_give_the_same_bytes() {
    let folder = experiment("bytes", SMALL);
    let first = run_in(&folder, &["--out", "one", "--jobs", "1"]);
    let second = run_in(&folder, &["--out", "two", "--jobs", "3"]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert_eq!(first.stdout.replace("to one/", "to two/"), second.stdout);
    assert_eq!(results(&folder.join("one")), results(&folder.join("two")));
}

#[test]
fn without_recorded_data_it_says_so_and_leaves_the_committed_results_alone() {
    let folder = experiment("unrecorded", SMALL);
    let run = run_in(&folder, &[]);
    assert_eq!(run.code, Some(0));
    assert!(run.stderr.starts_with("note: no recorded data"), "{}", run.stderr);
    assert!(!folder.join("results").exists());
    let [csv, md, svg] = results(&folder.join("target/experiments"));
    for said in [
        "| command | pollux experiment small |",
        "| physics | parametric profiles: no recorded data at hand |",
        "| workloads | generated, named by seed: generated-0, generated-1 (6 jobs each) |",
        "| settings | cluster 2x4, rounds of 60 s, 30 s per restart, epochs declared |",
        "| expected figures | left out",
        "![Small](small.svg)",
    ] {
        assert!(md.contains(said), "{said}: {md}");
    }
    assert!(csv.starts_with("row,requests,avg_jct_h,makespan_h\nFIFO,tuned,"), "{csv}");
    assert_eq!(csv.lines().count(), 3);
    assert!(svg.starts_with("<svg") && svg.contains("average JCT (h)"));
}

#[test]
fn json_has_the_table_and_all_that_it_depends_on() {
    let folder = experiment("json", SMALL);
    let json = run_in(&folder, &["-o", "json"]).json();
    assert_eq!((&json["name"], &json["title"]), (&"small".into(), &"Small".into()));
    assert_eq!(json["table"][1]["row"], "Tiresias");
    assert!(json["table"][0]["avg_jct_h"].as_f64().unwrap() > 0.0);
    let names: Vec<&str> =
        json["facts"].as_array().unwrap().iter().map(|fact| fact["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["command", "physics", "workloads", "settings", "program", "commit", "expected figures"]);
}

#[test]
fn an_axis_sets_the_world_or_the_policy_and_is_compared_with_its_reference() {
    let axis = |setting: &str, values: &str, policy: &str| {
        format!(
            "title = 'T'\nquestion = 'Q'\nworkloads = ['generated']\nseeds = [1]\nmeasures = ['avg_jct_s']\n\
             settings = {{ jobs = 8, cluster = '2x4' }}\nrows = [{{ label = 'R', policy = '{policy}' }}]\n\
             plot = {{ kind = 'lines', measures = ['avg_jct_s'] }}\n\
             axis = {{ setting = '{setting}', values = {values}, reference = 1 }}\n"
        )
    };
    for (setting, values, policy) in
        [("load", "[1, 3]", "fifo"), ("restart_delay_s", "[1, 600]", "pollux"), ("fairness", "[1, -10]", "pollux")]
    {
        let folder = experiment(&format!("axis_{setting}"), &axis(setting, values, policy));
        let json = run_in(&folder, &["-o", "json"]).json();
        let value = |line: usize, name: &str| json["table"][line][name].as_f64().unwrap();
        assert_eq!(value(0, "avg_jct_s ratio"), 1.0);
        assert_eq!(value(1, "avg_jct_s ratio"), value(1, "avg_jct_s") / value(0, "avg_jct_s"));
        assert_ne!(value(1, "avg_jct_s ratio"), 1.0, "{setting} changes something");
    }
}

#[test]
fn a_job_is_followed_through_its_phases() {
    let text = "title = 'T'\nquestion = 'Q'\nworkloads = ['jobs.csv']\nmeasures = ['avg_jct_s']\n\
        rows = [{ label = 'R', policy = 'pollux' }]\n[plot]\nkind = 'timeline'\njob = 'a'\npanels = ['gpus', 'cost']\n\
        phases = [{ label = 'early', until_h = 0.2 }, { label = 'late', until_h = 100 }]\n";
    let folder = experiment("timeline", text);
    let jobs = "name,time,application,num_replicas,batch_size\na,0,cifar10,1,128\nb,720,cifar10,1,128\n";
    fs::write(folder.join("small/jobs.csv"), jobs).unwrap();
    let table = run_in(&folder, &["-o", "json"]).json()["table"].clone();
    assert_eq!((&table[0]["phase"], &table[1]["phase"]), (&"early".into(), &"late".into()));
    assert!(table[0]["jobs"].as_f64().unwrap() <= 1.0 && table[1]["jobs"].as_f64().unwrap() > 1.0, "{table}");
    assert!(table[0]["gpus"].as_f64().unwrap() > 1.0);
}

#[test]
fn rows_of_a_sweep_are_compared_with_one_of_them() {
    let text = "title = 'T'\nquestion = 'Q'\nseeds = [0]\nmeasures = ['makespan_h', 'gpu_hours']\n\
        sweep = { application = 'cifar10', trials = 4, keep_one_in = 2, first_epochs = 25 }\nreference = 'large'\n\
        settings = { cluster = '2x4' }\nplot = { kind = 'bars', measures = ['makespan_h'] }\nrows = [\n\
        { label = 'small', policy = 'fifo', trial = { replicas = 1, batch_size = 128 } },\n\
        { label = 'large', policy = 'fifo', trial = { replicas = 4, batch_size = 512 } },\n]\n";
    let folder = experiment("sweep", text);
    let table = run_in(&folder, &["-o", "json"]).json()["table"].clone();
    let value = |line: usize, name: &str| table[line][name].as_f64().unwrap();
    assert_eq!(value(1, "makespan_h ratio"), 1.0);
    assert_eq!(value(0, "makespan_h ratio"), value(0, "makespan_h") / value(1, "makespan_h"));
    assert!(value(0, "gpu_hours") < value(1, "gpu_hours"), "GPUs that wait for each other are wasted: {table}");
}
