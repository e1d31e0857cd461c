use pollux_engine::{Engine, EngineSettings, Event};
use pollux_job::{JobId, JobSpec};
use pollux_model::GpuTypeName;
use pollux_policy::{Binding, NodeId, PolicySettings, Timestamp};

use crate::script::check;

#[test]
fn a_replica_holds_all_its_gpus_and_is_billed_for_them() {
    check(
        "0   join n0 4                =>
         0   submit j1 1 gpus=2       =>
         0   submit j2 1 gpus=4       =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         70  ready j1 r1              =>
         80  usage j1                 => gpu_s 80 executed_s 20 queued_s 60 restarts 0 cost_s Some(10.0) remaining None
         120 tick j1=n0*1 j2=n0*1     => plan rejected: node 0 has 4 GPUs but its replicas need 6
         180 tick j1=none j2=n0*1     => stop j1 r1 n0*2 preempted
         181 released j1 r1 n0*1      =>
         182 show j2                  => queued towards n0*1
         183 released j1 r1 n0*1      => launch j2 r1 n0*1",
    );
}

#[test]
fn replicas_wait_for_cpus_and_memory_until_those_who_had_them_are_gone() {
    check(
        "0   join n0 8 cpus=8 memory=64         =>
         0   submit j1 1 cpus=4                 =>
         0   submit j2 1 cpus=3 memory=32       =>
         0   submit j3 1 memory=33              =>
         60  tick j1=n0*2                       => launch j1 r1 n0*2
         70  ready j1 r1                        =>
         120 tick j1=n0*2 j2=n0*1               => plan rejected: node 0 has 8 CPUs but its replicas need 11
         180 tick j1=n0*1 j2=n0*1               => resize j1 r2 keep n0*1 remove n0*1
         181 show j2                            => queued towards n0*1
         182 released j1 r2 n0*1                => launch j2 r1 n0*1
         183 ready j2 r1                        =>
         240 tick j3=n0*1                       => plan rejected: node 0 has 64 B of memory but its replicas need 65 B
         300 tick j2=none j3=n0*1               => stop j2 r1 n0*1 preempted
         301 released j2 r1 n0*1                => launch j3 r1 n0*1",
    );
}

#[test]
fn a_guest_waits_for_cpus_of_its_own() {
    check(
        "0   join n0 4 cpus=4                   =>
         0   submit j1 2 cpus=1                 =>
         0   submit j2 1 cpus=2                 =>
         0   submit j3 1 cpus=2                 =>
         60  tick j1=n0*2 j3=n0*1               => launch j1 r1 n0*2; launch j3 r1 n0*1
         70  ready j1 r1                        =>
         70  ready j3 r1                        =>
         120 tick j1=n0*2 j2=n0*1@j1 j3=n0*1    => plan rejected: node 0 has 4 CPUs but its replicas need 6
         180 tick j1=n0*2 j2=n0*1@j1 j3=none    => stop j3 r1 n0*1 preempted
         181 show j2                            => queued towards n0*1@j1
         182 released j3 r1 n0*1                => launch j2 r1 n0*1@j1
         190 ready j2 r1                        =>
         200 succeeded j1 r1                    => stop j1 r1 n0*2 succeeded
         201 show j2                            => running r1 n0*1
         202 released j1 r1 n0*2                =>",
    );
}

#[test]
fn what_no_node_can_take_is_said() {
    check(
        "0   join n0 4 cpus=8 memory=64     =>
         0   submit j1 1 gpus=5             =>
         0   submit j2 1 cpus=9             =>
         0   submit j3 1 memory=65          =>
         0   submit j4 5 min=5              =>
         0   submit j5 1                    =>
         60  tick                           =>
         61  explain j1                     => waits for gpus, toolargeforanode
         61  explain j2                     => waits for gpus, notenoughcpus
         61  explain j3                     => waits for gpus, notenoughmemory
         61  explain j4                     => waits for gpus, impossible
         61  explain j5                     => waits for gpus, contention",
    );
}

#[test]
fn a_job_runs_only_on_the_types_it_allows_also_on_those_that_come_later() {
    check(
        "0   join n0 4 type=t4                  =>
         0   submit j1 1 types=a100             =>
         0   submit j2 1 types=a100,t4          =>
         60  tick j1=n0*1                       => plan rejected: job 1 gets replicas on node 0, whose kind of GPU it may not use
         120 tick j2=n0*1                       => launch j2 r1 n0*1
         121 explain j1                         => waits for gpus, nosuchtype
         130 ready j2 r1                        =>
         140 join n1 4 type=a100                =>
         180 tick j1=n1*2                       => launch j1 r1 n1*2
         190 ready j1 r1                        =>
         240 tick j2=n0*1+n1*1                  => plan rejected: job 2 gets GPUs of several kinds",
    );
}

#[test]
fn the_types_that_a_job_allows_outlive_a_restart() {
    let mut engine = Engine::new(EngineSettings::default(), &PolicySettings::Fifo).unwrap();
    let gpu_type = GpuTypeName::new("t4").unwrap();
    let joined = Event::NodeJoined { node: NodeId(0), gpus: 4, gpu_type, cpus: None, memory: None };
    let spec = JobSpec { gpu_types: vec!["a100".to_owned()], ..JobSpec::new("test", 1) };
    for event in [joined, Event::JobSubmitted { job: JobId(1), spec }] {
        engine.step(Timestamp(0), event, &mut Vec::new());
    }
    let restored = Engine::restore(EngineSettings::default(), &PolicySettings::Fifo, engine.state());
    let mut restored = restored.unwrap();
    let mut out = Vec::new();
    restored.step(Timestamp(60_000), Event::Tick, &mut out);
    assert_eq!(out, [], "the only node has other GPUs");
    let reason = restored.explain(JobId(1)).and_then(|explanation| explanation.reason);
    assert_eq!(reason.map(|reason| reason.binding), Some(Binding::NoSuchType));
}

#[test]
fn what_a_node_has_besides_its_gpus_may_become_known_later() {
    check(
        "0   join n0 4                          =>
         0   submit j1 1 cpus=3 memory=10       =>
         0   submit j2 1 cpus=6                 =>
         0   submit j3 1 cpus=9                 =>
         60  tick j1=n0*1                       => launch j1 r1 n0*1
         70  resources n0 cpus=8 memory=64      =>
         120 tick j1=n0*1 j2=n0*1               => plan rejected: node 0 has 8 CPUs but its replicas need 9
         180 tick                               =>
         181 explain j3                         => waits for gpus, notenoughcpus
         190 resources n0 cpus=9 memory=64      =>
         240 tick j2=n0*1                       => launch j2 r1 n0*1
         250 resources n0                       =>
         300 tick j3=n0*1                       => launch j3 r1 n0*1
         310 resources n7 cpus=1                => refused: node 7 is unknown",
    );
}

#[test]
fn a_node_with_less_than_its_replicas_were_given_takes_nothing_until_enough_of_them_are_gone() {
    check(
        "0   join n0 8 cpus=8                   =>
         0   submit j1 1 cpus=4 nonpreemptible  =>
         0   submit j2 1 cpus=4                 =>
         0   submit j3 1                        =>
         60  tick j1=n0*1 j2=n0*1               => launch j1 r1 n0*1; launch j2 r1 n0*1
         70  ready j1 r1                        =>
         70  ready j2 r1                        =>
         80  resources n0 cpus=5                =>
         120 tick                               =>
         121 show j1                            => running r1 n0*1
         180 tick j3=n0*1                       => plan rejected: job 3 gets replicas on node 0, which takes none
         240 tick j2=none                       => stop j2 r1 n0*1 preempted
         250 released j2 r1 n0*1                =>
         300 tick j2=n0*1 j3=n0*1               => plan rejected: node 0 has 5 CPUs but its replicas need 8
         360 tick j3=n0*1                       => launch j3 r1 n0*1",
    );
}

#[test]
fn additions_that_wait_for_a_node_with_other_resources_are_planned_anew() {
    check(
        "0   join n0 4 cpus=4                   =>
         0   join n1 4 cpus=8                   =>
         0   submit j1 1 cpus=4                 =>
         0   submit j2 1 cpus=4                 =>
         60  tick j1=n0*1 j2=n1*2               => launch j1 r1 n0*1; launch j2 r1 n1*2
         70  ready j1 r1                        =>
         70  ready j2 r1                        =>
         120 tick j1=n0*1+n1*1 j2=n1*1          => resize j1 r2 keep n0*1 add n1*1; resize j2 r2 keep n1*1 remove n1*1
         130 resources n1 cpus=7                => resize j1 r3 keep n0*1
         140 released j2 r2 n1*1                =>
         150 ready j1 r3                        =>",
    );
}
