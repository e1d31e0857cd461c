use super::by_kind::solve_by_kind;
use super::improve::{improve, top_up};
use super::packing::Packing;
use super::prices::Prices;
use super::problem::Problem;
use super::relaxation::{Relaxation, relax};

/// A packing and how good it is.
#[derive(Debug)]
pub(crate) struct Solution {
    /// Node index and replicas, per job.
    pub(crate) places: Vec<Vec<(usize, u32)>>,
    /// Sum of the jobs' values.
    pub(crate) total: f64,
    /// No packing has a larger sum.
    pub(crate) upper_bound: f64,
}

/// Relaxes, constructs, improves; where GPUs are of several kinds, each of them by itself and then all together.
pub(crate) fn solve(problem: &Problem) -> Solution {
    if problem.kinds() > 1 {
        return solve_by_kind(problem);
    }
    let relaxation = relax(problem);
    let packing = pack(problem, &relaxation);
    let total = packing.total();
    Solution { places: packing.into_places(), total, upper_bound: relaxation.upper_bound }
}

/// A packing near the prices of a relaxation.
pub(super) fn pack<'a>(problem: &'a Problem, relaxation: &Relaxation) -> Packing<'a> {
    let mut packing = Packing::new(problem);
    let mut waiting = Vec::new();
    for (job, options) in problem.jobs.iter().enumerate() {
        match &options.keep {
            Some(keep)
                if options.replica.gpus_of(keep.replicas()) == relaxation.gpus[job]
                    && packing.fits(job, &keep.places) =>
            {
                packing.place(job, keep.places.clone(), keep.value);
            }
            _ => waiting.push(job),
        }
    }
    // The hardest to fit go first: those with the largest replicas, then the largest jobs.
    waiting.sort_by_key(|&job| {
        (std::cmp::Reverse(problem.jobs[job].replica.gpus), std::cmp::Reverse(relaxation.gpus[job]), job)
    });
    for &job in &waiting {
        let offer = packing.best_offer(job, Prices::new(&relaxation.prices, 1.0));
        packing.accept(job, &offer);
    }
    let all: Vec<usize> = (0..problem.jobs.len()).collect();
    top_up(&mut packing, &all);
    improve(problem, relaxation, &mut packing);
    packing
}
