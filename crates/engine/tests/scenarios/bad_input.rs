use crate::script::check;

#[test]
fn specs_that_no_cluster_can_run_are_refused() {
    check(
        "0 submit j1 0         => refused: replicas_min 1, replicas 0, replicas_max 64: expected 1 <= min <= replicas <= max <= 65536
         0 submit j1 2 min=0   => refused: replicas_min 0, replicas 2, replicas_max 64: expected 1 <= min <= replicas <= max <= 65536
         0 submit j1 2 min=3   => refused: replicas_min 3, replicas 2, replicas_max 64: expected 1 <= min <= replicas <= max <= 65536
         0 submit j1 2 max=1   => refused: replicas_min 1, replicas 2, replicas_max 1: expected 1 <= min <= replicas <= max <= 65536
         0 submit j1 99999999  => refused: replicas_min 1, replicas 99999999, replicas_max 99999999: expected 1 <= min <= replicas <= max <= 65536
         0 submit j1 2 retries=5000 => refused: retries 5000: expected 0 to 1000
         0 submit j1 2 epochs=0 => refused: declared work of 0: expected 1 or more epochs or steps, or no declaration
         0 submit j1 2 name=../etc => refused: a name of 6 bytes: expected 1 to 128, no control characters or slashes, no leading full stop
         0 submit j1 2         =>
         0 submit j1 2         => refused: job 1 was submitted after job 1: expected higher numbers
         0 wakeup              => 60",
    );
}

#[test]
fn nodes_that_cannot_be_are_refused() {
    check(
        "0 join n3 0           => refused: node 3 has 0 GPUs: expected 1 to 1024
         0 join n3 4000000000  => refused: node 3 has 4000000000 GPUs: expected 1 to 1024
         0 join n3 4           =>
         0 join n3 4           => refused: node 3 joined after node 3: expected higher numbers
         0 lost n4             => refused: node 4 is unknown
         0 drain n4            => refused: node 4 is unknown
         0 lost n3             =>
         0 undrain n3          => refused: node 3 is unknown",
    );
}

#[test]
fn words_about_jobs_that_are_not_there_are_refused() {
    check(
        "0  join n0 4          =>
         0  cancel j1          => refused: job 1 is unknown
         0  submit j1 1        =>
         0  report j1 r0       => refused: revision 0 of job 1 is not listened to: the current one is revision 0
         0  ready j1 r1        => refused: revision 1 of job 1 is not listened to: the current one is revision 0
         0  released j1 r1 n0*1 => refused: 1 replicas released by revision 1 of job 1 were not on their way out
         0  released j2 r1 n0*1 => refused: job 2 is unknown
         60 tick j1=n0*1       => launch j1 r1 n0*1
         61 failed j1 r1 n3    => refused: job 1 has no replica on node 3 that could fail
         70 ready j1 r1        =>
         71 ready j1 r1        => refused: job 1 is running: this cannot be done now
         72 released j1 r1 n0*1 => refused: 1 replicas released by revision 1 of job 1 were not on their way out
         73 show j1            => running r1 n0*1",
    );
}

#[test]
fn reports_with_numbers_that_cannot_be_are_refused() {
    check(
        "0  join n0 4               =>
         0  submit j1 1             =>
         60 tick j1=n0*1            => launch j1 r1 n0*1
         61 report j1 r1 tuning=4294967295x4294967295 => refused: report of job 1: a tuning of 4294967295 samples and 4294967295 accumulation steps: expected 1 to 4294967295 samples of a replica in a step
         61 report j1 r1 tuning=0x0 => refused: report of job 1: a tuning of 0 samples and 0 accumulation steps: expected 1 to 4294967295 samples of a replica in a step
         61 report j1 r1 steps=NaN  => refused: report of job 1: NaN baseline steps: expected 0 to 1e15
         61 report j1 r1 steps=-1   => refused: report of job 1: -1 baseline steps: expected 0 to 1e15
         61 report j1 r1 factor=inf => refused: report of job 1: learning-rate factor inf: expected finite numbers from 0
         61 report j1 r1 rate=0     => refused: report of job 1: 0 samples per second: expected numbers above 0, up to 1e12
         62 ready j1 r1 pause=NaN   => refused: job 1 says that it paused for NaN s: expected 0 to 1e6
         62 ready j1 r1 pause=-1    => refused: job 1 says that it paused for -1 s: expected 0 to 1e6
         62 show j1                 => starting r1 n0*1",
    );
}
