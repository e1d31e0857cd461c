//! What workers are told by the real daemon, as the jobs of a user show it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use pollux_client::JobAction;
use pollux_job::JobSpec;

use crate::daemon::{Site, eventually};

const ENDLESS: [&str; 7] = ["--epochs", "100000", "--samples", "1024", "--pace", "good", "-q"];

#[test]
fn under_a_policy_that_leaves_batches_to_users_a_job_trains_at_the_one_it_was_submitted_with() {
    let site = Site::new(&["--slots", "2", "--policy", "tiresias"]);
    let _daemon = site.start();
    let client = site.client().unwrap();
    let submit = |name: &str, batch_size| {
        let spec = JobSpec { batch_size, ..site.training(name, &ENDLESS) };
        client.submit(&spec).unwrap().id
    };
    // The trainer's own baseline is 64.
    let (named, unnamed) = (submit("named", Some(96)), submit("unnamed", None));
    for (job, batch_size) in [(named, 96), (unnamed, 64)] {
        eventually("its batch and its model", || {
            let trains_so = client.job(job).unwrap().job.batch_size == Some(batch_size);
            (trains_so && !client.explanation(job).unwrap().sizes.is_empty()).then_some(())
        });
    }
    for job in [named, unnamed] {
        client.act(job, JobAction::Cancel).unwrap();
    }
}

#[test]
fn a_machine_with_gpus_of_two_types_schedules_both_by_goodput() {
    let site = Site::new(&["--round-interval", "1"]);
    let listed = "0, GPU-a, NVIDIA A100\n1, GPU-b, NVIDIA A100\n2, GPU-c, Tesla T4\n3, GPU-d, Tesla T4\n";
    let smi = site.folder().join("nvidia-smi");
    fs::write(&smi, format!("#!/bin/sh\nprintf '{}'\n", listed.replace('\n', "\\n"))).unwrap();
    fs::set_permissions(&smi, fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = site.command();
    command.env("PATH", format!("{}:{path}", site.folder().display())).env_remove("CUDA_VISIBLE_DEVICES");
    let _daemon = site.start_by(command);
    let client = site.client().unwrap();
    let mut types: Vec<String> = client.nodes().unwrap().nodes.into_iter().map(|node| node.gpu_type).collect();
    types.sort();
    assert_eq!(types, ["NVIDIA A100", "Tesla T4"]);
    let submit = |name: &str| {
        let spec = JobSpec { replicas: 2, replicas_min: 2, replicas_max: Some(2), ..site.training(name, &ENDLESS) };
        client.submit(&spec).unwrap().id
    };
    let jobs = ["first", "second"].map(submit);
    let mut named: Vec<String> = jobs
        .iter()
        .map(|&job| {
            eventually("goodput on its type, in words", || {
                let explanation = client.explanation(job).unwrap();
                let told = types.iter().find(|name| explanation.sentences[0].contains(&format!("({name})")));
                told.filter(|_| !explanation.sizes.is_empty()).cloned()
            })
        })
        .collect();
    named.sort();
    assert_eq!(named, types, "each of them is on a type of its own");
    for job in jobs {
        client.act(job, JobAction::Cancel).unwrap();
    }
}
