use thiserror::Error;

/// Closer to 0 than this is 0.
const TOLERANCE: f64 = 1e-10;
/// A gain without a limit that is smaller than this came of rounding, and so did a limit that is missed by less.
const ROUNDING: f64 = 1e-6;
/// Limits are this much wider, each by another multiple, so that no two are reached at once and the search never stalls.
const PERTURBATION: f64 = 1e-11;
/// Exchanges for each row and column, after which the point reached is the answer.
const EXCHANGES_MAX: usize = 20;

/// Largest value of a linear objective where sums of what is not negative stay within limits.
#[derive(Clone, Debug, Default)]
pub(super) struct LinearProgram {
    pub(super) objective: Vec<f64>,
    /// Coefficients of each row, as variable and factor.
    rows: Vec<(Vec<(usize, f64)>, f64)>,
}

/// Where the objective is largest.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Optimum {
    pub(super) point: Vec<f64>,
    /// What a little more of each limit would add.
    pub(super) prices: Vec<f64>,
}

/// Why a program has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum Unsolved {
    /// No point keeps all limits.
    #[error("no point keeps all limits")]
    Infeasible,
    /// The objective has no largest value.
    #[error("the objective has no largest value")]
    Unbounded,
    /// A factor or a limit is no finite number.
    #[error("a factor or a limit is no finite number")]
    NotFinite,
}

impl LinearProgram {
    pub(super) fn maximise(objective: Vec<f64>) -> Self {
        Self { objective, rows: Vec::new() }
    }

    /// Keeps a sum within a limit; one below 0 says how much there has to be of what is subtracted.
    pub(super) fn limit(&mut self, sum: Vec<(usize, f64)>, limit: f64) {
        self.rows.push((sum, limit));
    }

    /// How many limits it has.
    pub(super) fn limits(&self) -> usize {
        self.rows.len()
    }

    /// Solves it by the simplex method on a dense tableau: first for a point that keeps all limits, where nothing at all
    /// does not, then for the best.
    pub(super) fn solve(&self) -> Result<Optimum, Unsolved> {
        let in_rows = self.rows.iter().flat_map(|(sum, limit)| sum.iter().map(|(_, factor)| factor).chain([limit]));
        if !in_rows.chain(&self.objective).all(|figure| figure.is_finite()) {
            return Err(Unsolved::NotFinite);
        }
        let mut tableau = Tableau::of(self);
        if self.rows.iter().any(|(_, limit)| *limit < 0.0) {
            tableau.enter_limits()?;
        }
        tableau.climb(tableau.rows)?;
        let mut optimum = tableau.optimum();
        optimum.point.truncate(self.objective.len());
        Ok(optimum)
    }
}

/// Rows of basic variables by columns of the others; the last column has the limits. Behind the rows are the objective,
/// and that of the search for a point that keeps all limits: as little as can be of a variable that widens every limit.
struct Tableau {
    rows: usize,
    columns: usize,
    figures: Vec<f64>,
    /// Variables first, then what is left of each limit.
    basic: Vec<usize>,
    other: Vec<usize>,
    /// The variable that widens the limits may not come back.
    is_within_limits: bool,
}

impl Tableau {
    fn of(program: &LinearProgram) -> Self {
        let (rows, wideness) = (program.rows.len(), program.objective.len());
        let columns = wideness + 1;
        let width = columns + 1;
        let mut figures = vec![0.0; (rows + 2) * width];
        for (row, (sum, limit)) in program.rows.iter().enumerate() {
            for &(column, factor) in sum {
                figures[row * width + column] += factor;
            }
            figures[row * width + wideness] = -1.0;
            figures[row * width + columns] = limit + PERTURBATION * (1 + row) as f64;
        }
        for (column, factor) in program.objective.iter().enumerate() {
            figures[rows * width + column] = -factor;
        }
        figures[(rows + 1) * width + wideness] = 1.0;
        let (basic, other) = ((columns..columns + rows).collect(), (0..columns).collect());
        Self { rows, columns, figures, basic, other, is_within_limits: true }
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.figures[row * (self.columns + 1) + column]
    }

    /// Goes to a point that keeps all limits, from nothing at all, which does not.
    fn enter_limits(&mut self) -> Result<(), Unsolved> {
        let wideness = self.columns - 1;
        let tightest = (0..self.rows).min_by(|&a, &b| self.at(a, self.columns).total_cmp(&self.at(b, self.columns)));
        let Some(tightest) = tightest else { return Ok(()) };
        self.is_within_limits = false;
        self.exchange(tightest, wideness);
        self.climb(self.rows + 1)?;
        self.is_within_limits = true;
        let Some(row) = self.basic.iter().position(|&label| label == wideness) else { return Ok(()) };
        if self.at(row, self.columns) > ROUNDING {
            return Err(Unsolved::Infeasible);
        }
        // It is 0, and anything else may be in its place.
        let columns = (0..self.columns).filter(|&column| self.at(row, column).abs() > TOLERANCE);
        let largest = columns.max_by(|&a, &b| self.at(row, a).abs().total_cmp(&self.at(row, b).abs()));
        if let Some(column) = largest {
            self.exchange(row, column);
        }
        Ok(())
    }

    /// Exchanges variables until the objective in this row is largest.
    fn climb(&mut self, objective: usize) -> Result<(), Unsolved> {
        for _ in 0..EXCHANGES_MAX * (self.rows + self.columns) {
            let Some(column) = self.entering(objective) else { break };
            match self.leaving(column) {
                Some(row) => self.exchange(row, column),
                // What is left to gain came of rounding.
                None if self.at(objective, column) > -ROUNDING => break,
                None => return Err(Unsolved::Unbounded),
            }
        }
        Ok(())
    }

    /// The column that raises the objective the most; none at the optimum.
    fn entering(&self, objective: usize) -> Option<usize> {
        let may_enter = |column: &usize| !(self.is_within_limits && self.other[*column] == self.columns - 1);
        let gains = (0..self.columns).filter(may_enter).map(|column| (self.at(objective, column), column));
        let best = gains.min_by(|a, b| a.0.total_cmp(&b.0).then(self.other[a.1].cmp(&self.other[b.1])))?;
        (best.0 < -TOLERANCE).then_some(best.1)
    }

    /// The row that is the first to run out.
    fn leaving(&self, column: usize) -> Option<usize> {
        let left = (0..self.rows).filter(|&row| self.at(row, column) > TOLERANCE);
        let left = left.map(|row| (self.at(row, self.columns).max(0.0) / self.at(row, column), row));
        let first = left.min_by(|a, b| a.0.total_cmp(&b.0).then(self.basic[a.1].cmp(&self.basic[b.1])));
        first.map(|(_, row)| row)
    }

    fn exchange(&mut self, row: usize, column: usize) {
        let width = self.columns + 1;
        let pivot = self.at(row, column);
        let mut own: Vec<f64> = self.figures[row * width..(row + 1) * width].iter().map(|own| own / pivot).collect();
        for (idx, figures) in self.figures.chunks_exact_mut(width).enumerate() {
            let factor = figures[column];
            if idx == row || factor == 0.0 {
                continue;
            }
            for (figure, own) in figures.iter_mut().zip(&own) {
                *figure -= factor * own;
            }
            figures[column] = -factor / pivot;
        }
        own[column] = 1.0 / pivot;
        self.figures[row * width..(row + 1) * width].copy_from_slice(&own);
        std::mem::swap(&mut self.basic[row], &mut self.other[column]);
    }

    fn optimum(&self) -> Optimum {
        let mut point = vec![0.0; self.columns];
        let mut prices = vec![0.0; self.rows];
        for (row, &label) in self.basic.iter().enumerate().filter(|&(_, &label)| label < self.columns) {
            point[label] = self.at(row, self.columns).max(0.0);
        }
        for (column, &label) in self.other.iter().enumerate().filter(|&(_, &label)| label >= self.columns) {
            prices[label - self.columns] = self.at(self.rows, column).max(0.0);
        }
        Optimum { point, prices }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(mut state: u64) -> impl FnMut() -> f64 {
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// Jobs on three types: shares of time within 1 for a job and within the GPUs of a type, and the least throughput.
    fn max_min(next: &mut impl FnMut() -> f64) -> LinearProgram {
        let jobs = 1 + (next() * 12.0) as usize;
        let mut objective = vec![0.0; 3 * jobs + 1];
        objective[3 * jobs] = 1.0;
        let mut program = LinearProgram::maximise(objective);
        let gpus: Vec<f64> = (0..jobs).map(|_| f64::from(1u32 << (next() * 4.0) as u32)).collect();
        for job in 0..jobs {
            program.limit((0..3).map(|kind| (3 * job + kind, 1.0)).collect(), 1.0);
            let mut own: Vec<(usize, f64)> = (0..3).map(|kind| (3 * job + kind, -next())).collect();
            own.push((3 * jobs, 0.1 + next()));
            program.limit(own, 0.0);
        }
        for kind in 0..3 {
            let sum = (0..jobs).map(|job| (3 * job + kind, gpus[job])).collect();
            program.limit(sum, (next() * 20.0).floor());
        }
        program
    }

    #[test]
    fn what_is_found_is_allowed_and_its_prices_prove_that_nothing_is_better() {
        let mut next = numbers(0x2545_f491_4f6c_dd1d);
        for case in 0..1_000 {
            let program = max_min(&mut next);
            let Optimum { point, prices } = program.solve().expect("shares are bounded");
            let reached: f64 = program.objective.iter().zip(&point).map(|(factor, value)| factor * value).sum();
            let mut bound = 0.0;
            let mut reduced = program.objective.clone();
            for ((sum, limit), price) in program.rows.iter().zip(&prices) {
                let used: f64 = sum.iter().map(|&(variable, factor)| factor * point[variable]).sum();
                assert!(used <= limit + 1e-8, "case {case}: {used} of {limit}");
                assert!(*price >= 0.0, "case {case}");
                sum.iter().for_each(|&(variable, factor)| reduced[variable] -= price * factor);
                bound += price * limit;
            }
            assert!(point.iter().all(|value| *value >= 0.0), "case {case}");
            // By weak duality nothing can be above the bound.
            assert!(reduced.iter().all(|gain| *gain <= 1e-8), "case {case}: {reduced:?}");
            assert!((bound - reached).abs() <= 1e-6 * bound.abs().max(1.0), "case {case}: {reached} of {bound}");
        }
    }

    #[test]
    fn an_objective_without_a_limit_is_told() {
        let mut program = LinearProgram::maximise(vec![1.0, 1.0]);
        program.limit(vec![(0, 1.0)], 3.0);
        assert_eq!(program.solve(), Err(Unsolved::Unbounded));
        program.limit(vec![(1, 2.0)], 3.0);
        let point = program.solve().unwrap().point;
        assert!((point[0] - 3.0).abs() < 1e-9 && (point[1] - 1.5).abs() < 1e-9, "{point:?}");
    }

    #[test]
    fn limits_that_contradict_each_other_are_told() {
        let mut program = LinearProgram::maximise(vec![1.0, 1.0]);
        program.limit(vec![(0, 1.0), (1, 1.0)], 3.0);
        program.limit(vec![(0, -1.0)], -2.0);
        let point = program.solve().unwrap().point;
        assert!(point[0] >= 2.0 - 1e-8 && (point[0] + point[1] - 3.0).abs() < 1e-8, "{point:?}");
        program.limit(vec![(1, -1.0)], -2.0);
        assert_eq!(program.solve(), Err(Unsolved::Infeasible));
    }

    #[test]
    fn what_is_no_number_is_told() {
        for (factor, limit) in [(f64::NAN, 1.0), (1.0, f64::INFINITY), (f64::NEG_INFINITY, 1.0)] {
            let mut program = LinearProgram::maximise(vec![1.0]);
            program.limit(vec![(0, factor)], limit);
            assert_eq!(program.solve(), Err(Unsolved::NotFinite));
        }
        assert_eq!(LinearProgram::maximise(vec![f64::NAN]).solve(), Err(Unsolved::NotFinite));
    }

    /// Random programs with limits on both sides of 0. Which have an answer is told by their own proof: prices that bound
    /// the objective, or a sum of limits that no point keeps.
    #[test]
    fn random_programs_are_solved_as_their_duals_prove_or_refused() {
        let mut next = numbers(0x9e37_79b9_7f4a_7c15);
        let mut refused = [0, 0];
        for case in 0..2_000 {
            let (variables, rows) = (1 + (next() * 6.0) as usize, 1 + (next() * 8.0) as usize);
            let mut program = LinearProgram::maximise((0..variables).map(|_| next() * 2.0 - 0.7).collect());
            for _ in 0..rows {
                let sum = (0..variables).map(|variable| (variable, next() * 2.0 - 0.8)).collect();
                program.limit(sum, next() * 3.0 - 0.8);
            }
            match program.solve() {
                Ok(Optimum { point, prices }) => {
                    let reached: f64 = program.objective.iter().zip(&point).map(|(factor, value)| factor * value).sum();
                    let mut reduced = program.objective.clone();
                    let mut bound = 0.0;
                    let scale = 1.0 + point.iter().copied().fold(0.0, f64::max);
                    for ((sum, limit), price) in program.rows.iter().zip(&prices) {
                        let used: f64 = sum.iter().map(|&(variable, factor)| factor * point[variable]).sum();
                        assert!(used <= limit + 1e-6 * scale, "case {case}: {used} of {limit}");
                        sum.iter().for_each(|&(variable, factor)| reduced[variable] -= price * factor);
                        bound += price * limit;
                    }
                    assert!(reduced.iter().all(|gain| *gain <= 1e-6), "case {case}: {reduced:?}");
                    assert!(
                        (bound - reached).abs() <= 1e-6 * bound.abs().max(scale),
                        "case {case}: {reached} of {bound}"
                    );
                }
                Err(Unsolved::Infeasible) => {
                    refused[0] += 1;
                    // By Farkas' lemma some prices tell: asking for less of every limit that is missed has an answer.
                    let mut eased = LinearProgram::maximise(vec![0.0; variables].into_iter().chain([-1.0]).collect());
                    for (sum, limit) in &program.rows {
                        eased.limit(sum.iter().copied().chain([(variables, -1.0)]).collect(), *limit);
                    }
                    let optimum = eased.solve().expect("limits can be eased");
                    assert!(optimum.point[variables] > 1e-7, "case {case}");
                    let proof: f64 =
                        optimum.prices.iter().zip(&eased.rows).map(|(price, (_, limit))| price * limit).sum();
                    assert!(proof < -1e-7, "case {case}: {proof}");
                }
                Err(Unsolved::Unbounded) => {
                    refused[1] += 1;
                    // With all variables up to some size there is an optimum, which grows with that size.
                    let within = |most: f64| {
                        let mut program = program.clone();
                        (0..variables).for_each(|variable| program.limit(vec![(variable, 1.0)], most));
                        let point = program.solve().expect("it is bounded now").point;
                        program.objective.iter().zip(&point).map(|(factor, value)| factor * value).sum::<f64>()
                    };
                    assert!(within(1e4) > within(1e3) + 1e-3, "case {case}");
                }
                Err(Unsolved::NotFinite) => panic!("case {case}: all figures are finite"),
            }
        }
        assert!(refused.iter().all(|count| *count > 50), "{refused:?}");
    }
}
