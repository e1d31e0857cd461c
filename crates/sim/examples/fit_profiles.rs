//! Fits the profiles that ship with the simulator: `cargo run -p pollux-sim --example fit_profiles -- TRACES OUT`.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use pollux_sim::{ApplicationName, Recorded, profile};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let (Some(traces), Some(out)) = (arguments.next(), arguments.next()) else {
        return Err("expected a folder of traces and a folder to write to".into());
    };
    for name in ApplicationName::ALL {
        let recorded = Recorded::load(name, &traces.join(name.as_str()))?;
        fs::write(out.join(format!("{name}.toml")), profile::from_recorded(&recorded)?.to_toml())?;
    }
    Ok(())
}
