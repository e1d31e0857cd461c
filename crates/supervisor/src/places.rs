/// Annotation of a pod by which its supervisor is told to end: milliseconds of grace, or `18=2500 19=0` for single replicas.
pub const STOP_ANNOTATION: &str = "pollux.dev/stop";

/// What backend and supervisor have to agree on: where things are in a pod.
#[derive(Clone, Copy, Debug)]
pub struct Supervision;

impl Supervision {
    /// A folder that lives as long as the pod.
    pub const FOLDER: &str = "/pollux/tools";
    /// The supervisor.
    pub const COMMAND: &str = "/pollux/tools/pollux";
    /// Where the kubelet writes down what changes of the pod.
    pub const POD_INFO: &str = "/pollux/pod-info";
    /// The file of its annotations, below that.
    pub const ANNOTATIONS: &str = "annotations";
    /// Where a supervisor says how it ended.
    pub const TERMINATION_MESSAGE: &str = "/dev/termination-log";
}
