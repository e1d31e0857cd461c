use crate::script::check;

const FOUR_GPUS: &str = "0 join n0 4 =>\n 0 submit j1 2 =>\n 0 submit j2 2 =>\n";

fn check_four_gpus(script: &str) {
    check(&format!("{FOUR_GPUS}{script}"));
}

#[test]
fn a_queued_job_is_paused_resumed_and_cancelled_without_a_command() {
    check_four_gpus(
        "10  pause j1                 =>
         10  explain j1               => waits for resume
         11  pause j1                 => refused: job 1 is paused: this cannot be done now
         60  tick j1=n0*2             => plan rejected: job 1 is unknown or planned twice
         70  resume j1                =>
         71  resume j1                => refused: job 1 is queued: this cannot be done now
         120 tick j1=n0*2             => launch j1 r1 n0*2
         121 cancel j2                =>
         121 show j2                  => gone",
    );
}

#[test]
fn a_starting_job_is_paused_and_waits_for_its_replicas_before_it_starts_again() {
    check_four_gpus(
        "60  tick j1=n0*2             => launch j1 r1 n0*2
         65  pause j1                 => stop j1 r1 n0*2 paused
         70  resume j1                =>
         120 tick j1=n0*2             =>
         120 show j1                  => queued towards n0*2 leaving r1 n0*2
         130 released j1 r1 n0*2      => launch j1 r2 n0*2",
    );
}

#[test]
fn a_starting_job_is_cancelled() {
    check_four_gpus(
        "60  tick j1=n0*2             => launch j1 r1 n0*2
         65  cancel j1                => stop j1 r1 n0*2 cancelled
         66  cancel j1                => refused: job 1 has ended
         67  ready j1 r1              => refused: job 1 has ended
         70  released j1 r1 n0*2      =>
         70  show j1                  => gone",
    );
}

#[test]
fn a_running_job_is_paused_then_cancelled() {
    check_four_gpus(
        "60  tick j1=n0*2             => launch j1 r1 n0*2
         90  ready j1 r1              =>
         100 pause j1                 => stop j1 r1 n0*2 paused
         101 report j1 r1 steps=3     =>
         105 released j1 r1 n0*1      =>
         110 cancel j1                =>
         110 show j1                  => cancelled leaving r1 n0*1
         115 released j1 r1 n0*1      =>
         115 show j1                  => gone",
    );
}

#[test]
fn a_resizing_job_is_paused_with_survivors_and_newcomers() {
    check_four_gpus(
        "60  tick j1=n0*2             => launch j1 r1 n0*2
         90  ready j1 r1              =>
         120 tick j1=n0*4             => resize j1 r2 keep n0*2 add n0*2; launch j1 r2 n0*2
         125 pause j1                 => stop j1 r2 n0*4 paused
         130 released j1 r2 n0*4      =>
         130 show j1                  => paused",
    );
}

#[test]
fn a_resizing_job_is_cancelled_before_its_additions_are_there() {
    check_four_gpus(
        "60  tick j1=n0*2 j2=n0*2     => launch j1 r1 n0*2; launch j2 r1 n0*2
         90  ready j1 r1              =>
         90  ready j2 r1              =>
         120 tick j1=n0*3 j2=n0*1     => resize j1 r2 keep n0*2 add n0*1; resize j2 r2 keep n0*1 remove n0*1
         125 cancel j1                => stop j1 r2 n0*2 cancelled
         130 released j2 r2 n0*1      =>
         131 released j1 r2 n0*2      =>
         131 ready j2 r2              =>
         180 tick j2=n0*4             => resize j2 r3 keep n0*1 add n0*3; launch j2 r3 n0*3",
    );
}

#[test]
fn a_job_that_waits_for_its_gpus_gives_up_its_claim_when_paused() {
    check_four_gpus(
        "60  tick j1=n0*4             => launch j1 r1 n0*4
         90  ready j1 r1              =>
         120 tick j1=none j2=n0*4     => stop j1 r1 n0*4 preempted
         125 pause j2                 =>
         130 released j1 r1 n0*4      =>
         130 show j2                  => paused",
    );
}

#[test]
fn a_job_in_backoff_is_paused_and_forgets_its_backoff() {
    check_four_gpus(
        "60  tick j1=n0*2             => launch j1 r1 n0*2
         115 failed j1 r1 n0          => stop j1 r1 n0*2 failed
         116 pause j1                 =>
         117 released j1 r1 n0*2      =>
         118 resume j1                =>
         120 tick j1=n0*2             => launch j1 r2 n0*2",
    );
}

#[test]
fn a_rigid_job_that_is_paused_gets_a_whole_gang_again() {
    check(
        "0   join n0 4                =>
         0   submit j1 3 rigid        =>
         60  tick j1=n0*3             => launch j1 r1 n0*3
         90  ready j1 r1              =>
         100 pause j1                 => stop j1 r1 n0*3 paused
         101 released j1 r1 n0*3      =>
         102 resume j1                =>
         120 tick j1=n0*2             => plan rejected: job 1 gets 2 replicas: expected 0 or 3 to 3
         180 tick j1=n0*3             => launch j1 r2 n0*3",
    );
}
