/// What comes and goes as one where replicas are pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodsPer {
    /// Every replica has a pod, so that a job grows and shrinks by single replicas.
    #[default]
    Replica,
    /// All replicas of a job that come to a node together are one pod. Another number of them is another pod.
    Node,
}
