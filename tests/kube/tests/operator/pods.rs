//! Single pods are evicted, deleted and killed, or never start; jobs are changed while they change.

use pollux_testbed::wait_for;
use serde_json::{Value, json};

use crate::training::{Training, training};
use crate::world::{LIMIT, World, world};

/// A job that runs a shell script, which knows nothing of Pollux.
fn script(world: &World, name: &str, script: &str) -> Value {
    let mut job = training(world, name);
    let container = &mut job["spec"]["template"]["spec"]["containers"][0];
    container["image"] = "pollux.test/busybox:1".into();
    container["command"] = json!(["/bin/sh", "-c", script]);
    job["spec"]["replicasMax"] = 1.into();
    job["spec"]["retries"] = 1.into();
    job
}

fn says(status: &Value, reason: &str, part: &str) -> bool {
    status["reason"] == reason && status["message"].as_str().is_some_and(|message| message.contains(part))
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_training_outlives_pods_that_are_evicted_and_deleted_by_hand() {
    let Some(world) = world() else { return };
    let job = Training::start(&world, "steady", 8);
    let evicted = job.running().remove(0);
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": evicted, "namespace": "team"}});
    let path = format!("--raw=/api/v1/namespaces/team/pods/{evicted}/eviction");
    world.cluster.kubectl_with(&["create", &path, "--filename=-"], &eviction).unwrap();
    let is_whole = |status: &Value| status["gpus"] == 8 && status["phase"] == "Running";
    let without = |name: &str| {
        job.wait("it is whole again", |status| is_whole(status) && !job.running().contains(&name.to_owned()))
    };
    without(&evicted);
    job.trains_on();
    let deleted = job.running().remove(0);
    world
        .cluster
        .kubectl(&["delete", "pod", &deleted, "--namespace=team", "--grace-period=1", "--wait=false"])
        .unwrap();
    without(&deleted);
    job.trains_on();
    job.delete();
    world.check_gpus();
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn jobs_whose_pods_cannot_run_say_why_and_disturb_nobody() {
    let Some(world) = world() else { return };
    let job = Training::start_whole(&world, "steady", 8);
    let containers = job.containers();
    let mut missing = script(&world, "missing", "true");
    missing["spec"]["template"]["spec"]["containers"][0]["image"] = "pollux.test/none:1".into();
    let missing = Training::submit(&world, &missing);
    let mut greedy = script(&world, "greedy", "true");
    greedy["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1000"}});
    let greedy = Training::submit(&world, &greedy);
    let mut picky = script(&world, "picky", "true");
    picky["spec"]["template"]["spec"]["nodeSelector"] = json!({"disk": "fast"});
    let picky = Training::submit(&world, &picky);
    missing.wait("it says which image", |status| says(status, "WaitingForPodsReady", "pollux.test/none:1"));
    greedy.wait("it says what is missing", |status| status["message"].as_str().is_some_and(|it| it.contains("CPU")));
    picky.wait("it says what Kubernetes says", |status| says(status, "WaitingForPodsReady", "nodes are available"));
    job.trains_on();
    assert_eq!(job.containers(), containers);
    for training in [job, missing, greedy, picky] {
        training.delete();
    }
    world.check_gpus();
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_job_that_uses_too_much_memory_is_tried_again_and_then_given_up_with_the_reason() {
    let Some(world) = world() else { return };
    let mut job = script(&world, "hungry", "tail /dev/zero");
    job["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "64Mi"}});
    let job = Training::submit(&world, &job);
    job.wait("it is tried again", |status| status["reason"] == "Backoff");
    job.wait("it is given up", |status| says(status, "GivenUp", "memory"));
    job.delete();
    world.check_gpus();
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_job_that_ignores_sigterm_is_killed_after_its_grace() {
    let Some(world) = world() else { return };
    let job = script(&world, "stubborn", "trap '' TERM; while :; do sleep 1; done");
    let job = Training::submit(&world, &job);
    job.wait("it runs", |status| status["phase"] == "Running");
    suspend(&world, &job, true);
    job.wait("it gives its GPU back", |status| status["phase"] == "Suspended" && status["gpus"] == 0);
    wait_for("its pod ends", LIMIT, || Ok(job.running().is_empty().then_some(()))).unwrap();
    job.delete();
    world.check_gpus();
}

fn suspend(world: &World, job: &Training<'_>, is_suspended: bool) {
    let patch = json!({"spec": {"suspend": is_suspended}}).to_string();
    let patched = ["patch", "polluxjob", &job.name, "--namespace=team", "--type=merge", "--patch", &patch];
    world.cluster.kubectl(&patched).unwrap();
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_job_may_be_suspended_edited_and_deleted_while_it_is_resized() {
    let Some(world) = world() else { return };
    let job = Training::start(&world, "steady", 12);
    let other = Training::submit(&world, &training(&world, "newcomer"));
    job.wait("it is resized", |status| status["phase"] == "Resizing" || status["gpus"].as_u64() < Some(12));
    suspend(&world, &job, true);
    job.wait("it is suspended", |status| says(status, "Suspended", "") && status["gpus"] == 0);
    other.trains_on();
    suspend(&world, &job, false);
    job.trains_on();
    let patch = json!({"spec": {"priority": 5}}).to_string();
    let edit = ["patch", "polluxjob", &job.name, "--namespace=team", "--type=merge", "--patch", &patch];
    let refused = world.cluster.kubectl(&edit).unwrap_err().to_string();
    assert!(refused.contains("only suspend and ttlSecondsAfterFinished can be changed"), "{refused}");
    other.delete();
    job.delete();
    let left = || world.cluster.get(&["get", "pods", "--namespace=team", "--selector=pollux.dev/job"]);
    let phases =
        |pods: &Value| pods["items"].as_array().unwrap().iter().map(|pod| pod["status"]["phase"].clone()).collect();
    let running: Vec<Value> = phases(&left().unwrap());
    assert!(!running.contains(&json!("Running")), "the resource goes when nothing of it runs: {running:?}");
    wait_for("its pods are gone", LIMIT, || Ok((left()?["items"] == json!([])).then_some(()))).unwrap();
    world.check_gpus();
}
