use pollux_engine::{Command, Engine, EngineSettings, Event};
use pollux_job::JobSpec;
use pollux_policy::{JobId, NodeId, PolicySettings, Timestamp};

use crate::script::check;

#[test]
fn a_submitted_job_is_launched_by_the_first_plan_that_gives_it_gpus() {
    check(
        "0  join n0 4                 =>
         5  submit j1 2               =>
         5  explain j1                => waits for round
         5  wakeup                    => 60
         60 tick                      =>
         60 explain j1                => waits for gpus, contention
         120 tick j1=n0*2             => launch j1 r1 n0*2
         120 explain j1               => waits for ready, contention
         150 ready j1 r1              =>
         150 show j1                  => running r1 n0*2
         150 explain j1               => waits for nothing, contention",
    );
}

#[test]
fn fifo_starts_jobs_in_order_and_lets_nobody_overtake() {
    let mut engine = Engine::new(EngineSettings::default(), &PolicySettings::Fifo).unwrap();
    let mut out = Vec::new();
    let (node, gpu_type) = (NodeId(0), Default::default());
    let joined = Event::NodeJoined { node, gpus: 4, gpu_type, cpus: None, memory: None };
    engine.step(Timestamp(0), joined, &mut out);
    for (id, replicas) in [(1, 2), (2, 3), (3, 1)] {
        let spec = JobSpec { retries: 0, ..JobSpec::new("fifo", replicas) };
        engine.step(Timestamp(0), Event::JobSubmitted { job: JobId(id), spec }, &mut out);
    }
    engine.step(Timestamp(60_000), Event::Tick, &mut out);
    let launched: Vec<_> = out
        .iter()
        .map(|command| match command {
            Command::Launch { job, allocation, .. } => (job.0, allocation.replicas()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(launched, [(1, 2)]);
    assert_eq!(engine.last_plan().map(|(at, plan)| (at, plan.assignments.len())), Some((Timestamp(60_000), 3)));
}

#[test]
fn a_rigid_job_gets_its_gang_as_a_whole_and_keeps_it() {
    check(
        "0   join n0 4                =>
         0   submit j1 1              =>
         0   submit j2 4 rigid        =>
         60  tick j1=n0*1             => launch j1 r1 n0*1
         90  ready j1 r1              =>
         120 tick j2=n0*3             => plan rejected: job 2 gets 3 replicas: expected 0 or 4 to 4
         180 tick j1=none j2=n0*4     => stop j1 r1 n0*1 preempted
         180 explain j2               => waits for release, contention
         190 released j1 r1 n0*1      => launch j2 r1 n0*4
         200 ready j2 r1              =>
         240 tick j1=n0*1 j2=none     => plan rejected: job 2 keeps what it has, but the plan changes it",
    );
}

#[test]
fn a_job_too_large_for_the_cluster_waits_until_it_has_grown() {
    check(
        "0   join n0 4                =>
         0   submit j1 8 min=8        =>
         60  tick                     =>
         60  explain j1               => waits for gpus, impossible
         70  join n1 4                =>
         120 tick                     =>
         120 explain j1               => waits for gpus, contention
         180 tick j1=n0*4+n1*4        => launch j1 r1 n0*4+n1*4",
    );
}

#[test]
fn a_job_may_succeed_before_its_whole_group_is_ready() {
    check(
        "0   join n0 4                =>
         0   submit j1 2              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         61  succeeded j1 r1          => stop j1 r1 n0*2 succeeded
         61  show j1                  => succeeded leaving r1 n0*2
         62  released j1 r1 n0*1      =>
         63  released j1 r1 n0*1      =>
         63  show j1                  => gone
         63  wakeup                   => never",
    );
}

#[test]
fn a_job_that_never_spoke_is_left_alone_until_it_reports() {
    check(
        "0   join n0 4                =>
         0   submit j1 2              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         90  silent j1 r1             =>
         90  show j1                  => running r1 n0*2
         90  view                     => j1 [n0*2] pinned restarts 0 cost_s 30
         91  silent j1 r1             => refused: job 1 is running: this cannot be done now
         95  report j1 r1             =>
         95  view                     => j1 [n0*2] restarts 0 cost_s 35
         120 tick j1=n0*3             => resize j1 r2 keep n0*2 add n0*1; launch j1 r2 n0*1
         150 silent j1 r2             => refused: job 1 is resizing: this cannot be done now",
    );
}

#[test]
fn the_time_to_train_does_not_run_while_a_group_waits_for_something_outside() {
    check(
        "0     join n0 4                =>
         0     submit j1 2              =>
         60    tick j1=n0*2             => launch j1 r1 n0*2
         70    pending j1 r1            =>
         70    explain j1               => waits for pending, contention
         71    pending j1 r1            =>
         5000  tick j1=n0*2             =>
         5000  placed j1 r1             =>
         5000  explain j1               => waits for ready, contention
         6799  tick j1=n0*2             =>
         6800  tick j1=n0*2             => stop j1 r1 n0*2 failed",
    );
}

#[test]
fn nobody_waits_for_something_outside_for_ever() {
    check(
        "0     join n0 4                =>
         0     submit j1 2              =>
         60    tick j1=n0*2             => launch j1 r1 n0*2
         70    pending j1 r1            =>
         86459 tick j1=n0*2             =>
         86460 tick j1=n0*2             => stop j1 r1 n0*2 failed
         86461 pending j1 r1            => refused: job 1 is queued: this cannot be done now",
    );
}

#[test]
fn the_launch_of_a_program_that_was_silent_for_long_is_measured_when_it_first_speaks() {
    check(
        "0   join n0 4                =>
         0   submit j1 2              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         90  silent j1 r1             =>
         160 ready j1 r1              =>
         160 view                     => j1 [n0*2] restarts 0 cost_s 100
         161 ready j1 r1              => refused: job 1 is running: this cannot be done now
         170 report j1 r1             =>
         170 view                     => j1 [n0*2] restarts 0 cost_s 100",
    );
}
