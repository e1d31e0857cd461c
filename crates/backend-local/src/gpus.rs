//! The GPUs of this machine.
//!
//! They are listed by `nvidia-smi`, the driver's own client of NVML, which is there wherever the driver is. Loading the
//! library ourselves would take unsafe code, and the crate that wraps it a dozen others, for three columns of text.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::LocalError;

/// A driver that is sick may never answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A GPU, as the driver knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gpu {
    pub(crate) index: u32,
    uuid: String,
    pub(crate) name: String,
}

/// The GPUs that the driver lists and `CUDA_VISIBLE_DEVICES` leaves to us; none without a driver.
pub(crate) fn discover() -> Result<Vec<Gpu>, LocalError> {
    let listed = list("nvidia-smi")?;
    Ok(match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(visible) => keep_visible(&listed, &visible),
        Err(_) => listed,
    })
}

/// Names of the GPUs that jobs of this machine can have, one for each.
pub fn gpu_names() -> Result<Vec<String>, LocalError> {
    Ok(discover()?.into_iter().map(|gpu| gpu.name).collect())
}

fn list(program: &str) -> Result<Vec<Gpu>, LocalError> {
    let mut command = Command::new(program);
    command.args(["--query-gpu=index,uuid,name", "--format=csv,noheader"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let failed = |reason: String| LocalError::Gpus { reason: format!("{program}: {reason}") };
    match child {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed(error.to_string())),
        Ok(child) => {
            let text = output(child).map_err(|error| failed(error.to_string()))?;
            parse(&text).ok_or_else(|| failed(format!("it says {:?}", text.lines().next().unwrap_or_default())))
        }
    }
}

fn output(mut child: Child) -> io::Result<String> {
    let exited = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let patience = PATIENCE.try_into().expect("it is short");
    if poll(&mut [PollFd::new(&exited, PollFlags::IN)], Some(&patience))? == 0 {
        child.kill()?;
        child.wait()?;
        return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", PATIENCE.as_secs())));
    }
    // What it says of every GPU a machine can have fits into the pipe, so that it could end before it was read.
    let mut text = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut text)?;
    }
    let status = child.wait()?;
    if status.success() { Ok(text) } else { Err(io::Error::other(format!("it failed with {status}"))) }
}

/// `None` for text that is no list.
pub(crate) fn parse(text: &str) -> Option<Vec<Gpu>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let mut gpus = lines
        .map(|line| {
            let mut columns = line.splitn(3, ',').map(str::trim);
            let (index, uuid, name) = (columns.next()?, columns.next()?, columns.next()?);
            Some(Gpu { index: index.parse().ok()?, uuid: uuid.to_owned(), name: name.to_owned() })
        })
        .collect::<Option<Vec<_>>>()?;
    gpus.sort_by_key(|gpu| gpu.index);
    Some(gpus)
}

/// Those that `CUDA_VISIBLE_DEVICES` names, by index or by the beginning of a UUID; like the driver, only up to the
/// first that does not exist.
fn keep_visible(gpus: &[Gpu], visible: &str) -> Vec<Gpu> {
    let named = |name: &str| {
        gpus.iter().find(|gpu| match name.parse::<u32>() {
            Ok(index) => gpu.index == index,
            Err(_) => !name.is_empty() && gpu.uuid.starts_with(name),
        })
    };
    let mut kept: Vec<Gpu> = visible.split(',').map_while(|name| named(name.trim())).cloned().collect();
    kept.sort_by_key(|gpu| gpu.index);
    kept.dedup();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_KINDS: &str = "1, GPU-bb12, Tesla V100\n0, GPU-aa34, NVIDIA A100-SXM4-40GB\n2, GPU-cc56, Tesla V100\n";

    fn indices(gpus: &[Gpu]) -> Vec<u32> {
        gpus.iter().map(|gpu| gpu.index).collect()
    }

    #[test]
    fn gpus_are_read_in_the_order_of_the_driver() {
        let gpus = parse(TWO_KINDS).unwrap();
        assert_eq!(indices(&gpus), [0, 1, 2]);
        assert_eq!(gpus[0].name, "NVIDIA A100-SXM4-40GB");
        assert_eq!(parse("No devices were found\n"), None);
        assert_eq!(parse(""), Some(Vec::new()));
    }

    #[test]
    fn gpus_that_are_hidden_from_us_are_left_alone() {
        for (visible, kept) in
            [("2,0", vec![0, 2]), ("GPU-bb", vec![1]), ("", vec![]), ("0,7,1", vec![0]), ("-1", vec![])]
        {
            assert_eq!(indices(&keep_visible(&parse(TWO_KINDS).unwrap(), visible)), kept, "{visible:?}");
        }
    }

    #[test]
    fn a_machine_without_a_driver_has_no_gpus_and_a_broken_driver_is_an_error() {
        assert_eq!(list("pollux-no-such-program").unwrap(), []);
        let error = list("false").unwrap_err().to_string();
        assert!(error.starts_with("the GPUs cannot be listed: false: it failed with exit status: 1;"), "{error}");
    }
}
