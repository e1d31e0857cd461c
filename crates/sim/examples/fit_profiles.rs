//! Fits the profiles that ship with the simulator: to the measurements published with Pollux (OSDI 2021), and what differs on
//! other types of GPU to those published with Sia (SOSP 2023).
//! `cargo run -p pollux-sim --example fit_profiles -- TRACES TRACES_OF_TYPES OUT`.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use pollux_model::StepParams;
use pollux_sim::{ApplicationName, OnType, Profile, Recorded, profile};

/// What the traces call a type, and what we do.
const TYPES: [(&str, &str); 3] = [("azure", "v100"), ("dgx-ext", "a100"), ("rtx", "rtx2080ti")];
/// Nobody measured CPUs: they are taken to compute this many times longer than a T4.
const CPU_TIMES_SLOWER: f64 = 25.0;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let (Some(traces), Some(typed), Some(out)) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("expected a folder of traces, one of traces by type, and a folder to write to".into());
    };
    for name in ApplicationName::ALL {
        let recorded = Recorded::load(name, &traces.join(name.as_str()))?;
        let mut profile = profile::from_recorded(&recorded)?;
        for (theirs, ours) in TYPES {
            let recorded = Recorded::load_type(name, &typed.join(name.as_str()), theirs)?;
            profile.types.insert(ours.to_owned(), OnType::from_recorded(&recorded)?);
        }
        profile.types.insert("cpu".to_owned(), on_cpu(&profile)?);
        fs::write(out.join(format!("{name}.toml")), profile.to_toml())?;
    }
    Ok(())
}

fn on_cpu(profile: &Profile) -> Result<OnType, Box<dyn Error>> {
    let params = *profile.throughput.params();
    let slower = StepParams {
        alpha_compute: params.alpha_compute * CPU_TIMES_SLOWER,
        beta_compute: params.beta_compute * CPU_TIMES_SLOWER,
        ..params
    };
    let throughput = profile.throughput.parallelism().model(slower)?;
    Ok(OnType { local_batch_max: profile.limits.local_batch_max(), throughput })
}
