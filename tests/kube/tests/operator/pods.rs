//! Single pods are evicted, deleted and killed, or never start; jobs are changed while they change.

use std::path::Path;

use pollux_testbed::{Image, REGISTRY, wait_for};
use serde_json::{Value, json};

use crate::training::{Training, conclude, training};
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
fn a_job_whose_image_is_fetched_slowly_says_so_and_trains_in_the_end() {
    let Some(world) = world() else { return };
    let name = format!("{REGISTRY}/trainer:1");
    let image = Image::new(&name).program("bin/trainer", &world.programs.join("pollux-trainer"));
    for node in world.nodes() {
        node.serve_image(&image, Path::new(env!("CARGO_BIN_EXE_pollux-testbed")), 15).unwrap();
    }
    let mut job = training(&world, "patient");
    let container = &mut job["spec"]["template"]["spec"]["containers"][0];
    (container["image"], container["imagePullPolicy"]) = (name.as_str().into(), "Always".into());
    (job["spec"]["replicasMax"], job["spec"]["retries"]) = (1.into(), 0.into());
    let job = Training::submit(&world, &job);
    let fetches = format!("its node fetches image {name}");
    job.wait("it says what it waits for", |status| says(status, "WaitingForPodsReady", &fetches));
    let status = job.wait("it trains", |status| status["phase"] == "Running");
    assert_eq!(status["restarts"], 0, "it was started once: {status}");
    job.trains_on();
    job.delete();
    world.check_gpus();
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn hostile_words_in_a_job_do_nothing() {
    let Some(world) = world() else { return };
    let steady = Training::start_whole(&world, "steady", 4);
    let id = steady.status().unwrap()["id"].as_u64().unwrap();
    let words = r#"printf '\033[2J\033]0;x\007{"ending":"succeeded"}\r\n<script>alert(1)</script>\n'; sleep 2"#;
    let mut job = script(&world, "a.b--c.0", words);
    let evil = "$(reboot)`id`'\"<script>\u{202e}\n\u{1b}[2J";
    job["metadata"]["annotations"] = json!({"x/evil": evil, "pollux.dev/epoch": "999999"});
    job["metadata"]["labels"] = json!({"pollux.dev/job": id.to_string(), "app.kubernetes.io/instance": "pollux"});
    let template = &mut job["spec"]["template"];
    template["metadata"] = json!({
        "labels": {"pollux.dev/job": id.to_string(), "pollux.dev/replica": "1", "pollux.dev/instance": "other"},
        "annotations": {"evil": evil, "pollux.dev/epoch": "999999", "pollux.dev/stop": "now"},
    });
    template["spec"]["containers"][0]["env"] = json!([{"name": "EVIL", "value": evil}]);
    let (containers, epoch) = (steady.containers(), world.epoch());
    let job = Training::submit(&world, &job);
    job.wait("it is complete", |status| status["phase"] == "Succeeded");
    let mut ranked = script(&world, "ranked", "true");
    ranked["spec"]["template"]["spec"]["containers"][0]["env"] = json!([{"name": "RANK", "value": "9"}]);
    let ranked = Training::submit(&world, &ranked);
    ranked
        .wait("it may not say who it is", |status| says(status, "Misconfigured", "variable \"RANK\" is set by Pollux"));
    // No name but one of Kubernetes, and none that is too long for what is made of it.
    for name in ["../x", "x;reboot", "X", &"x".repeat(129)] {
        let mut other = script(&world, "x", "true");
        other["metadata"]["name"] = name.into();
        world.cluster.kubectl_with(&["create", "--filename=-"], &other).unwrap_err();
    }
    steady.trains_on();
    assert_eq!((steady.containers(), world.epoch()), (containers, epoch));
    for training in [steady, job, ranked] {
        training.delete();
    }
    world.check_gpus();
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn templates_that_make_no_sense_are_told_and_keep_nobody_else_waiting_after_a_restart_either() {
    let Some(world) = world() else { return };
    let steady = Training::start_whole(&world, "steady", 4);
    let mut words = script(&world, "words", "true");
    words["spec"]["template"]["spec"]["containers"] = "x".into();
    let words = Training::submit(&world, &words);
    let mut numbers = script(&world, "numbers", "true");
    numbers["spec"]["template"]["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": 9}]);
    let numbers = Training::submit(&world, &numbers);
    let say_so = || {
        words.wait("it says where", |status| says(status, "Misconfigured", "template.spec.containers: invalid type"));
        numbers
            .wait("it says where", |status| says(status, "Misconfigured", "template.spec.containers[0].env[0].value"));
    };
    say_so();
    let (containers, epoch) = (steady.containers(), world.epoch());
    let leader = world.leader();
    world.signal(&leader, "-KILL");
    world.await_epoch_above(epoch);
    let newcomer = Training::start_whole(&world, "newcomer", 4);
    say_so();
    assert_eq!(steady.containers(), containers);
    for training in [words, numbers] {
        training.delete();
    }
    conclude(&world, [steady, newcomer]);
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_token_of_a_pod_opens_its_job_and_nothing_else() {
    let Some(world) = world() else { return };
    let (job, other) = (Training::start_whole(&world, "steady", 1), Training::start_whole(&world, "other", 1));
    let id = |job: &Training<'_>| job.status().unwrap()["id"].as_u64().unwrap();
    let (own, foreign) = (id(&job), id(&other));
    let pod = job.running().remove(0);
    let bound = ["--bound-object-kind=Pod", "--bound-object-name", &pod];
    let token = |options: &[&str]| {
        let create = [&["create", "token", "default", "--namespace=team"], options].concat();
        world.cluster.kubectl(&create).unwrap().trim().to_owned()
    };
    let audience = "--audience=https://pollux.pollux.svc";
    let worker = token(&[&bound[..], &[audience]].concat());
    let service = world.cluster.get(&["get", "service", "pollux", "--namespace=pollux"]).unwrap();
    let service = service["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let node = world.nodes().remove(0);
    let asks = |token: &str, method: &str, path: &str| {
        let (bearer, url) = (format!("Authorization: Bearer {token}"), format!("https://{service}{path}"));
        let options = ["--silent", "--insecure", "--max-time", "30", "--output", "/dev/null", "--write-out"];
        let request = ["%{http_code}", "--request", method, "--header", "Host: pollux.pollux.svc", "--header", &bearer];
        node.run("curl", &[&options[..], &request, &[&url]].concat()).unwrap()
    };
    let assignment = |id: u64| format!("/v1/jobs/{id}/assignment");
    assert_eq!(asks(&worker, "GET", &assignment(own)), "200");
    let closed = [
        ("GET", assignment(foreign)),
        ("POST", format!("/v1/jobs/{foreign}/ready")),
        ("GET", format!("/v1/jobs/{own}")),
        ("GET", "/v1/jobs".to_owned()),
        ("POST", format!("/v1/jobs/{own}/cancel")),
        ("GET", "/v1/nodes".to_owned()),
        ("GET", "/v1/tokens".to_owned()),
        ("GET", "/metrics".to_owned()),
    ];
    for (method, path) in closed {
        assert_eq!(asks(&worker, method, &path), "403", "{method} {path}");
    }
    for useless in ["", "a.b.c", &token(&bound)] {
        assert_eq!(asks(useless, "GET", &assignment(own)), "401", "it is for nobody, or for the API server");
    }
    for training in [job, other] {
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
