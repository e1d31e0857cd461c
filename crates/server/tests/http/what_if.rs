use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::StatusCode;
use pollux_api::{BeforeAfter, Job, WhatIf, WhatIfChoices};
use pollux_backend::Exit;
use pollux_job::Phase;
use pollux_policy::JobId;
use serde_json::Value;

use crate::calls::Site;
use crate::world::elastic;

/// A cluster whose first job trains and has said how long, and whose second has said nothing.
async fn training() -> Site {
    let site = Site::with_policy(&[("a", 4)], elastic()).await;
    let asked =
        r#"{"name":"known","command":["train"],"working_dir":"/","work":{"baseline_steps":1000},"replicas_max":4}"#;
    site.post("/v1/jobs", asked).await.json::<Job>(StatusCode::CREATED);
    let mut spoken = BTreeMap::new();
    site.until("the first report", async || {
        let (world, handle) = (&site.world, site.server.handle());
        spoken = tokio::task::block_in_place(|| {
            world.speak(handle, &mut spoken);
            std::mem::take(&mut spoken)
        });
        let told = handle.look(|cluster| cluster.engine().job(JobId(1))?.remaining_samples()).get().await;
        told.unwrap()
    })
    .await;
    site
}

async fn ask(site: &Site, changes: &str) -> WhatIf {
    site.post("/v1/what-if", format!(r#"{{"changes":{changes}}}"#)).await.json(StatusCode::OK)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_what_if_tells_both_futures_and_changes_nothing() {
    let site = training().await;
    let jobs =
        async || site.get("/v1/jobs?limit=9").await.json::<Value>(StatusCode::OK)["jobs"].as_array().unwrap().len();
    let answer =
        ask(&site, r#"[{"submit":{"trains_like":{"job":1},"name":"new","work":{"baseline_steps":100}}}]"#).await;
    let [known, new] = &answer.jobs[..] else { panic!("{answer:?}") };
    assert_eq!((known.id, known.name.as_str(), known.phase.is_some()), (Some(1), "known", true));
    assert!(known.before.completion_s.unwrap() > 0.0);
    assert!(known.after.completion_s > known.before.completion_s, "it has to share: {answer:?}");
    assert_eq!((new.id, new.phase, new.name.as_str()), (None, None, "new"));
    assert_eq!((new.before.completion_s, new.before.why.as_deref()), (None, Some("it is not submitted")));
    assert!(new.after.completion_s.unwrap() < known.after.completion_s.unwrap());
    let average = answer.average_completion_s.unwrap();
    assert_eq!((Some(average.before), Some(average.after)), (known.before.completion_s, known.after.completion_s));
    assert_eq!(answer.makespan_s.after, known.after.completion_s);
    assert_eq!(answer.policy, BeforeAfter { before: "pollux".to_owned(), after: "pollux".to_owned() });
    assert_eq!(answer.notes, ["Complete in one future only, and not compared: new."]);
    assert_eq!(jobs().await, 1);

    let larger = ask(&site, r#"[{"add_nodes":{"count":1,"gpus":4}},{"policy":{"name":"castor"}}]"#).await;
    assert_eq!(larger.policy.after, "castor");
    let cancelled = ask(&site, r#"[{"cancel":{"job":1}}]"#).await;
    assert_eq!(cancelled.jobs[0].after.why.as_deref(), Some("it is cancelled"));
    assert_eq!((cancelled.average_completion_s, cancelled.makespan_s), (None, BeforeAfter::default()));
    assert_eq!(cancelled.notes, ["Complete in one future only, and not compared: known."]);
    let long = ask(&site, r#"[{"submit":{"trains_like":{"job":1},"work":{"baseline_steps":100000}}}]"#).await;
    assert_eq!(long.makespan_s.after, long.jobs[0].after.completion_s, "a job of one future is no last of both");
    let emptied = ask(&site, r#"[{"drain":{"node":"a"}}]"#).await;
    assert_eq!(emptied.jobs[0].after.why.as_deref(), Some("it needs 1 GPU, and 0 can be used"));
    assert_eq!((jobs().await, site.world.running().is_empty()), (1, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_submission_can_say_counts_in_a_what_if() {
    let site = training().await;
    let new = async |fields: &str| {
        let answer = ask(&site, &format!(r#"[{{"submit":{{"trains_like":{{"job":1}},{fields}}}}}]"#)).await;
        answer.jobs.last().unwrap().after.clone()
    };
    for (fields, why) in [
        (r#""gpus_per_replica":8"#, "no node that can be used has the GPUs of one of its replicas"),
        (r#""gpu_types":["H100"]"#, "no node that can be used has a type of GPU that it allows"),
        (r#""time_limit":"1s""#, "it reaches its time limit of 1 s before it is complete"),
    ] {
        assert_eq!(new(fields).await.why.as_deref(), Some(why), "{fields}");
    }
    site.world.set_resources(Some(8), Some(1 << 30));
    for (fields, what) in [(r#""cpus":9"#, "CPUs"), (r#""memory":"2G""#, "memory")] {
        let why = format!("no node that can be used has the {what} of one of its replicas");
        site.until("the node's resources", async || (new(fields).await.why.as_deref() == Some(&*why)).then_some(()))
            .await;
    }
    let [first, second] = [new(r#""batch_size":64"#).await, new(r#""batch_size":64,"depends_on":[1]"#).await]
        .map(|it| it.completion_s.unwrap());
    assert!(second > first, "it waits for the other to end: {first} {second}");
    let failure = site.post("/v1/what-if", r#"{"changes":[{"submit":{"trains_like":{"job":1},"depends_on":[9]}}]}"#);
    assert_eq!(failure.await.failure(404).1, "job 9 is unknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_over_can_be_trained_like_and_one_that_kept_silent_cannot() {
    let site = training().await;
    let silent = site.submit("silent", 1).await;
    let unlike =
        site.post("/v1/what-if", format!(r#"{{"changes":[{{"submit":{{"trains_like":{{"job":{silent}}}}}}}]}}"#));
    let message = format!("job {silent} has not reported any training: expected one that has");
    assert_eq!(unlike.await.failure(422), ("bad_change".into(), message));
    let answer = ask(&site, "[]").await;
    assert_eq!(answer.jobs[1].before.why.as_deref(), Some("no progress reported yet"));
    assert_eq!(answer.notes.len(), 1, "{:?}", answer.notes);
    for id in [1, silent] {
        site.post(&format!("/v1/jobs/{id}/cancel"), "").await.is_done();
    }
    site.until("the end", async || {
        for order in site.world.running() {
            site.world.exit(order.replica.0, Exit::Code(0));
        }
        let ended: Job = site.get("/v1/jobs/1").await.json(StatusCode::OK);
        (ended.phase == Phase::Cancelled && ended.ended_ms.is_some()).then_some(())
    })
    .await;
    let after = |dependency: &str| format!(r#"{{"submit":{{"trains_like":{{"job":1}},"depends_on":[{dependency}]}}}}"#);
    let refused = site.post("/v1/what-if", format!(r#"{{"changes":[{}]}}"#, after("1")));
    let message = "depends_on 1: it is cancelled; expected a job that is not over or has succeeded, or 1:end";
    assert_eq!(refused.await.failure(422), ("bad_job".into(), message.into()));
    let answer = ask(&site, &format!("[{}]", after(r#"{"job":1,"after":"end"}"#))).await;
    assert!(answer.jobs.last().unwrap().after.completion_s.is_some(), "what is over is not waited for: {answer:?}");
    let like = r#"{"submit":{"trains_like":{"job":1}}}"#;
    let application = r#"{"submit":{"trains_like":{"application":"ncf"},"work":{"epochs":1}}}"#;
    let answer = ask(&site, &format!("[{like},{application}]")).await;
    let new: Vec<&str> = answer.jobs.iter().filter(|job| job.id.is_none()).map(|job| job.name.as_str()).collect();
    assert_eq!(new, ["known", "ncf"]);
    assert!(
        answer.jobs.iter().filter(|job| job.id.is_none()).all(|job| job.after.completion_s.is_some()),
        "{answer:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_whose_asker_has_left_keeps_nobody_waiting() {
    let site = training().await;
    let long = vec![r#"{"submit":{"trains_like":{"application":"imagenet"}}}"#; 63].join(",");
    for _ in 0..3 {
        let asked = site.post("/v1/what-if", format!(r#"{{"changes":[{long}]}}"#));
        drop(tokio::time::timeout(Duration::from_millis(100), asked).await);
    }
    assert_eq!(ask(&site, "[]").await.jobs.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_be_asked_is_told_and_all_of_it_is_answered() {
    let site = training().await;
    let choices: WhatIfChoices = site.get("/v1/what-if").await.json(StatusCode::OK);
    assert!(choices.policies.len() > 5 && choices.applications.len() > 3, "{choices:?}");
    for name in choices.policies {
        assert_eq!(ask(&site, &format!(r#"[{{"policy":{{"name":"{name}"}}}}]"#)).await.policy.after, name);
    }
    for name in choices.applications {
        let change = format!(r#"[{{"submit":{{"trains_like":{{"application":"{name}"}},"work":{{"epochs":1}}}}}}]"#);
        assert_eq!(ask(&site, &change).await.jobs[1].name, name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_make_no_sense_are_refused_in_a_line() {
    let site = Site::new(&[("a", 1)]).await;
    let submit = |job: &str| format!(r#"{{"submit":{{"trains_like":{job}}}}}"#);
    for (change, status, code, message) in [
        (r#"{"cancel":{"job":9}}"#.to_owned(), 404, "unknown_job", "job 9 is unknown"),
        (r#"{"drain":{"node":"b"}}"#.to_owned(), 404, "unknown_node", "b is no node that is up"),
        (r#"{"policy":{"name":"magic"}}"#.to_owned(), 422, "bad_change", "unknown policy \"magic\": expected "),
        (r#"{"policy":{"name":"optimus-oracle"}}"#.to_owned(), 422, "bad_change", "policy optimus-oracle has to know"),
        (r#"{"add_nodes":{"count":0,"gpus":4}}"#.to_owned(), 422, "bad_change", "0 nodes of 4 GPUs: expected 1"),
        (
            r#"{"add_nodes":{"count":1,"gpus":4,"gpu_type":"x"}}"#.to_owned(),
            422,
            "bad_change",
            "gpu_type \"x\": expected one that nodes have or jobs were measured on: ",
        ),
        (submit(r#"{"job":9}"#), 404, "unknown_job", "job 9 is unknown"),
        (submit(r#"{"application":"resnet"}"#), 422, "bad_change", "application \"resnet\"; expected bert, "),
        (r#"{"explode":{}}"#.to_owned(), 422, "bad_content", "unknown variant `explode`"),
    ] {
        let failure = site.post("/v1/what-if", format!(r#"{{"changes":[{change}]}}"#)).await.failure(status);
        assert!(failure.0 == code && failure.1.contains(message), "{change}: {failure:?}");
    }
    let many = vec![r#"{"policy":{"name":"fifo"}}"#; 65].join(",");
    let failure = site.post("/v1/what-if", format!(r#"{{"changes":[{many}]}}"#)).await.failure(422);
    assert_eq!(failure.1, "65 changes: expected 64 or fewer");
}
