//! What workers are told, and what they tell.

use std::collections::BTreeMap;

use pollux_api::{Assignment, Endpoint, ReadyRequest, Rendezvous, RendezvousRequest, ReportRequest};
use pollux_job::{JobId, JobSpec};
use pollux_model::BatchMode;
use pollux_policy::PolicySettings;
use pollux_server::{Handle, Refused, explain};

use crate::world::{World, elastic, eventually, report, request, settings};

fn assignment(handle: &Handle, job: JobId) -> Option<Assignment> {
    handle.assignment(job).map(|watch| watch.borrow().clone())
}

/// A job that fits on one node, as a whole.
fn small(name: &str) -> JobSpec {
    JobSpec { replicas_min: 2, replicas_max: Some(2), ..request(name, 2) }
}

/// Sizes for which the scheduler knows the goodput of a job.
fn known_sizes(handle: &Handle, job: JobId) -> usize {
    handle.look(move |cluster| cluster.engine().outlook(job).len()).wait().unwrap()
}

#[test]
fn a_server_with_two_types_of_gpu_schedules_both_by_goodput_and_names_them() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a100-0", 2), ("t4-0", 2)]);
    let server = world.serve(settings(folder.path(), elastic()));
    let handle = server.handle();
    let jobs = ["first", "second"].map(|name| handle.submit(small(name)).wait().unwrap());
    let mut spoken = BTreeMap::new();
    for job in jobs {
        eventually("goodput on its type", || {
            world.speak(handle, &mut spoken);
            (known_sizes(handle, job) > 0).then_some(())
        });
    }
    let types: Vec<String> = jobs
        .iter()
        .map(|&job| {
            let replicas = assignment(handle, job).unwrap().replicas;
            let gpu_type = replicas[0].gpu_type.to_string();
            assert_eq!(replicas[0].node, format!("{gpu_type}-0"));
            assert!(replicas.iter().all(|replica| replica.gpu_type == replicas[0].gpu_type), "{replicas:?}");
            gpu_type
        })
        .collect();
    assert_ne!(types[0], types[1], "there is room for one of them on each");
    for (job, gpu_type) in jobs.into_iter().zip(&types) {
        let explanation = handle.look(move |cluster| explain(cluster, job, &|_| true)).wait().unwrap().unwrap();
        let named = format!("({gpu_type})");
        assert!(explanation.sentences[0].contains(&named), "{:?}", explanation.sentences);
    }
    let names = handle.look(|cluster| {
        let nodes = cluster.engine().nodes();
        let named = |node: &pollux_engine::Node| {
            (cluster.node_name(node.id()).to_owned(), cluster.gpu_type_name(node.gpu_type()).to_owned())
        };
        nodes.map(named).collect::<Vec<_>>()
    });
    let names = names.wait().unwrap();
    let told: Vec<_> = names.iter().map(|(name, gpu_type)| (name.as_str(), gpu_type.as_str())).collect();
    assert_eq!(told, [("a100-0", "a100"), ("t4-0", "t4")]);
    handle.shut_down().wait().unwrap();
    server.join().unwrap();

    let again = world.serve(settings(folder.path(), elastic()));
    for (job, gpu_type) in jobs.into_iter().zip(&types) {
        assert!(known_sizes(again.handle(), job) > 0, "what was told of {gpu_type} is known after a restart");
    }
    world.check();
}

#[test]
fn what_a_worker_of_version_0_1_reports_of_type_0_is_of_the_type_it_runs_on() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a100-0", 1), ("t4-0", 1)]);
    let server = world.serve(settings(folder.path(), elastic()));
    let handle = server.handle();
    let single = || JobSpec { replicas_max: Some(1), ..request("one", 1) };
    let jobs = [(); 2].map(|()| handle.submit(single()).wait().unwrap());
    for job in jobs {
        let told = eventually("the launch", || assignment(handle, job).filter(|told| !told.replicas.is_empty()));
        let mut body = serde_json::to_value(ReportRequest { generation: 1, report: report(&told) }).unwrap();
        body["report"]["types"][0]["gpu_type"] = 0.into();
        let generation = 1;
        eventually("ready", || handle.ready(job, ReadyRequest { generation, pause_s: None }).wait().ok());
        handle.report(job, serde_json::from_value(body).unwrap()).wait().unwrap();
        assert!(known_sizes(handle, job) > 0, "{:?}", told.replicas);
    }
}

#[test]
fn rank_0_publishes_where_it_waits_and_the_others_are_told_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 2)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let handle = server.handle();
    let job = handle.submit(request("resnet", 2)).wait().unwrap();
    let told = eventually("the launch", || assignment(handle, job).filter(|told| told.replicas.len() == 2));
    assert_eq!(told.rendezvous, Rendezvous::Awaited);
    assert!((20_000..30_000).contains(&told.master_port), "{}", told.master_port);
    let publish = |generation, address: &str, port| {
        let address = address.to_owned();
        handle.rendezvous(job, RendezvousRequest { generation, address, port }).wait()
    };
    assert_eq!(publish(2, "10.0.0.7", 4711), Err(Refused::Stale { job, generation: 2, current: 1 }));
    for (address, port) in [("", 4711), ("10.0.0.7", 0), ("a b", 1), ("http://x/", 1)] {
        let refused = Refused::Rendezvous { address: address.to_owned(), port };
        assert_eq!(publish(1, address, port), Err(refused));
    }
    let mut watch = handle.assignment(job).unwrap();
    watch.mark_unchanged();
    assert_eq!(publish(1, "10.0.0.7", 4711), Ok(()));
    assert!(watch.has_changed().unwrap(), "who waits is woken");
    let there = Rendezvous::At(Endpoint { address: "10.0.0.7".to_owned(), port: 4711 });
    assert_eq!(assignment(handle, job).unwrap().rendezvous, there);
    handle.shut_down().wait().unwrap();
    server.join().unwrap();
    let again = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let told = eventually("the assignment", || assignment(again.handle(), job));
    assert_eq!(told.rendezvous, there);
}

#[test]
fn a_policy_that_leaves_batches_to_users_says_so_to_their_workers() {
    let fixed = |batch_size| BatchMode::Fixed { batch_size };
    let tiresias = || PolicySettings::named("tiresias").unwrap();
    for (policy, batch_size, expected) in [
        (tiresias(), Some(64), fixed(Some(64))),
        (tiresias(), None, fixed(None)),
        (PolicySettings::Fifo, Some(64), fixed(Some(64))),
        (elastic(), Some(64), BatchMode::Adaptive),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let world = World::new(&[("a", 1)]);
        let server = world.serve(settings(folder.path(), policy));
        let job = server.handle().submit(JobSpec { batch_size, ..request("resnet", 1) }).wait().unwrap();
        let told = eventually("the launch", || assignment(server.handle(), job));
        assert_eq!(told.batch, expected);
    }
}
