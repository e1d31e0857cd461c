use super::linear_program::{LinearProgram, Unsolved};
use super::settings::{GavelObjective, Turn};

/// More jobs are divided into groups, each with its part of all GPUs, as in POP (SOSP 2021).
const GROUP_MAX: usize = 40;
/// Times that finish-time fairness is solved for a better ratio.
const RATIOS_MAX: usize = 12;
/// A better ratio by less than this share is none.
const RATIO_GAIN_MIN: f64 = 1e-4;
/// Times that what is left is shared out among those that can have more.
const FILLINGS_MAX: usize = 12;
/// A job whose need is met but for this share is done in time.
const NEED_ROUNDING: f64 = 1e-5;

/// A job as the program sees it.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    /// GPUs it runs on.
    pub(super) gpus: f64,
    /// Steps a second on each type; 0 where it cannot run.
    pub(super) speeds: Vec<f64>,
    pub(super) weight: f64,
    /// Steps left.
    pub(super) remaining_steps: f64,
    /// Seconds since it came.
    pub(super) age_s: f64,
    /// Steps in all.
    pub(super) total_steps: f64,
    /// Whose it is, as a place in [`Aim::entities`].
    pub(super) entity: usize,
}

/// What shares are to be best for, and what that needs to be known.
#[derive(Clone, Debug)]
pub(super) struct Aim {
    pub(super) objective: GavelObjective,
    /// What a GPU of each type costs.
    pub(super) costs: Vec<f64>,
    /// How many times what it takes alone on its fastest type a job may take.
    pub(super) slowdown_max: Option<f64>,
    /// What each entity weighs, and how its jobs share that.
    pub(super) entities: Vec<(f64, Turn)>,
}

/// The share of time that each job is to have on each type.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shares {
    pub(super) by_job: Vec<Vec<f64>>,
    /// Jobs that cannot be done as soon as they should.
    pub(super) late: Vec<bool>,
}

/// The best shares; `gpus` of each type there are.
pub(super) fn shares(aim: &Aim, demands: &[Demand], gpus: &[f64]) -> Result<Shares, Unsolved> {
    if !demands.iter().all(Demand::is_finite) {
        return Err(Unsolved::NotFinite);
    }
    let groups = demands.len().div_ceil(GROUP_MAX).max(1);
    let part: Vec<f64> = gpus.iter().map(|gpus| gpus / groups as f64).collect();
    let mut shares = Shares { by_job: vec![Vec::new(); demands.len()], late: vec![false; demands.len()] };
    for group in 0..groups {
        let members: Vec<usize> = (group..demands.len()).step_by(groups).collect();
        let own: Vec<&Demand> = members.iter().map(|&job| &demands[job]).collect();
        let of_group = of_group(aim, &own, &part)?;
        for (idx, job) in members.into_iter().enumerate() {
            shares.by_job[job].clone_from(&of_group.by_job[idx]);
            shares.late[job] = of_group.late[idx];
        }
    }
    Ok(shares)
}

/// An equal share of all GPUs for everybody that can run there: what is there to fall back to.
pub(super) fn equal_shares(demands: &[Demand], gpus: &[f64]) -> Vec<Vec<f64>> {
    let users = |kind: usize| demands.iter().filter(|demand| demand.speeds[kind] > 0.0).count().max(1) as f64;
    let per_job: Vec<f64> = gpus.iter().enumerate().map(|(kind, gpus)| gpus / users(kind)).collect();
    let of = |demand: &Demand| -> Vec<f64> {
        let can_run = |kind: usize| demand.speeds[kind] > 0.0;
        let own = (0..gpus.len()).map(|kind| if can_run(kind) { per_job[kind] / demand.gpus } else { 0.0 });
        let own: Vec<f64> = own.collect();
        let all = own.iter().sum::<f64>().max(1.0);
        own.into_iter().map(|share| share / all).collect()
    };
    demands.iter().map(of).collect()
}

fn of_group(aim: &Aim, demands: &[&Demand], gpus: &[f64]) -> Result<Shares, Unsolved> {
    let all: f64 = gpus.iter().sum();
    // What a job would do on every type in turn, as long as there are GPUs of it.
    let proportional = |demand: &Demand| -> f64 {
        demand.speeds.iter().zip(gpus).map(|(speed, gpus)| speed * gpus / all.max(1.0)).sum()
    };
    let due = |demand: &Demand| demand.weight * proportional(demand) / demand.gpus;
    let by_job = match aim.objective {
        GavelObjective::MaxMin => least(demands, gpus, due),
        GavelObjective::WaterFilling => fill(demands, gpus, |open| {
            demands.iter().zip(open).map(|(demand, open)| if *open { due(demand) } else { 0.0 }).collect()
        }),
        GavelObjective::Hierarchical => fill(demands, gpus, |open| {
            let weights = entity_weights(&aim.entities, demands, open);
            let due = |(demand, weight): (&&Demand, f64)| weight * proportional(demand) / demand.gpus;
            demands.iter().zip(weights).map(due).collect()
        }),
        GavelObjective::Makespan => least(demands, gpus, |demand| demand.remaining_steps),
        GavelObjective::FinishTime => finish_time(demands, gpus, proportional),
        GavelObjective::Throughput => sum(demands, gpus),
        GavelObjective::Cost => return cheapest(aim, demands, gpus),
    };
    by_job.map(|by_job| Shares { by_job, late: vec![false; demands.len()] })
}

/// Limits that hold for every objective: a job is in one place at a time, and types have as many GPUs as they have.
fn limit(program: &mut LinearProgram, demands: &[&Demand], gpus: &[f64]) {
    let kinds = gpus.len();
    for job in 0..demands.len() {
        program.limit((0..kinds).map(|kind| (job * kinds + kind, 1.0)).collect(), 1.0);
    }
    for (kind, &gpus) in gpus.iter().enumerate() {
        let used = demands.iter().enumerate().map(|(job, demand)| (job * kinds + kind, demand.gpus / gpus.max(1.0)));
        program.limit(used.collect(), if gpus > 0.0 { gpus / gpus.max(1.0) } else { 0.0 });
    }
}

fn solve(program: &LinearProgram, jobs: usize, kinds: usize) -> Result<Vec<Vec<f64>>, Unsolved> {
    Ok(by_job(&program.solve()?.point, jobs, kinds))
}

fn by_job(point: &[f64], jobs: usize, kinds: usize) -> Vec<Vec<f64>> {
    (0..jobs).map(|job| point[job * kinds..(job + 1) * kinds].to_vec()).collect()
}

/// What a job does on its shares of the types, as a share of what it does on its fastest, for the program to subtract.
fn throughput(demands: &[&Demand], job: usize, kinds: usize) -> Vec<(usize, f64)> {
    let fastest = demands[job].fastest().max(f64::MIN_POSITIVE);
    let own = demands[job].speeds.iter().enumerate();
    own.map(|(kind, speed)| (job * kinds + kind, -speed / fastest)).collect()
}

impl Demand {
    fn is_finite(&self) -> bool {
        let others = [self.gpus, self.weight, self.remaining_steps, self.age_s, self.total_steps];
        self.speeds.iter().chain(&others).all(|figure| figure.is_finite())
    }

    fn fastest(&self) -> f64 {
        self.speeds.iter().copied().fold(0.0, f64::max)
    }
}

/// What jobs are due, in units in which the largest is 1, so that tolerances mean the same everywhere. Nothing where a job
/// can run nowhere.
fn in_units(demands: &[&Demand], dues: impl Iterator<Item = f64>) -> Vec<Option<f64>> {
    let dues = demands.iter().zip(dues).map(|(demand, due)| due / demand.fastest());
    let dues: Vec<f64> = dues.collect();
    let usable = |due: &f64| *due > 0.0 && due.is_finite();
    let unit = dues.iter().copied().filter(usable).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    dues.into_iter().map(|due| usable(&due).then(|| (due / unit).max(1e-9))).collect()
}

/// The shares at which the least throughput against what a job is due is largest. Who is due nothing gets nothing.
fn least(demands: &[&Demand], gpus: &[f64], due: impl Fn(&Demand) -> f64) -> Result<Vec<Vec<f64>>, Unsolved> {
    let kinds = gpus.len();
    let least = demands.len() * kinds;
    let mut objective = vec![0.0; least + 1];
    objective[least] = 1.0;
    let mut program = LinearProgram::maximise(objective);
    limit(&mut program, demands, gpus);
    program.limit(vec![(least, 1.0)], 1e6);
    for (job, due) in in_units(demands, demands.iter().map(|demand| due(demand))).into_iter().enumerate() {
        if let Some(due) = due {
            program.limit(throughput(demands, job, kinds).into_iter().chain([(least, due)]).collect(), 0.0);
        }
    }
    solve(&program, demands.len(), kinds)
}

/// Raises the throughput of all jobs together, by what is `due` to those that are open, until nobody can have more: a job
/// that nothing can be added to without taking from others keeps what it has, and the others go on.
fn fill(demands: &[&Demand], gpus: &[f64], due: impl Fn(&[bool]) -> Vec<f64>) -> Result<Vec<Vec<f64>>, Unsolved> {
    let (jobs, kinds) = (demands.len(), gpus.len());
    let rise = jobs * kinds;
    let mut open = vec![true; jobs];
    let mut levels = vec![0.0; jobs];
    let mut shares = vec![vec![0.0; kinds]; jobs];
    for _ in 0..FILLINGS_MAX {
        let dues = in_units(demands, due(&open).into_iter());
        if dues.iter().all(Option::is_none) {
            break;
        }
        let mut objective = vec![0.0; rise + 1];
        objective[rise] = 1.0;
        let mut program = LinearProgram::maximise(objective);
        limit(&mut program, demands, gpus);
        program.limit(vec![(rise, 1.0)], 1e6);
        let first = program.limits();
        let mut rows = Vec::new();
        for (job, due) in dues.iter().enumerate().filter(|&(job, due)| due.is_some() || levels[job] > 0.0) {
            let own = throughput(demands, job, kinds).into_iter().chain(due.map(|due| (rise, due)));
            // A little less than it has, which rounding may have made too much.
            program.limit(own.collect(), -levels[job] * (1.0 - 1e-7));
            rows.push(job);
        }
        let optimum = program.solve()?;
        shares = by_job(&optimum.point, jobs, kinds);
        let rose = optimum.point[rise];
        for (&job, price) in rows.iter().zip(&optimum.prices[first..]) {
            let Some(due) = dues[job] else { continue };
            levels[job] += due * rose;
            // The rise is dearest to them: more for them is less for somebody.
            open[job] = *price * due <= 1e-9;
        }
    }
    Ok(shares)
}

/// What each job counts of what its entity weighs: all open jobs of it alike, or the first of them everything.
fn entity_weights(entities: &[(f64, Turn)], demands: &[&Demand], open: &[bool]) -> Vec<f64> {
    let mut weights = vec![0.0; demands.len()];
    for (entity, &(weight, turn)) in entities.iter().enumerate() {
        let mut own = (0..demands.len())
            .filter(|&job| demands[job].entity == entity && open[job] && demands[job].fastest() > 0.0);
        match turn {
            Turn::Fifo => {
                let first = own.min_by(|&a, &b| demands[b].age_s.total_cmp(&demands[a].age_s).then(a.cmp(&b)));
                first.into_iter().for_each(|job| weights[job] = weight);
            }
            Turn::Fairness => {
                let sum: f64 = own.by_ref().map(|job| demands[job].weight).sum();
                for job in (0..demands.len()).filter(|&job| demands[job].entity == entity && open[job]) {
                    weights[job] = if sum > 0.0 { weight * demands[job].weight / sum } else { 0.0 };
                }
            }
        }
    }
    weights
}

/// The shares at which the sum of all throughputs is largest.
fn sum(demands: &[&Demand], gpus: &[f64]) -> Result<Vec<Vec<f64>>, Unsolved> {
    let worths = demands.iter().flat_map(|demand| demand.speeds.iter().map(|speed| demand.weight * speed));
    let mut program = LinearProgram::maximise(worths.collect());
    limit(&mut program, demands, gpus);
    solve(&program, demands.len(), gpus.len())
}

/// The shares at which the most is done for what its GPUs cost, where every job is done in time. If they cannot all be, as
/// much of what they need as can be had comes before the cost.
fn cheapest(aim: &Aim, demands: &[&Demand], gpus: &[f64]) -> Result<Shares, Unsolved> {
    let (jobs, kinds) = (demands.len(), gpus.len());
    let worth = |demand: &&Demand| -> Vec<f64> {
        let costs = demand.speeds.iter().zip(&aim.costs);
        costs.map(|(speed, cost)| demand.weight * speed / (cost * demand.gpus)).collect()
    };
    let mut worths: Vec<f64> = demands.iter().flat_map(worth).collect();
    let unit = worths.iter().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    worths.iter_mut().for_each(|worth| *worth /= unit);
    let needs: Vec<Option<f64>> = demands.iter().map(|demand| demand.need(aim.slowdown_max?)).collect();
    let late = |point: &[f64]| -> Vec<bool> {
        let done = |job: usize| -> f64 {
            throughput(demands, job, kinds).iter().map(|&(place, factor)| -factor * point[place]).sum()
        };
        (0..jobs)
            .map(|job| needs[job].is_some_and(|need| done(job) < need.min(1.0) - NEED_ROUNDING || need > 1.0))
            .collect()
    };
    let mut program = LinearProgram::maximise(worths.clone());
    limit(&mut program, demands, gpus);
    for (job, need) in needs.iter().enumerate().filter_map(|(job, need)| Some((job, (*need)?))) {
        program.limit(throughput(demands, job, kinds), -need);
    }
    let point = match program.solve() {
        Ok(optimum) => optimum.point,
        Err(Unsolved::Infeasible) => {
            // How much of its need each job has, which counts more than all that could be saved.
            let met = demands.iter().map(|demand| 2.0 * (jobs * kinds) as f64 * demand.weight.max(1e-6));
            let mut program = LinearProgram::maximise(worths.into_iter().chain(met).collect());
            limit(&mut program, demands, gpus);
            for (job, need) in needs.iter().enumerate() {
                let own = throughput(demands, job, kinds).into_iter();
                let met = jobs * kinds + job;
                program.limit(own.chain([(met, need.unwrap_or(0.0).min(1.0))]).collect(), 0.0);
                program.limit(vec![(met, 1.0)], if need.is_some() { 1.0 } else { 0.0 });
            }
            program.solve()?.point
        }
        Err(unsolved) => return Err(unsolved),
    };
    Ok(Shares { late: late(&point), by_job: by_job(&point, jobs, kinds) })
}

impl Demand {
    /// The share of its fastest type that it needs to be done in so many times what it takes alone there; more than 1 if
    /// that cannot be.
    fn need(&self, slowdown_max: f64) -> Option<f64> {
        let fastest = self.fastest();
        let alone_s = self.total_steps / fastest;
        let left_s = slowdown_max * alone_s - self.age_s;
        let need = if left_s > 0.0 { self.remaining_steps / fastest / left_s } else { f64::INFINITY };
        // Who is late already is to be done as soon as can be.
        (fastest > 0.0).then(|| need.min(2.0))
    }
}

/// The shares at which the worst ratio of completion times is lowest: each solution bounds the ratio of the next.
fn finish_time(
    demands: &[&Demand],
    gpus: &[f64],
    proportional: impl Fn(&Demand) -> f64,
) -> Result<Vec<Vec<f64>>, Unsolved> {
    let alone_s = |demand: &Demand| {
        let speed = (proportional(demand) / demands.len() as f64 * gpus.iter().sum::<f64>() / demand.gpus)
            .min(proportional(demand));
        demand.age_s + demand.remaining_steps / speed.max(f64::MIN_POSITIVE)
    };
    let ratio_of = |demand: &Demand, shares: &[f64]| {
        let speed: f64 = demand.speeds.iter().zip(shares).map(|(speed, share)| speed * share).sum();
        (demand.age_s + demand.remaining_steps / speed.max(f64::MIN_POSITIVE)) / alone_s(demand)
    };
    let worst = |shares: &[Vec<f64>]| {
        let ratios = demands.iter().zip(shares).filter(|(demand, _)| demand.speeds.iter().any(|speed| *speed > 0.0));
        ratios.map(|(demand, shares)| ratio_of(demand, shares)).fold(0.0, f64::max)
    };
    let mut best = least(demands, gpus, |demand| demand.weight * proportional(demand) / demand.gpus)?;
    let mut ratio = worst(&best);
    for _ in 0..RATIOS_MAX {
        let target = ratio * (1.0 - RATIO_GAIN_MIN);
        // Who is beyond the target already, whatever it gets, is due as much as can be.
        let due = |demand: &Demand| {
            let left_s = target * alone_s(demand) - demand.age_s;
            demand.remaining_steps / left_s.max(1.0)
        };
        let next = least(demands, gpus, due)?;
        let lower = worst(&next);
        if lower >= ratio {
            break;
        }
        (best, ratio) = (next, lower);
    }
    Ok(best)
}

#[cfg(test)]
mod tests;
