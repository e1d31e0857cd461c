use pollux_engine::EngineSettings;

use crate::script::{check, check_with};

#[test]
fn a_failed_group_is_stopped_and_retried_after_a_growing_backoff() {
    check(
        "0   join n0 4                =>
         0   submit j1 2 retries=2    =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         70  failed j1 r1 n0          => stop j1 r1 n0*2 failed
         70  explain j1               => waits for backoff until 80, contention
         71  failed j1 r1 n0          => refused: job 1 is queued: this cannot be done now
         75  released j1 r1 n0*2      =>
         75  wakeup                   => 80
         80  tick                     =>
         80  show j1                  => queued
         120 tick                     => launch j1 r2 n0*2
         130 launch-failed j1 r2 n0   => stop j1 r2 n0*2 failed
         130 show j1                  => queued until 150 leaving r2 n0*2
         135 released j1 r2 n0*2      =>
         180 tick                     => launch j1 r3 n0*2
         190 failed j1 r3 n0          => stop j1 r3 n0*2 failed
         190 show j1                  => failed RetriesExhausted { retries: 2, cause: Replica { node: NodeId(0) } } leaving r3 n0*2
         191 released j1 r3 n0*2      =>
         191 show j1                  => gone",
    );
}

#[test]
fn a_job_in_backoff_is_left_out_of_plans() {
    check(
        "0   join n0 4                =>
         0   submit j1 2              =>
         50  tick                     =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         115 failed j1 r1 n0          => stop j1 r1 n0*2 failed
         120 tick j1=n0*2             => plan rejected: job 1 is unknown or planned twice
         120 released j1 r1 n0*2      =>
         180 tick                     => launch j1 r2 n0*2",
    );
}

#[test]
fn a_permanent_failure_is_not_retried() {
    check(
        "0   join n0 4                =>
         0   submit j1 2              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         70  failed j1 r1 n0 permanent => stop j1 r1 n0*2 failed
         70  show j1                  => failed Permanent { cause: Replica { node: NodeId(0) } } leaving r1 n0*2
         71  report j1 r1 steps=1     => refused: job 1 has ended
         72  released j1 r1 n0*2      =>
         73  cancel j1                => refused: job 1 has ended",
    );
}

#[test]
fn a_failure_in_the_middle_of_a_resize_stops_old_and_new_replicas() {
    check(
        "0   join n0 4                =>
         0   submit j1 2              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         90  ready j1 r1              =>
         120 tick j1=n0*3             => resize j1 r2 keep n0*2 add n0*1; launch j1 r2 n0*1
         125 failed j1 r1 n0          => stop j1 r2 n0*3 failed
         130 released j1 r2 n0*3      =>
         140 show j1                  => queued until 135",
    );
}

#[test]
fn a_group_that_never_trains_counts_as_failed() {
    check(
        "0    join n0 4               =>
         0    submit j1 2 retries=0   =>
         60   tick j1=n0*2            => launch j1 r1 n0*2
         1859 tick                    =>
         1860 tick                    => stop j1 r1 n0*2 failed
         1860 show j1                 => failed RetriesExhausted { retries: 0, cause: Timeout } leaving r1 n0*2",
    );
}

#[test]
fn waiting_for_the_gpus_of_others_is_not_held_against_a_job() {
    check_with(
        EngineSettings { settle_timeout_s: 100.0, ..EngineSettings::default() },
        "0   join n0 2                =>
         0   submit j1 1              =>
         0   submit j2 1              =>
         60  tick j1=n0*1 j2=n0*1     => launch j1 r1 n0*1; launch j2 r1 n0*1
         90  ready j1 r1              =>
         90  ready j2 r1              =>
         120 tick j1=none j2=n0*2     => stop j1 r1 n0*1 preempted; resize j2 r2 keep n0*1 add n0*1
         600 tick                     =>
         601 released j1 r1 n0*1      => launch j2 r2 n0*1
         700 tick                     =>
         701 tick                     => stop j2 r2 n0*2 failed",
    );
}

#[test]
fn a_node_on_which_several_jobs_fail_cools_down() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   join n2 4                =>
         0   join n3 4                =>
         0   submit j1 1              =>
         0   submit j2 1              =>
         0   submit j3 1              =>
         60  tick j1=n0*1 j2=n0*1 j3=n0*1 => launch j1 r1 n0*1; launch j2 r1 n0*1; launch j3 r1 n0*1
         61  failed j1 r1 n0          => stop j1 r1 n0*1 failed
         61  released j1 r1 n0*1      =>
         62  failed j2 r1 n0          => stop j2 r1 n0*1 failed
         62  released j2 r1 n0*1      =>
         121 failed j3 r1 n0          => stop j3 r1 n0*1 failed
         122 tick                     => launch j1 r2 n1*1; launch j2 r2 n1*1
         123 ready j1 r2              =>
         190 tick j1=n0*1+n1*1        => plan rejected: job 1 gets replicas on node 0, which takes none
         1080 tick j1=n0*1+n1*1       => resize j1 r3 keep n1*1 add n0*1; launch j1 r3 n0*1",
    );
}

#[test]
fn a_single_node_never_cools_down() {
    check(
        "0   join n0 4                =>
         0   submit j1 1              =>
         0   submit j2 1              =>
         0   submit j3 1              =>
         60  tick j1=n0*1 j2=n0*1 j3=n0*1 => launch j1 r1 n0*1; launch j2 r1 n0*1; launch j3 r1 n0*1
         61  failed j1 r1 n0          => stop j1 r1 n0*1 failed
         61  failed j2 r1 n0          => stop j2 r1 n0*1 failed
         61  failed j3 r1 n0          => stop j3 r1 n0*1 failed
         62  released j1 r1 n0*1      =>
         120 tick                     => launch j1 r2 n0*1",
    );
}

#[test]
fn a_node_that_cannot_start_a_replica_is_left_alone_for_a_while() {
    check(
        "0   join n0 4                     =>
         0   join n1 4                     =>
         0   submit j1 2                   =>
         60  tick j1=n0*2                  => launch j1 r1 n0*2
         61  launch-failed j1 r1 n0        => stop j1 r1 n0*2 failed
         62  released j1 r1 n0*2           =>
         120 tick                          => launch j1 r2 n1*2",
    );
}

#[test]
fn what_the_machine_is_to_blame_for_uses_up_no_retries() {
    check(
        "0   join n0 4                         =>
         0   join n1 4                         =>
         0   submit j1 2 retries=0             =>
         60  tick j1=n0*2                      => launch j1 r1 n0*2
         61  launch-failed j1 r1 n0 machine    => stop j1 r1 n0*2 failed
         62  released j1 r1 n0*2               =>
         120 tick                              => launch j1 r2 n1*2
         121 launch-failed j1 r2 n1 machine    => stop j1 r2 n1*2 failed
         121 show j1                           => queued until 141 leaving r2 n1*2",
    );
}

#[test]
fn a_job_that_a_node_would_not_take_is_tried_elsewhere_and_others_may_still_use_the_node() {
    check(
        "0   join n0 4                         =>
         0   join n1 8                         =>
         0   submit j1 2 retries=0             =>
         0   submit j2 1                       =>
         60  tick j1=n0*2                      => launch j1 r1 n0*2
         61  pending j1 r1                     =>
         240 failed j1 r1 n0 machine           => stop j1 r1 n0*2 failed
         241 released j1 r1 n0*2               =>
         300 tick j2=n0*1                      => launch j1 r2 n1*2; launch j2 r1 n0*1
         301 pending j1 r2                     =>
         480 failed j1 r2 n1 machine           => stop j1 r2 n1*2 failed
         481 released j1 r2 n1*2               =>
         540 tick                              => launch j1 r3 n0*2",
    );
}

#[test]
fn what_machines_cannot_start_drives_nobody_out_again() {
    check(
        "0    join n0 4                        =>
         0    submit j1 4                      =>
         0    submit j2 2                      =>
         60   tick j1=n0*4                     => launch j1 r1 n0*4
         61   ready j1 r1                      =>
         120  tick j1=n0*2 j2=n0*2             => resize j1 r2 keep n0*2 remove n0*2
         121  released j1 r2 n0*2              => launch j2 r1 n0*2
         121  ready j1 r2                      =>
         122  launch-failed j2 r1 n0 machine   => stop j2 r1 n0*2 failed
         123  released j2 r1 n0*2              =>
         123  show j2                          => queued until 132
         180  tick j1=n0*4                     => resize j1 r3 keep n0*2 add n0*2; launch j1 r3 n0*2
         181  ready j1 r3                      =>
         240  view                             => j1 [n0*4] restarts 2 cost_s 1
         240  tick                             =>
         721  view                             => j1 [n0*4] restarts 2 cost_s 1
         722  view                             => j1 [n0*4] restarts 2 cost_s 1; j2 [] restarts 0 cost_s 30",
    );
}

#[test]
fn what_machines_cannot_start_is_tried_ever_more_rarely_and_then_given_up() {
    check_with(
        EngineSettings { machine_failures_max: 2, ..EngineSettings::default() },
        "0   join n0 4                         =>
         0   submit j1 2 retries=0             =>
         60  tick j1=n0*2                      => launch j1 r1 n0*2
         70  launch-failed j1 r1 n0 machine    => stop j1 r1 n0*2 failed
         70  show j1                           => queued until 80 leaving r1 n0*2
         71  released j1 r1 n0*2               =>
         120 tick                              => launch j1 r2 n0*2
         130 launch-failed j1 r2 n0 machine    => stop j1 r2 n0*2 failed
         130 show j1                           => queued until 150 leaving r2 n0*2
         131 released j1 r2 n0*2               =>
         180 tick                              => launch j1 r3 n0*2
         185 ready j1 r3                       =>
         190 failed j1 r3 n0 machine           => stop j1 r3 n0*2 failed
         190 show j1                           => queued until 200 leaving r3 n0*2
         191 released j1 r3 n0*2               =>
         240 tick                              => launch j1 r4 n0*2
         250 launch-failed j1 r4 n0 machine    => stop j1 r4 n0*2 failed
         251 released j1 r4 n0*2               =>
         300 tick                              => launch j1 r5 n0*2
         310 launch-failed j1 r5 n0 machine    => stop j1 r5 n0*2 failed
         310 show j1                           => failed MachineFailures { failures: 3, cause: Launch { node: NodeId(0) } } leaving r5 n0*2",
    );
}

#[test]
fn a_job_that_fails_to_start_gets_only_what_nobody_uses_until_it_has_waited_long() {
    check(
        "0    join n0 4                =>
         0    submit j1 2              =>
         0    submit j2 2              =>
         60   tick j1=n0*2 j2=n0*2     => launch j1 r1 n0*2; launch j2 r1 n0*2
         61   ready j1 r1              =>
         65   failed j2 r1 n0          => stop j2 r1 n0*2 failed
         66   released j2 r1 n0*2      =>
         120  tick j1=n0*4             => resize j1 r2 keep n0*2 add n0*2; launch j1 r2 n0*2
         121  ready j1 r2              =>
         121  view                     => j1 [n0*4] restarts 1 cost_s 1
         180  tick j1=n0*2             => resize j1 r3 keep n0*2 remove n0*2
         181  released j1 r3 n0*2      =>
         182  ready j1 r3              =>
         240  tick                     => launch j2 r2 n0*2
         241  view                     => j1 [n0*2] restarts 2 cost_s 1.5; j2 [n0*2] pinned restarts 1 cost_s 30
         250  ready j2 r2              =>
         255  view                     => j1 [n0*2] restarts 2 cost_s 1.5; j2 [n0*2] pinned restarts 1 cost_s 10
         260  failed j2 r2 n0          => stop j2 r2 n0*2 failed
         261  released j2 r2 n0*2      =>
         300  tick j1=n0*4             => resize j1 r4 keep n0*2 add n0*2; launch j1 r4 n0*2
         301  ready j1 r4              =>
         360  tick                     =>
         1459 view                     => j1 [n0*4] restarts 3 cost_s 1.25
         1460 view                     => j1 [n0*4] restarts 3 cost_s 1.25; j2 [] restarts 1 cost_s 10
         1500 tick j1=n0*2 j2=n0*2     => resize j1 r5 keep n0*2 remove n0*2
         1501 released j1 r5 n0*2      => launch j2 r3 n0*2
         1502 ready j2 r3              =>
         1502 ready j1 r5              =>
         1560 view                     => j1 [n0*2] restarts 4 cost_s 1.625; j2 [n0*2] pinned restarts 2 cost_s 5.5
         1561 view                     => j1 [n0*2] restarts 4 cost_s 1.625; j2 [n0*2] restarts 2 cost_s 5.5",
    );
}
