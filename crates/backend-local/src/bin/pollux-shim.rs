//! The shim alone, for whoever runs the backend without the `pollux` command; this crate's tests do.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    // The first argument is the subcommand, as of `pollux shim`.
    let arguments: Vec<_> = env::args_os().skip(2).collect();
    match pollux_backend_local::shim(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
