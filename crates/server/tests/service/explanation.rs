use std::collections::BTreeMap;

use pollux_api::Explanation;
use pollux_policy::{JobId, PolicySettings};
use pollux_server::{Handle, explain};

use crate::world::{World, elastic, eventually, request, settings};

fn explanation(handle: &Handle, job: JobId) -> Explanation {
    handle.look(move |cluster| explain(cluster, job, &|_| true)).wait().unwrap().unwrap()
}

/// Sentences without the moments in them.
fn sentences(explanation: &Explanation) -> Vec<String> {
    let without_numbers = |sentence: &String| {
        let is_moment = |word: &str| word.parse::<f64>().is_ok();
        let words: Vec<&str> = sentence.split(' ').collect();
        let keep = words.iter().enumerate().filter(|(idx, word)| {
            let seconds = words.get(idx + 1).is_some_and(|next| next.trim_end_matches(['.', ',']) == "s");
            !(is_moment(word) && seconds)
        });
        keep.map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
    };
    explanation.sentences.iter().map(without_numbers).collect()
}

#[test]
fn a_job_that_waits_is_told_for_what_and_who_would_pay() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1)]);
    let server = world.serve(settings(folder.path(), elastic()));
    let handle = server.handle();
    let first = handle.submit(request("first", 1)).wait().unwrap();
    eventually("the launch", || {
        world.speak(handle, &mut BTreeMap::new());
        (explanation(handle, first).binding.as_deref() == Some("maximum")).then_some(())
    });
    let second = handle.submit(request("second", 1)).wait().unwrap();
    eventually("a plan", || (explanation(handle, second).wait.as_deref() == Some("gpus")).then_some(()));
    let told = explanation(handle, second);
    assert_eq!((told.binding.as_deref(), told.fair_share), (Some("contention"), Some(0.5)));
    assert_eq!(
        sentences(&told)[..3],
        [
            "second (job 2) has waited for s.",
            "It needs 1 GPU at once; no GPU that it may use is free, and pollux puts other jobs first.",
            "The GPU would have to come from first (job 1), whose goodput would fall by 100%."
        ]
    );
}

#[test]
fn a_job_that_is_alone_has_all_and_one_that_shrinks_is_told_since_when() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 4)]);
    let server = world.serve(settings(folder.path(), elastic()));
    let handle = server.handle();
    let mut spoken = BTreeMap::new();
    let first = handle.submit(request("first", 1)).wait().unwrap();
    let mut has = |replicas: u32, binding: &str| {
        eventually("the size", || {
            world.speak(handle, &mut spoken);
            let told = explanation(handle, first);
            let settled = told.phase == pollux_job::Phase::Running && told.binding.as_deref() == Some(binding);
            (told.replicas == replicas && settled).then_some(told)
        })
    };
    let alone = has(4, "maximum");
    assert_eq!(sentences(&alone)[2], "It has the whole cluster: 4 GPUs.");
    assert!(alone.one_fewer.unwrap() < 0.0);
    assert_eq!(alone.sizes.iter().map(|size| size.replicas).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(alone.sizes.windows(2).all(|pair| pair[0].goodput < pair[1].goodput));
    handle.submit(request("second", 1)).wait().unwrap();
    let shrunk = has(2, "contention");
    // The second starts with one GPU, to be measured first.
    assert_eq!(sentences(&shrunk)[1], "It was shrunk from 3 to 2 GPUs s ago.");
    assert!(shrunk.one_more.unwrap() > 0.0 && shrunk.payer.is_some());
}

#[test]
fn a_job_that_no_cluster_like_this_can_run_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 2)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let handle = server.handle();
    let mut large = request("large", 4);
    large.replicas_min = 4;
    let job = handle.submit(large).wait().unwrap();
    let told = eventually("a plan", || {
        Some(explanation(handle, job)).filter(|told| told.binding.as_deref() == Some("impossible"))
    });
    assert_eq!(
        told.sentences[1],
        "It needs at least 4 GPUs of one type, and the cluster has 2: it waits for nodes to be added."
    );
}

#[test]
fn what_another_type_of_gpu_would_be_worth_is_told_as_the_estimate_that_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("t4-0", 1), ("a100-0", 1)]);
    let server = world.serve(settings(folder.path(), elastic()));
    let handle = server.handle();
    let job = handle.submit(request("first", 1)).wait().unwrap();
    let told = eventually("an estimate", || {
        world.speak(handle, &mut BTreeMap::new());
        let told = explanation(handle, job);
        told.sentences.iter().any(|sentence| sentence.contains("an estimate")).then_some(told)
    });
    let names: Vec<&str> = told.types.iter().map(|outlook| outlook.gpu_type.as_str()).collect();
    assert_eq!(names, ["a100", "t4"]);
    let [there] = &told.types.iter().filter(|outlook| outlook.is_estimated).collect::<Vec<_>>()[..] else {
        panic!("one of them was measured: {told:?}")
    };
    assert_eq!(there.change, Some(0.0), "nobody ran on both: {told:?}");
    let sentence =
        format!("On {} its goodput would be the same, which is an estimate: it never ran there.", there.gpu_type);
    assert!(told.sentences.contains(&sentence), "{told:?}");
}
