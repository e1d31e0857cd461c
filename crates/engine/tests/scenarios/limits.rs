use crate::script::check;

#[test]
fn a_job_is_stopped_when_it_has_held_gpus_for_as_long_as_it_may() {
    check(
        "0   join n0 4                =>
         0   submit j1 2 limit=100    =>
         60  tick j1=n0*2             => launch j1 r1 n0*2
         60  ready j1 r1              =>
         80  pause j1                 => stop j1 r1 n0*2 paused
         80  released j1 r1 n0*2      =>
         900 resume j1                =>
         960 tick j1=n0*2             => launch j1 r2 n0*2
         960 ready j1 r2              =>
         960 wakeup                   => 1020
         1020 tick                    =>
         1039 tick                    =>
         1040 tick                    => stop j1 r2 n0*2 timelimit
         1040 show j1                 => failed TimeLimit { limit_s: 100 } leaving r2 n0*2
         1041 released j1 r2 n0*2     =>
         1041 show j1                 => gone",
    );
}

#[test]
fn a_job_waits_for_the_success_of_another() {
    check(
        "0   join n0 4                =>
         0   submit j1 2              =>
         0   submit j2 2 after=1      =>
         0   explain j2               => waits for jobs
         60  tick j1=n0*2 j2=n0*2     => plan rejected: job 2 is unknown or planned twice
         120 tick j1=n0*2             => launch j1 r1 n0*2
         130 ready j1 r1              =>
         140 succeeded j1 r1          => stop j1 r1 n0*2 succeeded
         140 explain j2               => waits for round
         180 tick j2=n0*2             => launch j2 r1 n0*2",
    );
}

#[test]
fn the_time_for_which_a_job_waits_for_others_is_no_time_without_gpus() {
    check(
        "0    join n0 4                =>
         0    submit j1 2              =>
         0    submit j2 2              =>
         0    submit j3 2 after=1 after=2:end =>
         60   tick j1=n0*2 j2=n0*2     => launch j1 r1 n0*2; launch j2 r1 n0*2
         70   ready j1 r1              =>
         70   ready j2 r1              =>
         3000 cancel j2                => stop j2 r1 n0*2 cancelled
         3001 released j2 r1 n0*2      =>
         3600 usage j3                 => gpu_s 0 executed_s 0 queued_s 0 restarts 0 cost_s None remaining None
         3600 succeeded j1 r1          => stop j1 r1 n0*2 succeeded
         3630 ages                     => j3 30 s old, queued for 30 s
         3660 usage j3                 => gpu_s 0 executed_s 0 queued_s 60 restarts 0 cost_s None remaining None
         3660 tick j3=n0*2             => launch j3 r1 n0*2
         3670 ready j3 r1              =>
         3700 failed j3 r1 n0          => stop j3 r1 n0*2 failed
         3710 tick                     =>
         4400 ages                     => j3 800 s old, queued for 700 s",
    );
}

#[test]
fn a_job_that_waits_in_vain_fails_and_so_do_those_behind_it() {
    check(
        "0   join n0 4                =>
         0   submit j1 2              =>
         0   submit j2 2 after=1      =>
         0   submit j3 2 after=2      =>
         0   submit j4 2 after=2:end  =>
         10  cancel j1                =>
         10  show j2                  => gone
         10  show j3                  => gone
         10  explain j4               => waits for round
         10  submit j5 2 after=1      =>
         10  show j5                  => gone
         10  submit j6 2 after=1:end  =>
         10  explain j6               => waits for round
         10  submit j7 2 after=9:end  => refused: job 7 depends on job 9, which is unknown: expected a job that is not over",
    );
}
