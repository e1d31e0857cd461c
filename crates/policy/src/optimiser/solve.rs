use super::improve::{improve, top_up};
use super::packing::Packing;
use super::problem::Problem;
use super::relaxation::relax;

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

/// Relaxes, constructs, improves.
pub(crate) fn solve(problem: &Problem) -> Solution {
    let relaxation = relax(problem);
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
        let offer = packing.best_offer(job, relaxation.price);
        packing.accept(job, &offer);
    }
    let all: Vec<usize> = (0..problem.jobs.len()).collect();
    top_up(&mut packing, &all);
    improve(problem, &relaxation, &mut packing);
    let total = packing.total();
    let upper_bound = relaxation.upper_bound;
    Solution { places: packing.into_places(), total, upper_bound }
}
