//! The exit codes and streams of `cargo xtask tidy` that scripts rely on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER: &str = env!("CARGO_TARGET_TMPDIR");

#[test]
fn nothing_found_is_silent_and_exits_with_0() {
    check(&workspace("clean", "[lints]\nworkspace = true\n"), 0, "", "");
}

#[test]
fn findings_are_printed_and_exit_with_1() {
    check(
        &workspace("untidy", "[package]\n"),
        1,
        "xtask/Cargo.toml:1: lints are not inherited; write workspace = true under [lints]\n",
        "error: tidy findings: 1\n",
    );
}

#[test]
fn a_folder_that_cannot_be_read_exits_with_2() {
    let missing = Path::new(FOLDER).join("missing");
    let error = format!("error: cannot list {}: No such file or directory (os error 2)\n", missing.display());
    check(&missing, 2, "", &error);
}

#[track_caller]
fn check(root: &Path, code: i32, stdout: &str, stderr: &str) {
    let run = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("tidy")
        .arg(root)
        .output()
        .expect("cargo builds the binary before its tests");
    assert_eq!(String::from_utf8_lossy(&run.stdout), stdout);
    assert_eq!(String::from_utf8_lossy(&run.stderr), stderr);
    assert_eq!(run.status.code(), Some(code));
}

fn workspace(name: &str, manifest: &str) -> PathBuf {
    let root = Path::new(FOLDER).join(name);
    let files = [("Cargo.toml", "[workspace]\n"), ("xtask/Cargo.toml", manifest)];
    fs::create_dir_all(root.join("xtask")).expect("cargo gives tests a folder to write to");
    for (path, text) in files {
        fs::write(root.join(path), text).expect("the folder was just made");
    }
    root
}
