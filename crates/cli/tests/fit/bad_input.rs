use std::fs;
use std::path::Path;
use std::process::Command;

use super::{command, folder, measured_job, run};

const PLACEMENTS: &str = "placement,local_bsz,step_time,sync_time\n";

/// Runs on the given bytes; the message is without its prefix and the name of the file.
fn refused(name: &str, bytes: &[u8]) -> String {
    let path = folder(name).join("data.csv");
    fs::write(&path, bytes).unwrap();
    let message = complaint(&[path.to_str().unwrap()]);
    message.strip_prefix(path.to_str().unwrap()).expect("the message names the file").to_owned()
}

/// The one line of a run that must end with code 2 and print no data.
fn complaint(args: &[&str]) -> String {
    let result = run(command().args(args), measured_job().as_bytes());
    assert_eq!((result.code, result.stdout.as_str()), (Some(2), ""), "{}", result.stderr);
    assert_eq!(result.stderr.lines().count(), 1, "{}", result.stderr);
    result.stderr.trim_end().strip_prefix("error: ").expect("the line starts with error").to_owned()
}

#[test]
fn empty_files_and_bare_headers() {
    assert_eq!(refused("empty", b""), ": is empty; expected a header followed by rows");
    assert_eq!(
        refused("bare-header", PLACEMENTS.as_bytes()),
        ": has no rows below its header; expected one row or more"
    );
}

#[test]
fn headers_that_do_not_name_the_columns() {
    let accepted = "expected the columns placement (or num_nodes and num_replicas), local_bsz, step_time, sync_time";
    assert_eq!(
        refused("unknown-header", b"progress,iteration\n1,2\n"),
        format!(":1: header \"progress,iteration\" is unknown; {accepted}")
    );
    assert_eq!(
        refused("missing-column", b"placement,local_bsz,step_time\n1,2,3\n"),
        format!(":1: header \"placement,local_bsz,step_time\" has no column sync_time; {accepted}")
    );
}

#[test]
fn rows_that_cannot_be_measured_steps() {
    let check = |name: &str, row: &str, expected: &str| {
        let text = format!("\u{feff}{PLACEMENTS}1,8,0.5,0\r\n\r\n{row}\r\n");
        assert_eq!(refused(name, text.as_bytes()), format!(":4: {expected}"));
    };
    let seconds = "expected seconds from 1e-7 to 1e7";
    check("word", "1,8,fast,0", &format!("column step_time is \"fast\"; {seconds}"));
    check("nan", "1,8,NaN,0", &format!("column step_time is \"NaN\"; {seconds}"));
    check("negative", "1,8,-0.5,0", &format!("column step_time is \"-0.5\"; {seconds}"));
    check("zero", "1,8,0,0", &format!("column step_time is \"0\"; {seconds}"));
    check("absurd", "1,8,1e300,0", &format!("column step_time is \"1e300\"; {seconds}"));
    check(
        "sync",
        "2,8,0.5,0.7",
        "column sync_time is \"0.7\" where step_time is 0.5; expected seconds from 0 to below step_time",
    );
    let digits = "expected the replicas on each node as digits 1 to 9, like 1, 22 or 444";
    check("placement-zero", "20,8,0.5,0", &format!("column placement is \"20\"; {digits}"));
    check("placement-letter", "2b,8,0.5,0", &format!("column placement is \"2b\"; {digits}"));
    let whole = "expected whole numbers from 1 to 16777216";
    check("batch-fraction", "1,8.5,0.5,0", &format!("column local_bsz is \"8.5\"; {whole}"));
    check("batch-zero", "1,0,0.5,0", &format!("column local_bsz is \"0\"; {whole}"));
    check("fields", "1,8,0,5,0", "the row has 5 fields; expected 4, as many as the header has");
    check(
        "quote",
        "\"1,8,0.5,0",
        "a quoted field does not close on its line; expected one followed by a comma or the line's end",
    );
    check(
        "contradiction",
        "1,8,500,0",
        "column step_time is \"500\" where the same configuration also took 0.5 s; expected times within a factor \
         of 100",
    );
}

#[test]
fn bytes_that_are_not_text() {
    let bytes = [PLACEMENTS.as_bytes(), b"1,\xff\xfe,0.5,0\n"].concat();
    assert_eq!(
        refused("bytes", &bytes),
        ":2: column local_bsz is \"\u{fffd}\u{fffd}\"; expected whole numbers from 1 to 16777216"
    );
}

#[test]
fn files_that_cannot_be_read() {
    let folder = folder("unreadable");
    let (folder, missing) = (folder.to_str().unwrap(), folder.join("missing.csv"));
    let missing = missing.to_str().unwrap();
    assert_eq!(complaint(&[folder]), format!("{folder}: is a directory; expected CSV files, or - for stdin"));
    assert_eq!(
        complaint(&[missing]),
        format!("{missing}: No such file or directory (os error 2); expected readable CSV files, or - for stdin")
    );
    assert_eq!(complaint(&["-", "-"]), "- (stdin) is given 2 times; expected once");
}

#[test]
fn bounds_that_contradict_each_other() {
    let check = |args: &[&str], expected: &str| assert_eq!(complaint(&[&["-"], args].concat()), expected);
    check(
        &["--batch-size", "512", "--max-batch-size", "256"],
        "batch_size 512 is above max_batch_size 256; expected bounds in order",
    );
    check(
        &["--max-batch-size", "8"],
        "batch_size 16 (by default the smallest local batch) is above max_batch_size 8; expected bounds in order",
    );
    check(&["--local-batch", "64..32"], "local_batch min 64 is above local_batch max 32; expected bounds in order");
    check(
        &["--local-batch", "100.."],
        "local_batch min 100 is above local_batch max 64 (by default the largest local batch measured); expected \
         bounds in order",
    );
    check(
        &["--batch-size", "65", "--max-batch-size", "65", "--local-batch", "32..32", "--gpus", "4"],
        "no batch fits 1 to 4 GPUs: GPUs x local batch (32..32) x micro-batches never falls within the batch size \
         65..65; expected wider bounds, like a larger max_batch_size",
    );
}

#[test]
fn plots_that_cannot_be_written() {
    assert_eq!(complaint(&["-", "--plot", "a.png"]), "--plot a.png: expected file names that end in .svg");
    let folder = folder("unwritable");
    let path = folder.join("missing").join("a.svg");
    assert_eq!(
        complaint(&["-", "--plot", path.to_str().unwrap()]),
        format!(
            "--plot {}: No such file or directory (os error 2); expected a file that can be written",
            path.display()
        )
    );
}

#[test]
fn arguments_that_are_not_values() {
    let check = |option: &str, values: &[&str], accepted: &str| {
        for value in values {
            assert_eq!(complaint(&["-", option, value]), format!("{option} is {value:?}; expected {accepted}"));
        }
    };
    let counts = ["abc", "0", "-3", "-", "--plot", "", "1.5", "65537", "99999999999999999999999", "a\nb"];
    check("--gpus", &counts, "whole numbers from 1 to 65536");
    check("--gpus-per-node", &["0"], "whole numbers from 1 to 65536");
    check("--batch-size", &["0", "4294967296"], "whole numbers from 1 to 4294967295");
    check("--max-batch-size", &["-1"], "whole numbers from 1 to 4294967295");
    check("--noise-scale", &["-1", "-inf", "nan", "1e400", "-1e-3"], "samples from 0 to 1e15, or inf");
    let range = "MIN..MAX with whole numbers from 1 to 16777216, like 8..256 or 8..";
    check("--local-batch", &["32", "-1..8", "8-16"], range);
    check("--parallelism", &["magic"], "data-parallel, sharded");
    check("--output", &["yaml"], "table, json");
}

#[test]
fn arguments_that_are_missing_repeated_or_unknown() {
    let options = "--batch-size, --max-batch-size, --local-batch, --noise-scale, --gpus, --gpus-per-node, \
                   --parallelism, --output, --plot, --help";
    assert_eq!(complaint(&["-", "--gpu", "4"]), "--gpu is unknown to pollux fit; did you mean --gpus?");
    assert_eq!(complaint(&["-", "--a\nb"]), format!("--a\\nb is unknown to pollux fit; expected {options}"));
    assert_eq!(complaint(&["-", "--gpus"]), "--gpus has no value; expected --gpus <N>");
    assert_eq!(complaint(&["-", "--output"]), "--output has no value; expected table, json");
    assert_eq!(complaint(&["-", "--gpus", "4", "--gpus", "8"]), "--gpus is given more than once; expected once");
    assert_eq!(complaint(&[""]), "<FILE>... has no value; expected one that is not empty");
    assert_eq!(complaint(&[]), "<FILE>... is missing; expected pollux fit <FILE>...");
}

#[test]
fn commands_that_are_unknown_and_help_that_is_asked_for() {
    let pollux = |args: &[&str]| run(Command::new(env!("CARGO_BIN_EXE_pollux")).args(args), b"");
    let similar = pollux(&["fitt"]);
    assert_eq!((similar.code, &*similar.stderr), (Some(2), "error: fitt is unknown to pollux; did you mean fit?\n"));
    let unknown = pollux(&["banana"]);
    let accepted = "up, node, operator, submit, ps, describe, explain, what-if, logs, events, nodes, top, dashboard, cancel, pause, \
        resume, drain, undrain, prune, doctor, token, alloc, demo, fit, sim, experiment, completions, help";
    let expected = format!("error: banana is unknown to pollux; expected {accepted}\n");
    assert_eq!((unknown.code, unknown.stdout, unknown.stderr), (Some(2), String::new(), expected));
    for (args, start) in [(&["--version"][..], "pollux 0."), (&["--help"], "Goodput"), (&["fit", "--help"], "Fit a ")] {
        let asked = pollux(args);
        assert_eq!((asked.code, asked.stderr.as_str()), (Some(0), ""), "{args:?}");
        assert!(asked.stdout.starts_with(start), "{}", asked.stdout);
    }
    let nothing = pollux(&[]);
    assert_eq!((nothing.code, nothing.stdout.as_str()), (Some(2), ""));
    assert!(nothing.stderr.contains("Usage: pollux <COMMAND>"), "{}", nothing.stderr);
}

#[test]
fn file_names_that_would_break_the_line() {
    assert_eq!(
        complaint(&["a\nb\u{1b}[31m.csv"]),
        "a\\nb\\u{1b}[31m.csv: No such file or directory (os error 2); expected readable CSV files, or - for stdin"
    );
    assert_eq!(complaint(&["-", "--plot", "a\rb"]), "--plot a\\rb: expected file names that end in .svg");
}

#[test]
fn placements_that_contradict_the_counts_beside_them() {
    let header = "placement,num_nodes,num_replicas,local_bsz,step_time,sync_time";
    assert_eq!(
        refused("disagreement", format!("{header}\n22,2,4,8,0.5,0\n22,1,4,8,0.5,0\n").as_bytes()),
        ":3: column placement is \"22\" where num_nodes is 1 and num_replicas is 4; expected the placement of these \
         counts"
    );
}

#[test]
fn a_full_disk_under_stdout_is_not_the_users_mistake() {
    let full = Path::new("/dev/full");
    let Ok(device) = fs::OpenOptions::new().write(true).open(full) else { return };
    let path = folder("full").join("data.csv");
    fs::write(&path, measured_job()).unwrap();
    let output = command().arg(&path).stdout(device).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.lines().last().unwrap().starts_with("error: cannot write to stdout: "), "{stderr}");
}
