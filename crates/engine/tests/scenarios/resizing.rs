use crate::script::check;

#[test]
fn a_resize_keeps_removes_and_adds_in_one_revision() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 2              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         90  ready j1 r1              =>
         120 tick j1=n0*1+n1*2        => resize j1 r2 keep n0*1 remove n0*1 add n1*2; launch j1 r2 n1*2
         121 show j1                  => resizing r2 n0*1+n1*2 leaving r2 n0*1
         122 released j1 r2 n0*1      =>
         150 ready j1 r2              =>
         150 show j1                  => running r2 n0*1+n1*2
         180 tick j1=n1*2             => resize j1 r3 keep n1*2 remove n0*1
         181 released j1 r3 n0*1      =>
         190 ready j1 r3              =>
         240 tick j1=n1*4             => resize j1 r4 keep n1*2 add n1*2; launch j1 r4 n1*2
         250 ready j1 r4              =>
         250 show j1                  => running r4 n1*4",
    );
}

#[test]
fn two_jobs_exchange_gpus_although_both_release_late() {
    check(
        "0   join n0 2                =>
         0   join n1 2                =>
         0   submit j1 2              =>
         0   submit j2 2              =>
         60  tick j1=n0*2 j2=n1*2     => launch j1 r1 n0*2; launch j2 r1 n1*2
         90  ready j1 r1              =>
         90  ready j2 r1              =>
         120 tick j1=n0*1+n1*1 j2=n0*1+n1*1 => resize j1 r2 keep n0*1 remove n0*1 add n1*1; resize j2 r2 keep n1*1 remove n1*1 add n0*1
         130 explain j1               => waits for release, contention
         140 ready j1 r2              => refused: job 1 is resizing: this cannot be done now
         180 tick                     =>
         200 released j2 r2 n1*1      => launch j1 r2 n1*1
         300 released j1 r2 n0*1      => launch j2 r2 n0*1
         330 ready j1 r2              =>
         330 ready j2 r2              =>
         330 show j1                  => running r2 n0*1+n1*1",
    );
}

#[test]
fn two_jobs_that_change_places_start_anew_once_both_have_gone() {
    check(
        "0   join n0 2                =>
         0   join n1 2                =>
         0   submit j1 2              =>
         0   submit j2 2              =>
         60  tick j1=n0*2 j2=n1*2     => launch j1 r1 n0*2; launch j2 r1 n1*2
         90  ready j1 r1              =>
         90  ready j2 r1              =>
         120 tick j1=n1*2 j2=n0*2     => stop j1 r1 n0*2 moved; stop j2 r1 n1*2 moved
         125 released j1 r1 n0*2      =>
         130 released j2 r1 n1*1      =>
         135 released j2 r1 n1*1      => launch j1 r2 n1*2; launch j2 r2 n0*2",
    );
}

#[test]
fn a_job_that_moves_into_free_gpus_still_waits_for_its_old_group_to_be_gone() {
    check(
        "0   join n0 2                =>
         0   join n1 2                =>
         0   submit j1 2              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         90  ready j1 r1              =>
         120 tick j1=n1*2             => stop j1 r1 n0*2 moved
         121 show j1                  => queued towards n1*2 leaving r1 n0*2
         150 released j1 r1 n0*2      => launch j1 r2 n1*2",
    );
}

#[test]
fn a_group_that_does_not_train_yet_is_not_changed_by_a_plan() {
    check(
        "0   join n0 4                =>
         0   submit j1 2              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         120 tick j1=n0*4             => plan rejected: job 1 keeps what it has, but the plan changes it
         130 ready j1 r1              =>
         180 tick j1=n0*4             => resize j1 r2 keep n0*2 add n0*2; launch j1 r2 n0*2
         240 tick j1=none             => plan rejected: job 1 keeps what it has, but the plan changes it
         240 show j1                  => resizing r2 n0*4",
    );
}

#[test]
fn a_plan_for_gpus_that_are_still_held_may_be_replaced_by_another() {
    check(
        "0   join n0 2                =>
         0   join n1 2                =>
         0   submit j1 2              =>
         0   submit j2 2 rigid        =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         90  ready j1 r1              =>
         120 tick j1=none j2=n0*2     => stop j1 r1 n0*2 preempted
         180 tick j2=n1*2             => launch j2 r1 n1*2
         190 released j1 r1 n0*2      =>
         240 tick j1=n0*1             => launch j1 r2 n0*1",
    );
}

#[test]
fn words_of_the_old_group_count_until_the_new_one_trains() {
    check(
        "0   join n0 4                =>
         0   submit j1 1              =>
         60  tick j1=n0*1             => launch j1 r1 n0*1
         90  ready j1 r1              =>
         120 tick j1=n0*2             => resize j1 r2 keep n0*1 add n0*1; launch j1 r2 n0*1
         121 report j1 r1 steps=5     =>
         122 ready j1 r1              => refused: revision 1 of job 1 is not listened to: the current one is revision 2
         150 ready j1 r2              =>
         151 report j1 r1 steps=9     => refused: revision 1 of job 1 is not listened to: the current one is revision 2
         152 failed j1 r1 n0          => refused: revision 1 of job 1 is not listened to: the current one is revision 2
         153 succeeded j1 r3          => refused: revision 3 of job 1 is not listened to: the current one is revision 2
         154 succeeded j1 r2          => stop j1 r2 n0*2 succeeded",
    );
}

#[test]
fn words_of_a_group_that_was_replaced_as_a_whole_do_not_count() {
    check(
        "0   join n0 4                =>
         0   submit j1 1              =>
         60  tick j1=n0*1             => launch j1 r1 n0*1
         70  failed j1 r1 n0          => stop j1 r1 n0*1 failed
         71  released j1 r1 n0*1      =>
         120 tick                     => launch j1 r2 n0*1
         121 succeeded j1 r1          => refused: revision 1 of job 1 is not listened to: the current one is revision 2
         122 failed j1 r1 n0          => refused: revision 1 of job 1 is not listened to: the current one is revision 2
         123 show j1                  => starting r2 n0*1",
    );
}

#[test]
fn a_job_that_succeeds_while_it_is_resized_or_preempted_has_succeeded() {
    check(
        "0   join n0 2                =>
         0   submit j1 1              =>
         0   submit j2 1              =>
         60  tick j1=n0*1 j2=n0*1     => launch j1 r1 n0*1; launch j2 r1 n0*1
         90  ready j1 r1              =>
         90  ready j2 r1              =>
         120 tick j1=none j2=n0*2     => stop j1 r1 n0*1 preempted; resize j2 r2 keep n0*1 add n0*1
         121 succeeded j2 r1          => stop j2 r2 n0*1 succeeded
         122 released j1 r1 n0*1      =>
         123 succeeded j1 r1          =>
         124 released j2 r2 n0*1      =>
         124 wakeup                   => never",
    );
}

#[test]
fn a_driver_that_starts_again_learns_what_was_not_confirmed() {
    check(
        "0   join n0 4                =>
         0   submit j1 1              =>
         0   submit j2 1              =>
         0   submit j3 1              =>
         60  tick j1=n0*2 j2=n0*1 j3=n0*1 => launch j1 r1 n0*2; launch j2 r1 n0*1; launch j3 r1 n0*1
         90  ready j1 r1              =>
         90  ready j2 r1              =>
         120 tick j1=n0*1 j2=n0*2     => resize j1 r2 keep n0*1 remove n0*1; resize j2 r2 keep n0*1 add n0*1
         120 outstanding              => stop j1 r2 n0*1 resized; resize j1 r2 keep n0*1; resize j2 r2 keep n0*1 add n0*1; launch j3 r1 n0*1
         130 released j1 r2 n0*1      => launch j2 r2 n0*1
         130 outstanding              => resize j1 r2 keep n0*1; resize j2 r2 keep n0*1 add n0*1; launch j2 r2 n0*1; launch j3 r1 n0*1",
    );
}

#[test]
fn with_a_pod_per_node_another_number_on_a_node_replaces_all_of_it_there_and_whole_nodes_come_and_go_in_place() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   join n2 4                =>
         0   submit j1 2 podpernode   =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         90  ready j1 r1              =>
         120 tick j1=n0*4             => stop j1 r1 n0*2 moved
         125 released j1 r1 n0*2      => launch j1 r2 n0*4
         150 ready j1 r2              =>
         180 tick j1=n0*4+n1*4        => resize j1 r3 keep n0*4 add n1*4; launch j1 r3 n1*4
         210 ready j1 r3              =>
         240 tick j1=n0*4+n1*2+n2*1   => resize j1 r4 keep n0*4 remove n1*4 add n1*2+n2*1
         245 released j1 r4 n1*4      => launch j1 r4 n1*2+n2*1
         270 ready j1 r4              =>
         300 tick j1=n1*2+n2*1        => resize j1 r5 keep n1*2+n2*1 remove n0*4
         301 released j1 r5 n0*4      =>
         310 ready j1 r5              =>
         360 tick j1=n1*1             => stop j1 r5 n1*2+n2*1 moved",
    );
}

#[test]
fn with_a_pod_per_node_a_group_goes_on_while_a_node_of_it_is_replaced_and_after_one_is_lost() {
    check(
        "0   join n0 4                =>
         0   join n1 4                =>
         0   submit j1 2 podpernode   =>
         60  tick j1=n0*2+n1*1        => launch j1 r1 n0*2+n1*1
         90  ready j1 r1              =>
         120 tick j1=n0*2+n1*4        => resize j1 r2 keep n0*2 remove n1*1 add n1*4
         130 lost n1                  => resize j1 r3 keep n0*2
         150 ready j1 r3              =>
         150 show j1                  => running r3 n0*2",
    );
}
