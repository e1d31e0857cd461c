use super::problem::Problem;

/// Larger tables cost more than trying.
const STATES_MAX: usize = 256;

/// What jobs could be worth at the most on GPUs that were all in one place: the exact answer to the knapsack problem
/// that is left of placing them.
#[derive(Debug, Default)]
pub(super) struct Ceiling {
    /// The best total for every number of GPUs used, of several kinds for every combination.
    totals: Vec<f64>,
    /// The same with one job more.
    next: Vec<f64>,
}

impl Ceiling {
    /// No way to place these jobs on so many GPUs of each kind is worth more; none if that would take long to tell.
    pub(super) fn of(&mut self, problem: &Problem, jobs: &[usize], gpus: &[u32]) -> Option<f64> {
        let states = gpus.iter().try_fold(1usize, |states, &gpus| {
            Some(states.checked_mul(gpus as usize + 1)?).filter(|&states| states <= STATES_MAX)
        })?;
        self.totals.clear();
        self.totals.resize(states, 0.0);
        self.next.resize(states, 0.0);
        for &job in jobs {
            self.add(problem, job, gpus);
        }
        self.totals.last().copied()
    }

    fn add(&mut self, problem: &Problem, job: usize, gpus: &[u32]) {
        let options = &problem.jobs[job];
        for (next, total) in self.next.iter_mut().zip(&self.totals) {
            *next = total + options.none;
        }
        let mut stride = 1;
        for (kind, &most) in gpus.iter().enumerate().filter(|&(_, &most)| most > 0) {
            let (single, multi) = options.sizes.of_kind(kind);
            let block = (most as usize + 1) * stride;
            let mut best = options.none;
            for replicas in 1..=single.len().max(multi.len()).min((most / options.replica.gpus) as usize) {
                let at = |values: &[f64]| values.get(replicas - 1).copied().unwrap_or(f64::NEG_INFINITY);
                let value = at(single).max(at(multi));
                // Who is worth no more by more GPUs does not need them.
                if value > best {
                    best = value;
                    self.offer(block, options.replica.gpus_of(replicas as u32) as usize * stride, value);
                }
            }
            stride = block;
        }
        if let Some(keep) = &options.keep {
            let (kind, held) = (keep.kind(&problem.nodes), options.replica.gpus_of(keep.replicas()));
            if let Some(&most) = gpus.get(kind).filter(|&&most| most >= held) {
                let stride: usize = gpus[..kind].iter().map(|&gpus| gpus as usize + 1).product();
                self.offer((most as usize + 1) * stride, held as usize * stride, keep.value);
            }
        }
        std::mem::swap(&mut self.totals, &mut self.next);
    }

    /// Lets the job that is being added have so many GPUs of a kind, wherever so many of that kind are left. Combinations
    /// that differ in those of higher kinds are `block` apart.
    fn offer(&mut self, block: usize, used: usize, value: f64) {
        for (next, totals) in self.next.chunks_exact_mut(block).zip(self.totals.chunks_exact(block)) {
            for (next, total) in next[used..].iter_mut().zip(totals) {
                *next = next.max(total + value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::{JobOptions, Keep, ProblemNode};
    use super::*;
    use crate::by_size::BySize;
    use crate::{NodeResources, ReplicaResources};

    /// The best total of all combinations, one after the other.
    fn best_of_all(problem: &Problem, jobs: &[usize], gpus: &[u32]) -> f64 {
        let Some((&job, rest)) = jobs.split_first() else { return 0.0 };
        let options = &problem.jobs[job];
        let mut choices = vec![(0, 0, options.none)];
        for (kind, (single, multi)) in options.sizes.by_kind().enumerate() {
            for values in [single, multi] {
                choices.extend(values.iter().zip(1..).map(|(&value, replicas)| (kind, replicas, value)));
            }
        }
        choices.extend(options.keep.iter().map(|keep| (keep.kind(&problem.nodes), keep.replicas(), keep.value)));
        let of = |(kind, replicas, value): (usize, u32, f64)| {
            let left = gpus[kind].checked_sub(options.replica.gpus_of(replicas))?;
            let mut gpus = gpus.to_vec();
            gpus[kind] = left;
            Some(value + best_of_all(problem, rest, &gpus))
        };
        choices.into_iter().filter_map(of).fold(f64::NEG_INFINITY, f64::max)
    }

    #[test]
    fn the_ceiling_is_the_best_of_all_combinations() {
        let mut random = 11u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut ceiling = Ceiling::default();
        for case in 0..400 {
            let kinds = 1 + next(3) as usize;
            let resources = NodeResources { gpus: 4, cpus: None, memory: None };
            let nodes = (0..kinds).map(|kind| ProblemNode { resources, hosts_multi: false, kind }).collect();
            let jobs = (0..5).map(|_| {
                let (single_max, multi_max) = (next(5) as u32, next(6) as u32);
                let mut sizes = BySize::with_room(kinds, single_max, multi_max);
                let mut figures: Vec<f64> = Vec::new();
                for _ in 0..kinds * (single_max + multi_max) as usize {
                    figures.push(if next(4) == 0 { f64::NEG_INFINITY } else { next(50) as f64 - 10.0 });
                }
                for kind in figures.chunks(((single_max + multi_max) as usize).max(1)) {
                    sizes.push_kind(|r| kind[r as usize - 1], |r| kind[(single_max + r) as usize - 1]);
                }
                let keep =
                    Keep { value: next(60) as f64, places: vec![(next(kinds as u64) as usize, 1 + next(4) as u32)] };
                let replica = ReplicaResources { gpus: 1 + next(3) as u32, cpus: 0, memory: 0 };
                JobOptions { replica, none: next(20) as f64 - 10.0, keep: Some(keep).filter(|_| next(2) == 0), sizes }
            });
            let jobs = jobs.collect();
            let problem = Problem { nodes, jobs, one_multi_node_job_per_node: false };
            let gpus: Vec<u32> = (0..kinds).map(|_| next(6) as u32).collect();
            let chosen: Vec<usize> = (0..5).filter(|_| next(3) > 0).collect();
            let most = ceiling.of(&problem, &chosen, &gpus);
            assert_eq!(most, Some(best_of_all(&problem, &chosen, &gpus)), "case {case}");
        }
    }

    #[test]
    fn what_would_take_long_to_tell_is_not_told() {
        let problem = Problem { nodes: Vec::new(), jobs: Vec::new(), one_multi_node_job_per_node: false };
        let mut ceiling = Ceiling::default();
        assert_eq!(ceiling.of(&problem, &[], &[u32::MAX; 4]), None);
        assert_eq!(ceiling.of(&problem, &[], &[0, 3]), Some(0.0));
    }
}
