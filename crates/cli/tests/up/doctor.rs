//! What `pollux doctor` finds, with stand-ins for a driver and for an interpreter.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::binary::{Run, fresh_folder, run};
use crate::daemon::{Daemon, install_driver, plain};

const PROBED: &str = r#"{"python": "3.12.1", "torch": "2.15.0", "gpus": GPUS, "nccl": "2.28.3"}"#;

/// An interpreter that says what it has, and whose self-test ends with a code.
fn install_python(folder: &Path, gpus: u32, code: i32) {
    let program = folder.join("driver/python");
    let said = PROBED.replace("GPUS", &gpus.to_string());
    let script = format!("#!/bin/sh\n[ $1 = -m ] && {{ echo \"self-test $*\"; exit {code}; }}\necho '{said}'\n");
    fs::create_dir_all(folder.join("driver")).unwrap();
    fs::write(&program, script).unwrap();
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
}

fn doctor(mut command: Command, folder: &Path, args: &[&str]) -> Run {
    let path = [folder.join("driver"), "/usr/bin".into(), "/bin".into()];
    command.args(args).env("PATH", std::env::join_paths(path).unwrap()).env_remove("CUDA_VISIBLE_DEVICES");
    run(&mut command, b"")
}

/// Without a scheduler of its own.
fn alone(folder: &Path, args: &[&str]) -> Run {
    let mut command = plain("doctor");
    command.env("POLLUX_STATE", folder.join("state"));
    doctor(command, folder, args)
}

#[test]
fn a_machine_that_has_everything_is_well() {
    let daemon = Daemon::start_on_gpus("doctor", &[]);
    let folder = daemon.state().parent().unwrap().to_owned();
    install_python(&folder, 4, 0);
    let found = doctor(daemon.command(&["doctor"]), &folder, &["--quick"]);
    assert_eq!(found.code, Some(0), "{}{}", found.stdout, found.stderr);
    let lines: Vec<&str> = found.stdout.lines().collect();
    assert_eq!(lines[1], "GPUs          ok     4: 2 x Tesla V100, 2 x NVIDIA A100");
    assert!(lines[2].starts_with("Python        ok     3.12.1 at "), "{}", lines[2]);
    assert_eq!(lines[3], "pollux.torch  ok     torch 2.15.0, 4 GPUs, NCCL 2.28.3");
    assert!(lines[4].starts_with("scheduler     ok     "), "{}", lines[4]);
    assert!(lines[4].ends_with(": castor, 4 GPUs"), "{}", lines[4]);
    assert_eq!(lines[6], "self-test -m pollux.torch.selftest --quick");
}

#[test]
fn what_is_not_there_may_be_meant_but_gpus_that_torch_does_not_see_are_not() {
    let folder = fresh_folder("up", "doctor-without");
    install_python(&folder, 0, 0);
    let found = alone(&folder, &[]);
    assert_eq!(found.code, Some(0), "{}{}", found.stdout, found.stderr);
    assert!(found.stdout.contains("GPUs          none   none: jobs run on slots without GPUs\n"), "{}", found.stdout);
    assert!(found.stdout.contains("scheduler     none   none with this state folder: `pollux up` starts one\n"));
    install_driver(&folder);
    let found = alone(&folder, &[]);
    assert_eq!(found.code, Some(1));
    assert!(found.stdout.contains(
        "pollux.torch  FAIL   torch 2.15.0 sees 0 GPUs of 4; expected a torch that is built for their driver\n"
    ));
    assert_eq!(found.stderr, "error: pollux.torch: not as it should be, see above\n");
}

#[test]
fn a_self_test_that_fails_and_an_interpreter_without_pollux_are_told() {
    let folder = fresh_folder("up", "doctor-fails");
    install_python(&folder, 0, 1);
    let found = alone(&folder, &[]);
    assert_eq!((found.code, found.stderr.as_str()), (Some(1), "error: self-test: not as it should be, see above\n"));
    let bare = folder.join("bare");
    fs::write(
        &bare,
        "#!/bin/sh\necho Traceback >&2\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n",
    )
    .unwrap();
    fs::set_permissions(&bare, fs::Permissions::from_mode(0o755)).unwrap();
    let found = alone(&folder, &["--python", bare.to_str().unwrap()]);
    assert_eq!(found.code, Some(1));
    let expected = "FAIL   ModuleNotFoundError: No module named 'torch'; expected the package `pollux` with its extra \
        `torch` there\n";
    assert!(found.stdout.contains(expected), "{}", found.stdout);
    let found = alone(&folder, &["--python", "/not/there"]);
    assert_eq!(found.code, Some(1));
    assert!(found.stdout.contains("Python        FAIL   /not/there: No such file or directory"), "{}", found.stdout);
}
