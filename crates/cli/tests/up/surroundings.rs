//! What a program finds where its user submitted it, and what it does not find of the scheduler's.

use std::path::Path;
use std::process::Command;

use crate::binary::{fresh_folder, run};
use crate::daemon::Daemon;

/// What a job prints that is submitted with these variables set.
fn printed(daemon: &Daemon, variables: &[(&str, &str)], program: &[&str]) -> String {
    let mut submit = daemon.command(&[&["submit", "--watch", "--rigid", "--"], program].concat());
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "LD_LIBRARY_PATH"] {
        submit.env_remove(name);
    }
    let watched = run(submit.envs(variables.iter().copied()), b"");
    assert_eq!(watched.code, Some(0), "{}\n{}", watched.stdout, watched.stderr);
    let line = watched.stdout.lines().find_map(|line| line.split_once("found <"));
    line.map(|(_, rest)| rest.trim_end_matches('>').to_owned()).unwrap_or_else(|| panic!("{}", watched.stdout))
}

fn make_environment(folder: &Path) {
    let made = Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(folder).status().unwrap();
    assert!(made.success());
}

#[test]
fn in_an_active_virtual_environment_python_is_that_of_the_environment() {
    let environment = fresh_folder("up", "virtual-environment").join("venv");
    make_environment(&environment);
    let daemon = Daemon::start("active-environment");
    let path = format!("{}:{}", environment.join("bin").display(), std::env::var("PATH").unwrap());
    let folder = environment.canonicalize().unwrap().display().to_string();
    let script = "import sys; print(f'found <{sys.prefix}>')";
    let active = [("PATH", path.as_str()), ("VIRTUAL_ENV", &folder)];
    assert_eq!(printed(&daemon, &active, &["python", "-c", script]), folder);
}

#[test]
fn a_job_gets_two_gpus_as_its_python_program_sees_them() {
    let daemon = Daemon::start_on_gpus("python-sees-gpus", &[]);
    let script = "import os; print('found <' + os.environ['CUDA_VISIBLE_DEVICES'] + '>')";
    let submit = daemon.command(&["submit", "--watch", "--gpus", "2", "--", "python3", "-c", script]);
    let watched = run(&mut { submit }, b"");
    assert!(watched.stdout.contains("found <0,3>") || watched.stdout.contains("found <1,2>"), "{}", watched.stdout);
}

#[test]
fn an_environment_that_the_scheduler_was_started_in_is_not_that_of_jobs() {
    let path = format!("/nowhere/bin:{}", std::env::var("PATH").unwrap());
    let own = [("VIRTUAL_ENV", "/nowhere"), ("PYTHONPATH", "/nowhere"), ("HF_TOKEN", "/nowhere"), ("PATH", &*path)];
    let daemon = Daemon::start_in("scheduler-environment", &own);
    let submit = ["submit", "--watch", "--rigid", "--export", "none", "--", "sh", "-c", "env; echo \"home <$HOME>\""];
    let watched = run(&mut daemon.command(&submit), b"");
    assert!(!watched.stdout.contains("/nowhere") && !watched.stdout.contains("home <>"), "{}", watched.stdout);
}
