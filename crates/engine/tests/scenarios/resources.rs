use crate::script::check;

#[test]
fn a_replica_holds_all_its_gpus_and_is_billed_for_them() {
    check(
        "0   join n0 4                =>
         0   submit j1 1 gpus=2       =>
         0   submit j2 1 gpus=4       =>
         60  tick j1=n0*2             => launch j1 g1 n0*2
         70  ready j1 g1              =>
         80  usage j1                 => gpu_s 80 executed_s 20 queued_s 60 restarts 0 cost_s Some(10.0) remaining None
         120 tick j1=n0*1 j2=n0*1     => plan rejected: node 0 has 4 GPUs but its replicas need 6
         180 tick j1=none j2=n0*1     => stop j1 g1 n0*2 preempted
         181 released j1 g1 n0*1      =>
         182 show j2                  => queued towards n0*1
         183 released j1 g1 n0*1      => launch j2 g1 n0*1",
    );
}

#[test]
fn replicas_wait_for_cpus_and_memory_until_those_who_had_them_are_gone() {
    check(
        "0   join n0 8 cpus=8 memory=64         =>
         0   submit j1 1 cpus=4                 =>
         0   submit j2 1 cpus=3 memory=32       =>
         0   submit j3 1 memory=33              =>
         60  tick j1=n0*2                       => launch j1 g1 n0*2
         70  ready j1 g1                        =>
         120 tick j1=n0*2 j2=n0*1               => plan rejected: node 0 has 8 CPUs but its replicas need 11
         180 tick j1=n0*1 j2=n0*1               => resize j1 g2 keep n0*1 remove n0*1
         181 show j2                            => queued towards n0*1
         182 released j1 g2 n0*1                => launch j2 g1 n0*1
         183 ready j2 g1                        =>
         240 tick j3=n0*1                       => plan rejected: node 0 has 64 bytes of memory but its replicas need 65
         300 tick j2=none j3=n0*1               => stop j2 g1 n0*1 preempted
         301 released j2 g1 n0*1                => launch j3 g1 n0*1",
    );
}

#[test]
fn a_guest_waits_for_cpus_of_its_own() {
    check(
        "0   join n0 4 cpus=4                   =>
         0   submit j1 2 cpus=1                 =>
         0   submit j2 1 cpus=2                 =>
         0   submit j3 1 cpus=2                 =>
         60  tick j1=n0*2 j3=n0*1               => launch j1 g1 n0*2; launch j3 g1 n0*1
         70  ready j1 g1                        =>
         70  ready j3 g1                        =>
         120 tick j1=n0*2 j2=n0*1@j1 j3=n0*1    => plan rejected: node 0 has 4 CPUs but its replicas need 6
         180 tick j1=n0*2 j2=n0*1@j1 j3=none    => stop j3 g1 n0*1 preempted
         181 show j2                            => queued towards n0*1@j1
         182 released j3 g1 n0*1                => launch j2 g1 n0*1@j1
         190 ready j2 g1                        =>
         200 succeeded j1 g1                    => stop j1 g1 n0*2 succeeded
         201 show j2                            => running g1 n0*1
         202 released j1 g1 n0*2                =>",
    );
}

#[test]
fn what_no_node_can_take_is_said() {
    check(
        "0   join n0 4 cpus=8 memory=64     =>
         0   submit j1 1 gpus=5             =>
         0   submit j2 1 cpus=9             =>
         0   submit j3 1 memory=65          =>
         0   submit j4 5 min=5              =>
         0   submit j5 1                    =>
         60  tick                           =>
         61  explain j1                     => waits for gpus, toolargeforanode
         61  explain j2                     => waits for gpus, notenoughcpus
         61  explain j3                     => waits for gpus, notenoughmemory
         61  explain j4                     => waits for gpus, impossible
         61  explain j5                     => waits for gpus, contention",
    );
}
