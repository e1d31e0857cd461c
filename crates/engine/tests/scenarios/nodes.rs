use crate::script::check;

#[test]
fn a_lost_node_harms_only_its_own_jobs_and_costs_them_no_retry() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 2 retries=0    =>
         0   submit j2 2 retries=0    =>
         60  tick j1=n0*2 j2=n1*2     => launch j1 r1 n0*2; launch j2 r1 n1*2
         90  ready j1 r1              =>
         90  ready j2 r1              =>
         100 lost n1                  =>
         100 show j1                  => running r1 n0*2
         100 show j2                  => queued
         120 tick j2=n0*2             => launch j2 r2 n0*2",
    );
}

#[test]
fn a_training_job_goes_on_with_what_a_lost_node_leaves_it() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 2 retries=0    =>
         60  tick j1=n0*2+n1*2        => launch j1 r1 n0*2+n1*2
         90  ready j1 r1              =>
         100 lost n1                  => resize j1 r2 keep n0*2
         110 ready j1 r2              =>
         110 show j1                  => running r2 n0*2",
    );
}

#[test]
fn survivors_that_break_with_their_lost_node_start_anew_without_a_retry() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 2 retries=0    =>
         60  tick j1=n0*2+n1*2        => launch j1 r1 n0*2+n1*2
         90  ready j1 r1              =>
         100 lost n1                  => resize j1 r2 keep n0*2
         101 failed j1 r1 n0          => stop j1 r2 n0*2 failed
         102 released j1 r2 n0*2      =>
         102 show j1                  => queued",
    );
}

#[test]
fn too_few_survivors_stop_and_a_rigid_gang_stops_as_a_whole() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 3 min=3        =>
         0   submit j2 4 rigid        =>
         60  tick j1=n0*2+n1*1 j2=n0*2+n1*2 => launch j1 r1 n0*2+n1*1; launch j2 r1 n0*2+n1*2
         90  ready j1 r1              =>
         90  ready j2 r1              =>
         100 lost n1                  => stop j1 r1 n0*2 nodelost; stop j2 r1 n0*2 nodelost
         101 released j1 r1 n0*2+n1*1 => refused: 1 replicas released by revision 1 of job 1 were not on their way out
         101 released j2 r1 n0*2      =>
         120 tick j2=n0*4             => launch j2 r2 n0*4",
    );
}

#[test]
fn a_job_that_only_waited_for_a_lost_node_trains_on() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 2              =>
         0   submit j2 2              =>
         0   submit j3 2              =>
         60  tick j1=n0*2 j2=n1*4     => launch j1 r1 n0*2; launch j2 r1 n1*4
         90  ready j1 r1              =>
         90  ready j2 r1              =>
         120 tick j1=n0*3+n1*1 j2=none j3=n1*2 => resize j1 r2 keep n0*2 add n0*1+n1*1; stop j2 r1 n1*4 preempted
         130 lost n1                  => resize j1 r3 keep n0*2 add n0*1; launch j1 r3 n0*1
         130 show j3                  => queued
         130 show j2                  => queued",
    );
}

#[test]
fn a_group_that_does_not_train_yet_starts_anew_after_a_loss() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 2              =>
         60  tick j1=n0*2+n1*2        => launch j1 r1 n0*2+n1*2
         70  lost n1                  => stop j1 r1 n0*2 nodelost
         75  released j1 r1 n0*2      =>
         120 tick j1=n0*2             => launch j1 r2 n0*2
         150 ready j1 r2              =>
         160 join n2 4                =>
         180 tick j1=n0*2+n2*1        => resize j1 r3 keep n0*2 add n2*1; launch j1 r3 n2*1
         185 lost n2                  => stop j1 r3 n0*2 nodelost",
    );
}

#[test]
fn a_job_that_ended_is_gone_when_the_node_of_its_last_replica_is() {
    check(
        "0   join n0 4                =>
         0   submit j1 2              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         70  cancel j1                => stop j1 r1 n0*2 cancelled
         71  lost n0                  =>
         71  show j1                  => gone
         72  released j1 r1 n0*2      => refused: job 1 has ended",
    );
}

#[test]
fn a_draining_node_takes_nothing_new_and_the_next_plan_moves_jobs_away() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 2              =>
         0   submit j2 2              =>
         0   submit j3 1              =>
         60  tick j1=n0*2 j3=n1*4     => launch j1 r1 n0*2; launch j3 r1 n1*4
         90  ready j1 r1              =>
         90  ready j3 r1              =>
         120 tick j2=n1*2 j3=n1*2     => resize j3 r2 keep n1*2 remove n1*2
         125 drain n1                 =>
         125 show j2                  => queued
         126 released j3 r2 n1*2      =>
         130 ready j3 r2              =>
         180 tick j2=n1*2             => plan rejected: job 2 gets replicas on node 1, which takes none
         240 tick j3=n0*2             => stop j3 r2 n1*2 moved
         245 released j3 r2 n1*2      => launch j3 r3 n0*2
         250 undrain n1               =>
         300 tick j2=n1*2             => launch j2 r1 n1*2",
    );
}

#[test]
fn additions_that_wait_for_a_node_which_drains_are_given_up() {
    check(
        "0   join n0 4                   =>
         0   join n1 4                   =>
         0   submit j1 2                 =>
         0   submit j2 2                 =>
         60  tick j1=n0*2 j2=n1*4        => launch j1 r1 n0*2; launch j2 r1 n1*4
         90  ready j1 r1                 =>
         90  ready j2 r1                 =>
         120 tick j1=n0*2+n1*2 j2=n0*2   => resize j1 r2 keep n0*2 add n1*2; stop j2 r1 n1*4 moved
         130 drain n1                    => resize j1 r3 keep n0*2
         140 released j2 r1 n1*4         => launch j2 r2 n0*2
         150 ready j1 r3                 =>
         150 show j1                     => running r3 n0*2",
    );
}

#[test]
fn a_node_that_does_not_answer_keeps_what_it_has_and_takes_nothing_new() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 2              =>
         0   submit j2 4              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         61  ready j1 r1              =>
         62  unreachable n0           =>
         62  show j1                  => running r1 n0*2
         120 tick j1=n1*2             => plan rejected: job 1 keeps what it has, but the plan changes it
         180 tick j1=n0*2 j2=n0*1     => plan rejected: job 2 gets replicas on node 0, which takes none
         181 reachable n0             =>
         240 tick j1=n0*2 j2=n0*2     => launch j2 r1 n0*2
         241 unreachable n0           =>
         242 lost n0                  =>
         242 show j1                  => queued",
    );
}

#[test]
fn a_job_of_a_retired_node_starts_elsewhere_when_its_old_replicas_are_gone() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 2 retries=0    =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         90  ready j1 r1              =>
         100 retired n0               => stop j1 r1 n0*2 nodelost
         100 nodes                    => n0 2 of 4 retired; n1 0 of 4
         120 tick j1=n1*2             =>
         121 show j1                  => queued towards n1*2 leaving r1 n0*2
         130 released j1 r1 n0*1      =>
         130 nodes                    => n0 1 of 4 retired; n1 0 of 4
         140 released j1 r1 n0*1      => launch j1 r2 n1*2
         140 nodes                    => n1 2 of 4",
    );
}

#[test]
fn a_training_job_goes_on_with_what_a_retired_node_leaves_it() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 2 retries=0    =>
         60  tick j1=n0*2+n1*2        => launch j1 r1 n0*2+n1*2
         90  ready j1 r1              =>
         100 retired n1               => resize j1 r2 keep n0*2 remove n1*2
         101 nodes                    => n0 2 of 4; n1 2 of 4 retired
         110 ready j1 r2              =>
         111 released j1 r2 n1*2      =>
         111 nodes                    => n0 2 of 4
         112 show j1                  => running r2 n0*2",
    );
}

#[test]
fn an_empty_node_is_retired_at_once_and_a_full_one_is_never_used_again() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 2 rigid        =>
         0   submit j2 1              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         70  retired n1               =>
         70  nodes                    => n0 2 of 4
         80  retired n0               => stop j1 r1 n0*2 nodelost
         81  retired n0               =>
         82  undrain n0               =>
         83  reachable n0             =>
         120 tick j2=n0*1             => plan rejected: job 2 gets replicas on node 0, which takes none
         121 explain j2               => waits for gpus, contention
         180 tick                     =>
         181 explain j2               => waits for gpus, impossible
         190 lost n0                  =>
         190 nodes                    =>
         191 show j1                  => queued
         192 retired n0               => refused: node 0 is unknown",
    );
}

#[test]
fn additions_that_wait_for_a_node_which_is_retired_are_given_up() {
    check(
        "0   join n0 4                   =>
         0   join n1 4                   =>
         0   submit j1 2                 =>
         0   submit j2 2                 =>
         60  tick j1=n0*2 j2=n1*4        => launch j1 r1 n0*2; launch j2 r1 n1*4
         90  ready j1 r1                 =>
         90  ready j2 r1                 =>
         120 tick j1=n0*2+n1*2 j2=n0*2   => resize j1 r2 keep n0*2 add n1*2; stop j2 r1 n1*4 moved
         130 retired n1                  => resize j1 r3 keep n0*2
         140 released j2 r1 n1*4         => launch j2 r2 n0*2
         140 nodes                       => n0 4 of 4",
    );
}
