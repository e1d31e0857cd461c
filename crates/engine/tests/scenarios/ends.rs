//! Nodes that know when they end.

use crate::script::check;

#[test]
fn a_node_takes_nothing_new_once_it_is_to_be_empty() {
    check(
        "0   join n0 4                =>
         0   submit j1 2              =>
         0   submit j2 2              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         61  ready j1 r1              =>
         61  ends n0 100 400          =>
         61  wakeup                   => 100
         100 tick                     =>
         101 show j1                  => running r1 n0*2
         120 tick j1=n0*2 j2=n0*2     => plan rejected: job 2 gets replicas on node 0, which takes none
         180 tick j1=none j2=none     => stop j1 r1 n0*2 preempted
         181 show j1                  => queued leaving r1 n0*2",
    );
}

#[test]
fn a_job_on_several_nodes_leaves_the_one_that_ends_in_place() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 4              =>
         60  tick j1=n0*2+n1*2        => launch j1 r1 n0*2+n1*2
         61  ready j1 r1              =>
         61  ends n1 100 400          =>
         100 tick                     =>
         120 tick j1=n0*4             => resize j1 r2 keep n0*2 remove n1*2 add n0*2; launch j1 r2 n0*2
         121 released j1 r2 n1*2      =>
         122 ready j1 r2              =>
         122 nodes                    => n0 4 of 4; n1 0 of 4",
    );
}

#[test]
fn jobs_that_no_plan_may_move_leave_in_time() {
    check(
        "0   join n0 4                   =>
         0   join n1 4                   =>
         0   submit j1 2 nonpreemptible  =>
         0   submit j2 4 rigid           =>
         60  tick j1=n0*1+n1*1 j2=n0*2+n1*2 => launch j1 r1 n0*1+n1*1; launch j2 r1 n0*2+n1*2
         61  ready j1 r1                 =>
         61  ready j2 r1                 =>
         61  ends n1 100                 =>
         100 tick                        => resize j1 r2 keep n0*1 remove n1*1; stop j2 r1 n0*2+n1*2 nodeends
         101 show j2                     => queued leaving r1 n0*2+n1*2",
    );
}

#[test]
fn a_node_whose_end_comes_later_is_used_on() {
    check(
        "0   join n0 4                =>
         0   submit j1 2              =>
         0   submit j2 2              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         61  ready j1 r1              =>
         61  ends n0 100 400          =>
         100 tick                     =>
         110 ends n0 900 999          =>
         120 tick j1=n0*2 j2=n0*2     => launch j2 r1 n0*2
         130 ends n0                  =>
         131 ends n9 900              => refused: node 9 is unknown
         950 ready j2 r1              =>
         950 ends n0 800              =>
         951 show j2                  => running r1 n0*2
         960 tick j1=n0*3             => plan rejected: job 1 gets replicas on node 0, which takes none",
    );
}

#[test]
fn who_waits_for_a_node_that_ends_waits_for_another() {
    check(
        "0   join n0 2                =>
         0   submit j1 2              =>
         0   submit j2 2              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         61  ready j1 r1              =>
         120 tick j1=none j2=n0*2     => stop j1 r1 n0*2 preempted
         121 show j2                  => queued towards n0*2
         121 ends n0 130              =>
         130 tick                     =>
         131 show j2                  => queued
         132 released j1 r1 n0*2      =>",
    );
}

#[test]
fn a_job_whose_only_node_ends_grows_onto_another_before_it_leaves() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 2 max=4        =>
         60  tick j1=n0*4             => launch j1 r1 n0*4
         61  ready j1 r1              =>
         61  ends n0 100 400          =>
         100 tick                     =>
         120 tick j1=n1*4             => resize j1 r2 keep n0*1 remove n0*3 add n1*3; launch j1 r2 n1*3
         121 released j1 r2 n0*3      =>
         122 ready j1 r2              =>
         180 tick j1=n1*4             => resize j1 r3 keep n1*3 remove n0*1 add n1*1; launch j1 r3 n1*1
         181 released j1 r3 n0*1      =>
         182 ready j1 r3              =>
         182 show j1                  => running r3 n1*4
         182 nodes                    => n0 0 of 4; n1 4 of 4",
    );
}

#[test]
fn a_job_of_one_replica_has_to_stop_to_leave_the_node_that_ends() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 1 max=1        =>
         60  tick j1=n0*1             => launch j1 r1 n0*1
         61  ready j1 r1              =>
         61  ends n0 100 400          =>
         100 tick                     =>
         120 tick j1=n1*1             => stop j1 r1 n0*1 moved
         121 released j1 r1 n0*1      => launch j1 r2 n1*1",
    );
}

#[test]
fn nothing_starts_where_it_could_not_train_as_long_as_its_start_takes() {
    // A start is taken to cost 30 s.
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   ends n1 179              =>
         0   submit j1 2 max=8        =>
         0   submit j2 2              =>
         0   submit j3 4 rigid        =>
         60  tick j1=n0*2+n1*2        => launch j1 r1 n0*2+n1*2
         61  ready j1 r1              =>
         120 tick j1=n0*4+n1*2 j2=n1*2 => resize j1 r2 keep n0*2+n1*2 add n0*2; launch j1 r2 n0*2
         121 ready j1 r2              =>
         121 show j2                  => queued
         122 ends n1 300              =>
         180 tick j1=n0*2+n1*4        => resize j1 r3 keep n0*2+n1*2 remove n0*2 add n1*2; launch j1 r3 n1*2",
    );
}

#[test]
fn who_would_move_to_a_node_that_ends_too_soon_stays_or_waits() {
    // A start of the first job takes 1 s, as was measured.
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 2 max=2        =>
         0   submit j2 4 rigid        =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         61  ready j1 r1              =>
         61  ends n1 122              =>
         120 tick j1=n1*2             =>
         121 show j1                  => running r1 n0*2
         121 ends n1 182              =>
         180 tick j1=n1*2 j2=n0*4     => stop j1 r1 n0*2 preempted
         181 released j1 r1 n0*2      => launch j2 r1 n0*4
         182 show j1                  => queued",
    );
}

#[test]
fn a_job_that_gets_what_is_left_does_not_get_what_ends_too_soon() {
    check(
        "0   join n0 4                       =>
         0   submit j1 2 retries=2           =>
         60  tick j1=n0*2                    => launch j1 r1 n0*2
         61  launch-failed j1 r1 n0 machine  => stop j1 r1 n0*2 failed
         62  released j1 r1 n0*2             =>
         62  ends n0 179                     =>
         120 tick                            =>
         121 show j1                         => queued
         122 ends n0 500                     =>
         180 tick                            => launch j1 r2 n0*2",
    );
}
