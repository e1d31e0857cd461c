use pollux_engine::EngineSettings;

use crate::script::{check, check_with};

fn on_events() -> EngineSettings {
    EngineSettings { replans_on_events: true, ..EngineSettings::default() }
}

#[test]
fn rounds_on_events_come_at_once_but_keep_their_distance() {
    check_with(
        on_events(),
        "0   join n0 4                =>
         0   wakeup                   => never
         61  submit j1 1              =>
         61  wakeup                   => 61
         61  tick j1=n0*1             => launch j1 r1 n0*1
         62  submit j2 1              =>
         63  submit j3 1              =>
         63  wakeup                   => 71
         70  tick                     =>
         71  tick j2=n0*1 j3=n0*1     => launch j2 r1 n0*1; launch j3 r1 n0*1
         71  wakeup                   => 120",
    );
}

#[test]
fn departures_failures_and_nodes_bring_the_next_round_forward() {
    check_with(
        on_events(),
        "0   submit j1 1              =>
         0   submit j2 1              =>
         0   tick                     =>
         11  join n0 4                =>
         11  wakeup                   => 11
         11  tick j1=n0*1 j2=n0*1     => launch j1 r1 n0*1; launch j2 r1 n0*1
         30  succeeded j1 r1          => stop j1 r1 n0*1 succeeded
         30  wakeup                   => 30
         30  tick                     =>
         45  failed j2 r1 n0          => stop j2 r1 n0*1 failed
         45  wakeup                   => 45
         45  tick                     =>
         45  wakeup                   => 55
         55  tick                     =>
         55  wakeup                   => 65
         65  tick                     =>
         70  drain n0                 =>
         70  wakeup                   => 75",
    );
}

#[test]
fn without_replanning_on_events_rounds_follow_the_timer_alone() {
    check(
        "0   join n0 4                =>
         10  submit j1 1              =>
         10  wakeup                   => 60
         59  tick j1=n0*1             =>
         60  tick j1=n0*1             => launch j1 r1 n0*1
         75  join n1 4                =>
         75  wakeup                   => 120
         130 tick                     =>
         130 wakeup                   => 180",
    );
}

#[test]
fn a_policy_sees_what_jobs_will_have_and_may_not_touch_what_does_not_train_yet() {
    check(
        "0   join n0 4                =>
         0   submit j1 2              =>
         0   submit j2 2              =>
         0   submit j3 2              =>
         0   submit j4 2              =>
         10  pause j4                 =>
         60  tick j1=n0*2 j2=n0*2     => launch j1 r1 n0*2; launch j2 r1 n0*2
         60  view                     => j1 [n0*2] pinned restarts 0 cost_s 30; j2 [n0*2] pinned restarts 0 cost_s 30; j3 [] restarts 0 cost_s 30
         100 ready j1 r1              =>
         100 ready j2 r1              =>
         100 view                     => j1 [n0*2] restarts 0 cost_s 40; j2 [n0*2] restarts 0 cost_s 40; j3 [] restarts 0 cost_s 30
         120 tick j1=n0*3 j2=none j3=n0*1 => resize j1 r2 keep n0*2 add n0*1; stop j2 r1 n0*2 preempted
         120 view                     => j1 [n0*3] pinned restarts 1 cost_s 40; j2 [] restarts 0 cost_s 40; j3 [] restarts 0 cost_s 30",
    );
}

#[test]
fn a_broken_plan_is_dropped_and_the_cluster_carries_on() {
    check(
        "0   join n0 4                =>
         0   submit j1 2              =>
         0   submit j2 2              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         90  ready j1 r1              =>
         120 tick j1=n0*3 j2=n0*2     => plan rejected: node 0 has 4 GPUs but its replicas need 5
         180 tick j9=n0*1             => plan rejected: job 9 is unknown or planned twice
         240 tick j2=n7*1             => plan rejected: job 2 gets replicas on node 7, which takes none
         240 show j1                  => running r1 n0*2
         300 tick j2=n0*2             => launch j2 r1 n0*2",
    );
}

#[test]
fn time_does_not_go_back() {
    check(
        "100 join n0 4                =>
         100 submit j1 1              =>
         50  wakeup                   => 120
         50  tick j1=n0*1             =>
         120 tick j1=n0*1             => launch j1 r1 n0*1
         30  ready j1 r1              =>
         150 usage j1                 => gpu_s 30 executed_s 30 queued_s 20 restarts 0 cost_s Some(0.0) remaining None",
    );
}
