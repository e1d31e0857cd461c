/// How many of the jobs of all simulations are finished. Whoever is told of it hears rising numbers, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Finished so far.
    pub finished: usize,
    /// In all simulations together.
    pub jobs: usize,
}
