use std::fs;
use std::path::Path;

use super::{command, fit, folder, measured_job, run};

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
    assert_eq!(refused("empty", b""), ": is empty; accepted is a header followed by rows");
    assert_eq!(
        refused("bare-header", PLACEMENTS.as_bytes()),
        ": has no rows below its header; accepted is one row or more"
    );
}

#[test]
fn headers_that_do_not_name_the_columns() {
    let accepted =
        "accepted are the columns placement (or num_nodes and num_replicas), local_bsz, step_time, sync_time";
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
    let seconds = "accepted are seconds from 1e-7 to 1e7";
    check("word", "1,8,fast,0", &format!("column step_time is \"fast\"; {seconds}"));
    check("nan", "1,8,NaN,0", &format!("column step_time is \"NaN\"; {seconds}"));
    check("negative", "1,8,-0.5,0", &format!("column step_time is \"-0.5\"; {seconds}"));
    check("zero", "1,8,0,0", &format!("column step_time is \"0\"; {seconds}"));
    check("absurd", "1,8,1e300,0", &format!("column step_time is \"1e300\"; {seconds}"));
    check(
        "sync",
        "2,8,0.5,0.7",
        "column sync_time is \"0.7\" where step_time is 0.5; accepted are seconds from 0 to below step_time",
    );
    let digits = "accepted are the replicas on each node as digits 1 to 9, like 1, 22 or 444";
    check("placement-zero", "20,8,0.5,0", &format!("column placement is \"20\"; {digits}"));
    check("placement-letter", "2b,8,0.5,0", &format!("column placement is \"2b\"; {digits}"));
    let whole = "accepted are whole numbers from 1 to 16777216";
    check("batch-fraction", "1,8.5,0.5,0", &format!("column local_bsz is \"8.5\"; {whole}"));
    check("batch-zero", "1,0,0.5,0", &format!("column local_bsz is \"0\"; {whole}"));
    check("fields", "1,8,0,5,0", "the row has 5 fields; accepted are 4, as many as the header has");
    check(
        "quote",
        "\"1,8,0.5,0",
        "a quoted field does not close on its line; accepted is one followed by a comma or the line's end",
    );
    check(
        "contradiction",
        "1,8,500,0",
        "column step_time is \"500\" where the same configuration also took 0.5 s; accepted are times within a factor \
         of 100",
    );
}

#[test]
fn bytes_that_are_not_text() {
    let bytes = [PLACEMENTS.as_bytes(), b"1,\xff\xfe,0.5,0\n"].concat();
    assert_eq!(
        refused("bytes", &bytes),
        ":2: column local_bsz is \"\u{fffd}\u{fffd}\"; accepted are whole numbers from 1 to 16777216"
    );
}

#[test]
fn files_that_cannot_be_read() {
    let folder = folder("unreadable");
    let (folder, missing) = (folder.to_str().unwrap(), folder.join("missing.csv"));
    let missing = missing.to_str().unwrap();
    assert_eq!(complaint(&[folder]), format!("{folder}: is a directory; accepted are CSV files, or - for stdin"));
    assert_eq!(
        complaint(&[missing]),
        format!("{missing}: No such file or directory (os error 2); accepted are readable CSV files, or - for stdin")
    );
    assert_eq!(complaint(&["-", "-"]), "- (stdin) is given 2 times; accepted is once");
}

#[test]
fn bounds_that_contradict_each_other() {
    let check = |args: &[&str], expected: &str| assert_eq!(complaint(&[&["-"], args].concat()), expected);
    check(
        &["--batch-size", "512", "--max-batch-size", "256"],
        "--batch-size 512 is above --max-batch-size 256; accepted are bounds in order",
    );
    check(
        &["--max-batch-size", "8"],
        "--batch-size 16 (by default the smallest local batch) is above --max-batch-size 8; accepted are bounds in order",
    );
    check(
        &["--local-batch", "64..32"],
        "--local-batch MIN 64 is above --local-batch MAX 32; accepted are bounds in order",
    );
    check(
        &["--local-batch", "100.."],
        "--local-batch MIN 100 is above --local-batch MAX 64 (by default the largest local batch measured); accepted are \
         bounds in order",
    );
    check(
        &["--batch-size", "65", "--max-batch-size", "65", "--local-batch", "32..32", "--gpus", "4"],
        "no batch fits 1 to 4 GPUs: GPUs x local batch (32..32) x micro-batches never falls within the batch size \
         65..65; accepted are wider bounds",
    );
}

#[test]
fn plots_that_cannot_be_written() {
    assert_eq!(complaint(&["-", "--plot", "a.png"]), "--plot a.png: accepted are file names that end in .svg");
    let folder = folder("unwritable");
    let path = folder.join("missing").join("a.svg");
    assert_eq!(
        complaint(&["-", "--plot", path.to_str().unwrap()]),
        format!(
            "--plot {}: No such file or directory (os error 2); accepted is a file that can be written",
            path.display()
        )
    );
}

#[test]
fn arguments_that_are_not_values() {
    for args in [
        &["--gpus", "0"][..],
        &["--gpus", "65537"],
        &["--gpus-per-node", "0"],
        &["--batch-size", "0"],
        &["--max-batch-size", "-1"],
        &["--noise-scale=-1"],
        &["--noise-scale", "nan"],
        &["--local-batch", "8"],
        &["--parallelism", "magic"],
        &["-o", "yaml"],
        &["--unknown"],
    ] {
        let result = fit(&[&["-"], args].concat());
        assert_eq!((result.code, result.stdout.as_str()), (Some(2), ""), "{args:?}");
        assert!(result.stderr.starts_with("error: "), "{args:?}: {}", result.stderr);
    }
    assert_eq!(fit::<&str>(&[]).code, Some(2));
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
