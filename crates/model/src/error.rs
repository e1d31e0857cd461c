use thiserror::Error;

/// What the model refuses, with the values it refused.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A shape with no node, or with more nodes than replicas.
    #[error("{replicas} replicas on {nodes} nodes: a shape needs at least 1 node and at least 1 replica per node")]
    Shape {
        /// Nodes given.
        nodes: u32,
        /// Replicas given.
        replicas: u32,
    },
    /// A name that no type of GPU can have.
    #[error("GPU type {name:?}: expected 1 to 64 printable characters")]
    GpuTypeName {
        /// Its beginning.
        name: String,
    },
    /// A lower bound above its upper bound, or a zero bound.
    #[error("{lower_name} {lower} and {upper_name} {upper}: expected 1 <= {lower_name} <= {upper_name}")]
    Bounds {
        /// Name of the lower bound.
        lower_name: &'static str,
        /// Its value.
        lower: u32,
        /// Name of the upper bound.
        upper_name: &'static str,
        /// Its value.
        upper: u32,
    },
    /// No batch within the limits exists for this many replicas.
    #[error(
        "no batch for {replicas} replicas: replicas x local batch ({local_min}..={local_max}) x micro-batches \
         never falls within the batch size {batch_min}..={batch_max}"
    )]
    NoFeasibleBatch {
        /// Replicas of the shape.
        replicas: u32,
        /// Smallest per-replica batch.
        local_min: u32,
        /// Largest per-replica batch.
        local_max: u32,
        /// Baseline batch.
        batch_min: u32,
        /// Largest batch.
        batch_max: u32,
    },
    /// A batch that the limits forbid for this many replicas.
    #[error(
        "local batch {local_batch} with {accumulation_steps} accumulation steps on {replicas} replicas is outside \
         the job's limits"
    )]
    BatchNotAllowed {
        /// Per-replica micro-batch.
        local_batch: u32,
        /// Accumulation steps.
        accumulation_steps: u32,
        /// Replicas of the shape.
        replicas: u32,
    },
    /// The same configuration measured with times that cannot belong to one job.
    #[error(
        "step times {low_s} s and {high_s} s for the same local batch {local_batch} on {replicas} replicas over \
         {nodes} nodes: expected times within a factor of 100"
    )]
    Contradiction {
        /// Shortest time.
        low_s: f64,
        /// Longest time.
        high_s: f64,
        /// Per-replica batch.
        local_batch: u32,
        /// Nodes of the shape.
        nodes: u32,
        /// Replicas of the shape.
        replicas: u32,
    },
    /// A fit without a single observation.
    #[error("no observations: a fit needs at least one measured step")]
    NoObservations,
    /// A time that is not a positive finite number of seconds, or too large to be one.
    #[error("{name} {value} for {local_batch} samples on {replicas} replicas: expected {accepted}")]
    StepTime {
        /// Which time.
        name: &'static str,
        /// The value read.
        value: f64,
        /// Per-replica batch of the observation.
        local_batch: u32,
        /// Replicas of the observation.
        replicas: u32,
        /// What would be accepted.
        accepted: &'static str,
    },
    /// An observation with no samples.
    #[error("local batch 0 on {replicas} replicas: expected 1 or more")]
    EmptyBatch {
        /// Replicas of the observation.
        replicas: u32,
    },
    /// The optimiser found no finite parameters.
    #[error("the fit of {observations} observations has no finite solution")]
    NotFinite {
        /// How many observations there were.
        observations: usize,
    },
    /// Losses that say nothing of their curve.
    #[error("losses after {found} different numbers of steps: expected {needed} or more, in ascending order")]
    FewLosses {
        /// How many there were.
        found: usize,
        /// How many a fit needs.
        needed: usize,
    },
    /// Values for each element of a gradient, but not as many as it has elements.
    #[error("{name} of length {found}: expected {expected}, the length of the gradient")]
    GradientLength {
        /// What has the wrong length.
        name: &'static str,
        /// Its length.
        found: usize,
        /// The length of the gradient.
        expected: usize,
    },
    /// Parameters outside of what the model allows.
    #[error("{name} {value}: expected {accepted}")]
    Parameter {
        /// Which parameter.
        name: &'static str,
        /// The value given.
        value: f64,
        /// What would be accepted.
        accepted: &'static str,
    },
}
