use crate::script::check;

#[test]
fn a_guest_starts_on_the_gpus_of_its_host_once_that_is_there() {
    check(
        "0   join n0 2                =>
         0   submit j1 2              =>
         0   submit j2 1              =>
         60  tick j2=n0*1             => launch j2 r1 n0*1
         70  ready j2 r1              =>
         120 tick j1=n0*2 j2=n0*1@j1  => stop j2 r1 n0*1 moved
         121 show j1                  => queued towards n0*2
         121 show j2                  => queued towards n0*1@j1 leaving r1 n0*1
         122 released j2 r1 n0*1      => launch j1 r1 n0*2; launch j2 r2 n0*1@j1
         123 view                     => j1 [n0*2] pinned restarts 0 cost_s 30; j2 [n0*1@j1] pinned restarts 1 cost_s 10
         130 ready j1 r1              =>
         131 view                     => j1 [n0*2] pinned restarts 0 cost_s 8; j2 [n0*1@j1] pinned restarts 1 cost_s 10
         140 ready j2 r2              =>
         141 view                     => j1 [n0*2] restarts 0 cost_s 8; j2 [n0*1@j1] restarts 1 cost_s 14
         180 tick                     =>
         182 usage j2                 => gpu_s 122 executed_s 122 queued_s 62 restarts 1 cost_s Some(14.0) remaining None",
    );
}

#[test]
fn a_guest_whose_host_ends_goes_on_alone_and_owns_its_gpus() {
    check(
        "0   join n0 2                =>
         0   submit j1 2              =>
         0   submit j2 1              =>
         0   submit j3 1              =>
         0   submit j4 1              =>
         60  tick j1=n0*2 j2=n0*1@j1  => launch j1 r1 n0*2; launch j2 r1 n0*1@j1
         70  ready j1 r1              =>
         70  ready j2 r1              =>
         100 succeeded j1 r1          => stop j1 r1 n0*2 succeeded
         101 show j2                  => running r1 n0*1
         101 view                     => j2 [n0*1] restarts 0 cost_s 10; j3 [] restarts 0 cost_s 30; j4 [] restarts 0 cost_s 30
         120 tick j3=n0*1 j4=n0*1@j2  =>
         130 released j1 r1 n0*1      =>
         131 released j1 r1 n0*1      => launch j3 r1 n0*1; launch j4 r1 n0*1@j2
         132 show j4                  => starting r1 n0*1@j2",
    );
}

#[test]
fn a_guest_outlives_a_host_that_is_paused_fails_or_is_cancelled() {
    for (event, command) in [
        ("pause j1", "stop j1 r1 n0*2 paused"),
        ("cancel j1", "stop j1 r1 n0*2 cancelled"),
        ("failed j1 r1 n0", "stop j1 r1 n0*2 failed"),
    ] {
        check(&format!(
            "0   join n0 2                =>
             0   submit j1 2              =>
             0   submit j2 2              =>
             60  tick j1=n0*2 j2=n0*2@j1  => launch j1 r1 n0*2; launch j2 r1 n0*2@j1
             70  ready j1 r1              =>
             70  {event}                  => {command}
             71  show j2                  => starting r1 n0*2
             72  released j1 r1 n0*2      =>
             80  ready j2 r1              =>
             80  show j2                  => running r1 n0*2"
        ));
    }
}

#[test]
fn a_guest_is_promoted_in_place_when_a_plan_sends_its_host_away() {
    check(
        "0   join n0 1                =>
         0   join n1 1                =>
         0   submit j1 1              =>
         0   submit j2 1              =>
         0   submit j3 2              =>
         60  tick j1=n0*1 j2=n0*1@j1  => launch j1 r1 n0*1; launch j2 r1 n0*1@j1
         70  ready j1 r1              =>
         70  ready j2 r1              =>
         120 tick j1=n1*1 j2=n0*1     => stop j1 r1 n0*1 moved
         120 show j2                  => running r1 n0*1
         121 released j1 r1 n0*1      => launch j1 r2 n1*1
         130 ready j1 r2              =>
         180 tick j1=none j2=n0*1 j3=none => stop j1 r2 n1*1 preempted
         181 released j1 r2 n1*1      =>
         240 tick j3=n0*1+n1*1 j2=n0*1@j3 => stop j2 r1 n0*1 moved
         241 released j2 r1 n0*1      => launch j3 r1 n0*1+n1*1; launch j2 r2 n0*1@j3
         250 ready j3 r1              =>
         250 ready j2 r2              =>
         300 tick j3=n1*1 j2=n0*1     => resize j3 r2 keep n1*1 remove n0*1
         300 show j2                  => running r2 n0*1",
    );
}

#[test]
fn another_host_or_a_host_that_stays_is_a_move() {
    check(
        "0   join n0 4                =>
         0   submit j1 2              =>
         0   submit j2 2              =>
         0   submit j3 1              =>
         60  tick j1=n0*2 j2=n0*2 j3=n0*1@j1 => launch j1 r1 n0*2; launch j3 r1 n0*1@j1; launch j2 r1 n0*2
         70  ready j1 r1              =>
         70  ready j2 r1              =>
         70  ready j3 r1              =>
         120 tick j3=n0*1@j2          => stop j3 r1 n0*1 moved
         120 show j3                  => queued towards n0*1@j2 leaving r1 n0*1
         121 released j3 r1 n0*1      => launch j3 r2 n0*1@j2
         130 ready j3 r2              =>
         180 tick j2=n0*1 j3=n0*1     => resize j2 r2 keep n0*1 remove n0*1; stop j3 r2 n0*1 moved
         181 released j2 r2 n0*1      =>
         182 released j3 r2 n0*1      => launch j3 r3 n0*1",
    );
}

#[test]
fn the_next_guest_waits_for_the_one_before_it() {
    check(
        "0   join n0 1                =>
         0   submit j1 1              =>
         0   submit j2 1              =>
         0   submit j3 1              =>
         60  tick j1=n0*1 j2=n0*1@j1  => launch j1 r1 n0*1; launch j2 r1 n0*1@j1
         70  ready j1 r1              =>
         70  ready j2 r1              =>
         120 tick j2=none j3=n0*1@j1  => stop j2 r1 n0*1 preempted
         121 explain j3               => waits for release, contention
         121 wakeup                   => 180
         125 released j2 r1 n0*1      => launch j3 r1 n0*1@j1",
    );
}

#[test]
fn a_guest_follows_its_host_through_resizes() {
    check(
        "0   join n0 2                =>
         0   join n1 2                =>
         0   submit j1 2              =>
         0   submit j2 2              =>
         60  tick j1=n0*2 j2=n0*2@j1  => launch j1 r1 n0*2; launch j2 r1 n0*2@j1
         70  ready j1 r1              =>
         70  ready j2 r1              =>
         120 tick j1=n0*1+n1*1 j2=n0*1+n1*1@j1 => resize j1 r2 keep n0*1 remove n0*1 add n1*1; resize j2 r2 keep n0*1 remove n0*1 add n1*1; launch j1 r2 n1*1; launch j2 r2 n1*1@j1
         121 show j2                  => resizing r2 n0*1+n1*1@j1 leaving r2 n0*1
         130 ready j1 r2              =>
         130 ready j2 r2              =>
         180 tick j1=n1*1 j2=n1*1@j1  => resize j1 r3 keep n1*1 remove n0*1; resize j2 r3 keep n1*1 remove n0*1
         181 show j2                  => resizing r3 n1*1@j1 leaving r2 n0*1 leaving r3 n0*1",
    );
}

#[test]
fn a_guest_that_waits_for_more_takes_what_is_free_when_its_host_goes() {
    check(
        "0   join n0 1                =>
         0   join n1 1                =>
         0   join n2 1                =>
         0   submit j1 3              =>
         0   submit j2 2              =>
         0   submit j3 1              =>
         60  tick j1=n0*1 j2=n0*1@j1 j3=n2*1 => launch j1 r1 n0*1; launch j2 r1 n0*1@j1; launch j3 r1 n2*1
         70  ready j1 r1              =>
         70  ready j2 r1              =>
         70  ready j3 r1              =>
         120 tick j1=n0*1+n1*1+n2*1 j2=n0*1+n1*1@j1 j3=none => resize j1 r2 keep n0*1 add n1*1+n2*1; stop j3 r1 n2*1 preempted; resize j2 r2 keep n0*1 add n1*1
         130 pause j1                 => stop j1 r2 n0*1 paused; launch j2 r2 n1*1",
    );
}

#[test]
fn a_lost_node_takes_host_and_guest_but_not_what_they_have_elsewhere() {
    check(
        "0   join n0 2                =>
         0   join n1 2                =>
         0   submit j1 4 rigid        =>
         0   submit j2 2              =>
         60  tick j1=n0*2+n1*2 j2=n0*1+n1*1@j1 => launch j1 r1 n0*2+n1*2; launch j2 r1 n0*1+n1*1@j1
         70  ready j1 r1              =>
         70  ready j2 r1              =>
         80  lost n0                  => stop j1 r1 n1*2 nodelost; resize j2 r2 keep n1*1
         81  show j2                  => resizing r2 n1*1
         90  ready j2 r2              =>
         91  released j1 r1 n1*2      =>
         91  show j2                  => running r2 n1*1",
    );
}

#[test]
fn who_waits_for_a_host_that_will_not_come_waits_for_the_next_plan() {
    check(
        "0   join n0 2                =>
         0   submit j1 2              =>
         0   submit j2 2              =>
         0   submit j3 1              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         70  ready j1 r1              =>
         120 tick j1=none j2=n0*2 j3=n0*1@j2 => stop j1 r1 n0*2 preempted
         121 show j3                  => queued towards n0*1@j2
         122 cancel j2                =>
         122 show j3                  => queued
         123 released j1 r1 n0*2      =>
         180 tick j1=n0*2 j3=n0*1@j1  => launch j1 r2 n0*2; launch j3 r1 n0*1@j1",
    );
}

#[test]
fn a_guest_that_may_not_be_moved_keeps_its_host_where_it_is() {
    check(
        "0   join n0 2                =>
         0   submit j1 1              =>
         0   submit j2 1 rigid        =>
         60  tick j1=n0*1 j2=n0*1@j1  => launch j1 r1 n0*1; launch j2 r1 n0*1@j1
         70  ready j1 r1              =>
         70  ready j2 r1              =>
         80  view                     => j1 [n0*1] pinned restarts 0 cost_s 10; j2 [n0*1@j1] pinned restarts 0 cost_s 10
         120 tick j1=n0*2             => plan rejected: job 1 keeps what it has, but the plan changes it
         180 tick j2=n0*1             => plan rejected: job 2 keeps what it has, but the plan changes it
         240 tick                     =>",
    );
}
