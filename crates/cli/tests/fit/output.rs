use std::fs;
use std::io::Read;
use std::process::Stdio;

use serde_json::Value;

use super::{command, fit, folder, measured_job, run};

#[test]
fn the_table_names_parameters_error_best_batches_and_an_answer() {
    let result = run(command().args(["-", "--batch-size", "32", "--noise-scale", "200"]), measured_job().as_bytes());
    assert_eq!((result.code, result.stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = result.stdout.lines().collect();
    assert_eq!(lines[0], "Fitted parameters (data-parallel)");
    assert!(lines[1].starts_with("  alpha_compute    10.0 ms"), "{}", lines[1]);
    assert_eq!(lines[9], "Error of predicted step times (configurations: 24, rows: 24)");
    assert!(lines[10].starts_with("  mean 0."), "{}", lines[10]);
    let heading = lines.iter().position(|line| line.trim_start().starts_with("GPUs")).unwrap();
    let names = "GPUs nodes batch per GPU accumulation samples/s efficiency goodput speedup scaling";
    assert_eq!(lines[heading].split_whitespace().collect::<Vec<_>>().join(" "), names);
    let rows = &lines[heading + 1..heading + 17];
    assert!(rows.iter().all(|row| row.len() == lines[heading].len()), "columns are aligned");
    let gpus: Vec<u32> = rows.iter().map(|row| row.split_whitespace().next().unwrap().parse().unwrap()).collect();
    assert_eq!(gpus, (1..=16).collect::<Vec<_>>());
    assert_eq!(lines.len(), heading + 19);
    assert!(lines[heading + 18].contains("scaling efficiency"), "{}", lines[heading + 18]);
}

#[test]
fn json_holds_everything_under_stable_names() {
    let report = run(command().args(["-", "-o", "json", "--gpus", "40"]), measured_job().as_bytes()).json();
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(names(&report), "error objective parameters recommendation rows settings");
    assert_eq!(
        names(&report["settings"]),
        "batch_size_baseline batch_size_max files gpus gpus_per_node local_batch_max local_batch_min noise_scale parallelism"
    );
    assert_eq!(
        names(&report["parameters"]),
        "alpha_compute alpha_internode alpha_intranode beta_compute beta_internode beta_intranode gamma"
    );
    assert_eq!(names(&report["error"]), "cells max mean median rows");
    assert_eq!(
        names(&report["rows"][0]),
        "accumulation_steps batch_size efficiency goodput gpus local_batch nodes scaling_efficiency throughput"
    );
    assert_eq!(
        names(&report["recommendation"]),
        "answer goodput gpus peak_gpus scaling_efficiency scaling_efficiency_min"
    );
    assert_eq!(report["rows"].as_array().unwrap().len(), 40);
}

#[test]
fn defaults_come_from_the_measurements() {
    let settings = run(command().args(["-", "-o", "json"]), measured_job().as_bytes()).json()["settings"].clone();
    let expected = serde_json::json!({
        "files": ["stdin"], "parallelism": "data_parallel", "batch_size_baseline": 16, "batch_size_max": 1024,
        "local_batch_min": 16, "local_batch_max": 64, "noise_scale": null, "gpus": 16, "gpus_per_node": 4,
    });
    assert_eq!(settings, expected);
}

#[test]
fn goodput_is_throughput_times_efficiency_at_the_predicted_step_time() {
    let args = ["-", "-o", "json", "--batch-size", "64", "--max-batch-size", "64", "--noise-scale", "64"];
    let report = run(command().args(args), measured_job().as_bytes()).json();
    let close = |value: &Value, expected: f64| (value.as_f64().unwrap() / expected - 1.0).abs() < 0.01;
    let four = &report["rows"][3];
    assert_eq!((four["batch_size"].as_u64(), four["local_batch"].as_u64()), (Some(64), Some(16)));
    assert!(close(&four["throughput"], 64.0 / (0.026 + 0.007)), "{four}");
    assert!(close(&four["scaling_efficiency"], (64.0 / 0.033) / (4.0 * 64.0 / 0.074)), "{four}");
    assert_eq!(four["efficiency"], 1.0);
    assert!(report["error"]["max"].as_f64().unwrap() < 0.01);
}

#[test]
fn counts_without_a_batch_say_so() {
    let bounds = ["-", "--batch-size", "100", "--max-batch-size", "110", "--local-batch", "25..27", "--gpus", "5"];
    let result = run(command().args(bounds), measured_job().as_bytes());
    assert_eq!(result.stdout.matches("no batch").count(), 2, "{}", result.stdout);
    let answer = result.stdout.lines().last().unwrap();
    assert!(answer.starts_with("4 GPUs is the most with a feasible batch"), "{answer}");
    let report = run(command().args(bounds).args(["-o", "json"]), measured_job().as_bytes()).json();
    let missing: Vec<bool> = report["rows"].as_array().unwrap().iter().map(|row| row["goodput"].is_null()).collect();
    assert_eq!(missing, [false, false, true, false, true]);
}

#[test]
fn the_answer_depends_on_how_goodput_grows() {
    let answer = |args: &[&str]| {
        let report = run(command().args(["-", "-o", "json"]).args(args), measured_job().as_bytes()).json();
        report["recommendation"]["answer"].as_str().unwrap().to_owned()
    };
    let fixed = ["--batch-size", "64", "--max-batch-size", "64", "--local-batch", "1..64"];
    let peak = answer(&[&fixed[..], &["--gpus", "4", "--gpus-per-node", "2"]].concat());
    assert!(peak.starts_with("goodput peaks at 2 GPUs, at a scaling efficiency of "), "{peak}");
    let most = answer(&[&fixed[..], &["--gpus", "8", "--gpus-per-node", "8"]].concat());
    assert!(most.contains("GPUs gives the most goodput at a scaling efficiency of 50% or more ("), "{most}");
    let shown = answer(&["--gpus", "3"]);
    assert!(shown.starts_with("3 GPUs is the most shown, at a scaling efficiency of "), "{shown}");
}

#[test]
fn without_noise_one_gpu_takes_the_smallest_of_equal_batches() {
    let args = ["-", "-o", "json", "--gpus", "16"];
    let report = run(command().args(args), measured_job().as_bytes()).json();
    let first = &report["rows"][0];
    assert_eq!((first["local_batch"].as_u64(), first["accumulation_steps"].as_u64()), (Some(64), Some(1)), "{first}");
}

#[test]
fn several_files_and_both_forms_are_pooled() {
    let folder = folder("pooled");
    let placements = folder.join("placements.csv");
    fs::write(&placements, "\u{feff}placement,local_bsz,step_time,sync_time\r\n1,8,0.5,0\r\n2,8,0.6,0.1\r\n").unwrap();
    let args = [placements.to_str().unwrap(), "-", "-o", "json"];
    let report = run(command().args(args), measured_job().as_bytes()).json();
    assert_eq!(report["error"]["cells"], 26);
    assert_eq!(report["settings"]["files"], serde_json::json!([placements.to_str().unwrap(), "stdin"]));
}

#[test]
fn sharded_parallelism_pays_for_every_micro_batch() {
    let throughput = |parallelism: &str| {
        let args = ["-", "-o", "json", "--parallelism", parallelism, "--batch-size", "512", "--max-batch-size", "512"];
        run(command().args(args), measured_job().as_bytes()).json()["rows"][3]["throughput"].as_f64().unwrap()
    };
    assert!(throughput("sharded") < throughput("data-parallel"));
}

#[test]
fn colours_show_only_where_they_can_be_seen() {
    let colours = |variables: &[(&str, &str)]| {
        let mut command = command();
        command.arg("-").envs(variables.iter().copied());
        let result = run(&mut command, measured_job().as_bytes());
        (result.stdout.contains('\u{1b}'), result.stderr.contains('\u{1b}'))
    };
    assert_eq!(colours(&[]), (false, false), "a pipe has no colours");
    assert_eq!(colours(&[("CLICOLOR_FORCE", "1")]), (true, true));
    assert_eq!(colours(&[("NO_COLOR", "1")]), (false, false));
}

#[test]
fn the_plot_is_one_svg_with_titles_units_and_escaped_names() {
    let folder = folder("plot");
    let (data, plot) = (folder.join("a<&b>.csv"), folder.join("plot.svg"));
    fs::write(&data, measured_job()).unwrap();
    let result = fit(&[data.as_os_str(), "--plot".as_ref(), plot.as_os_str()]);
    assert_eq!(result.code, Some(0), "{}", result.stderr);
    let svg = fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg width=\"1200\" height=\"540\"") && svg.trim_end().ends_with("</svg>"));
    for label in [
        "plot/a&lt;&amp;b&gt;.csv",
        "Measured and predicted throughput",
        "throughput (samples/s)",
        "goodput (samples/s)",
        "local batch 16",
        "several nodes",
        "perfect scaling",
        "scaling efficiency",
    ] {
        assert!(svg.contains(label), "{label}");
    }
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}

#[test]
fn a_plot_of_a_single_step_is_drawn_too() {
    let plot = folder("plot-single").join("plot.svg");
    let single = b"placement,local_bsz,step_time,sync_time\n1,8,0.5,0\n";
    let result = run(command().arg("-").arg("--plot").arg(&plot), single);
    assert_eq!(result.code, Some(0), "{}", result.stderr);
    assert!(fs::read_to_string(&plot).unwrap().trim_end().ends_with("</svg>"));
}

#[test]
fn a_closed_pipe_ends_the_run_quietly() {
    let folder = folder("pipe");
    let data = folder.join("data.csv");
    fs::write(&data, measured_job()).unwrap();
    let mut command = command();
    command.arg(&data).args(["-o", "json", "--gpus", "20000", "--noise-scale", "100"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 16];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(0) && stderr.lines().all(|line| line.starts_with("note: ")), "{stderr}");
}
