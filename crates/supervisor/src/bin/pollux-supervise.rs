//! The supervisor alone, for images of tests: what `pollux supervise` and `pollux shim` do.

use std::env;
use std::path::Path;
use std::process::ExitCode;

use pollux_supervisor as supervisor;

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let words: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
    let outcome = match words.as_slice() {
        ["shim", ..] => match pollux_backend_local::shim(&arguments[1..]) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => Err(error.to_string()),
        },
        ["supervise", "--install", path] => {
            supervisor::install(Path::new(path)).map(|()| 0).map_err(|it| it.to_string())
        }
        ["supervise", "--is-started"] => return ExitCode::from(u8::from(!supervisor::is_started())),
        ["supervise", "--is-whole"] => return ExitCode::from(u8::from(!supervisor::is_whole())),
        ["supervise", "--replica", folder] => {
            supervisor::run_replica(Path::new(folder)).map_err(|error| error.to_string())
        }
        ["supervise", "--", command @ ..] => supervisor::supervise(command).map_err(|error| error.to_string()),
        _ => Err("expected shim or supervise".to_owned()),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
