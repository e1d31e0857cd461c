use crate::script::check;

#[test]
fn usage_counts_gpus_from_launch_to_release_and_restarts_after_the_first_start() {
    check(
        "0   join n0 4                =>
         0   submit j1 2              =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         80  ready j1 r1              =>
         100 usage j1                 => gpu_s 80 executed_s 40 queued_s 60 restarts 0 cost_s Some(20.0) remaining None
         120 tick j1=n0*4             => resize j1 r2 keep n0*2 add n0*2; launch j1 r2 n0*2
         160 ready j1 r2              =>
         160 usage j1                 => gpu_s 280 executed_s 100 queued_s 60 restarts 1 cost_s Some(30.0) remaining None
         180 tick j1=none             => stop j1 r2 n0*4 preempted
         190 released j1 r2 n0*4      =>
         240 usage j1                 => gpu_s 400 executed_s 130 queued_s 120 restarts 1 cost_s Some(30.0) remaining None
         240 tick j1=n0*1             => launch j1 r3 n0*1
         250 ready j1 r3 pause=2      =>
         250 usage j1                 => gpu_s 410 executed_s 140 queued_s 120 restarts 2 cost_s Some(2.0) remaining None
         260 succeeded j1 r3          => stop j1 r3 n0*1 succeeded
         270 released j1 r3 n0*1      =>
         999 usage j1                 => gpu_s 430 executed_s 160 queued_s 120 restarts 2 cost_s Some(2.0) remaining None",
    );
}

#[test]
fn what_remains_follows_from_the_declared_work_and_the_reported_progress() {
    check(
        "0   join n0 4                =>
         0   submit j1 1 epochs=3     =>
         0   submit j2 1 steps=50     =>
         60  tick j1=n0*1 j2=n0*1     => launch j1 r1 n0*1; launch j2 r1 n0*1
         61  report j1 r1 steps=7     =>
         61  report j2 r1 steps=7     =>
         61  usage j1                 => gpu_s 1 executed_s 1 queued_s 60 restarts 0 cost_s None remaining None
         61  usage j2                 => gpu_s 1 executed_s 1 queued_s 60 restarts 0 cost_s None remaining Some(4300.0)
         62  report j1 r1 steps=7 epoch=1000 =>
         62  usage j1                 => gpu_s 2 executed_s 2 queued_s 60 restarts 0 cost_s None remaining Some(2300.0)
         63  report j2 r1 steps=99    =>
         63  usage j2                 => gpu_s 3 executed_s 3 queued_s 60 restarts 0 cost_s None remaining Some(0.0)",
    );
}
