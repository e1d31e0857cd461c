use crate::optimiser::{Problem, Solution};

/// The two jobs that would lose least by giving up a replica, for each of its GPUs.
pub(crate) struct CheapestDonors<'a> {
    pub(crate) places: &'a [Vec<(usize, u32)>],
    cheapest: [Option<usize>; 2],
}

impl<'a> CheapestDonors<'a> {
    pub(crate) fn of(problem: &Problem, solution: &'a Solution) -> Self {
        let mut losses: [(f64, Option<usize>); 2] = [(f64::INFINITY, None); 2];
        for (job, options) in problem.jobs.iter().enumerate() {
            let places = &solution.places[job];
            let Some(&(place, _)) = places.first() else { continue };
            let held: u32 = places.iter().map(|&(_, replicas)| replicas).sum();
            let kind = problem.nodes[place].kind;
            let value = |replicas: u32| match replicas {
                0 => options.none,
                _ => {
                    let at = |is_multi| options.sizes.at(kind, replicas, is_multi).unwrap_or(f64::NEG_INFINITY);
                    at(false).max(at(true))
                }
            };
            let loss = (value(held) - value(held - 1)) / options.gpus(1);
            if loss < losses[0].0 {
                losses = [(loss, Some(job)), losses[0]];
            } else if loss < losses[1].0 {
                losses[1] = (loss, Some(job));
            }
        }
        Self { places: &solution.places, cheapest: [losses[0].1, losses[1].1] }
    }

    /// The type of GPU that a job has.
    pub(crate) fn kind(&self, job: usize, problem: &Problem) -> Option<usize> {
        self.places[job].first().map(|&(place, _)| problem.nodes[place].kind)
    }

    pub(crate) fn cheapest_but(&self, job: usize) -> Option<usize> {
        self.cheapest.iter().flatten().copied().find(|&donor| donor != job)
    }
}
