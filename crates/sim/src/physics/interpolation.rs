use super::StepTime;
use super::delaunay::{self, Point, Simplex, orientation};

/// Step times between measured shapes: piecewise linear over `(nodes, replicas, local batch)`.
#[derive(Clone, Debug)]
pub(super) struct ShapeInterpolation {
    points: Vec<Point>,
    times: Vec<StepTime>,
    /// Per number of nodes, the pieces that such a query may fall into, oldest cell first.
    pieces: Vec<Vec<Piece>>,
    replicas_max: i64,
}

/// A simplex and the box around it, which most queries miss.
#[derive(Clone, Copy, Debug)]
struct Piece {
    simplex: Simplex,
    low: Point,
    high: Point,
}

impl ShapeInterpolation {
    /// Through distinct points and their times; the order decides between equally good triangulations. `None` if the
    /// points span no volume.
    pub(super) fn new(points: Vec<Point>, times: Vec<StepTime>, order: &[usize]) -> Option<Self> {
        let mut simplices = delaunay::triangulate(&points, order)?;
        simplices.sort_by_key(|simplex| (simplex.cell_rank, simplex.corners));
        let nodes_max = points.iter().map(|point| point[0]).max()?;
        let replicas_max = points.iter().map(|point| point[1]).max()?;
        let mut pieces = vec![Vec::new(); nodes_max as usize + 1];
        for simplex in simplices {
            let corners = simplex.corners.map(|corner| points[corner]);
            let bound = |pick: fn(i64, i64) -> i64| {
                [0, 1, 2]
                    .map(|axis| corners[1..].iter().fold(corners[0][axis], |bound, corner| pick(bound, corner[axis])))
            };
            let piece = Piece { simplex, low: bound(i64::min), high: bound(i64::max) };
            for nodes in piece.low[0]..=piece.high[0] {
                pieces[nodes as usize].push(piece);
            }
        }
        Some(Self { points, times, pieces, replicas_max })
    }

    /// Nodes of the widest shape.
    pub(super) fn nodes_max(&self) -> i64 {
        self.pieces.len() as i64 - 1
    }

    /// Replicas of the largest shape.
    pub(super) fn replicas_max(&self) -> i64 {
        self.replicas_max
    }

    /// The largest local batch, up to the one asked for, that is enclosed by measurements for this shape.
    ///
    /// Measurements enclose a convex body, so what they enclose at one shape is a single run of local batches.
    pub(super) fn local_batch_within(&self, nodes: i64, replicas: i64, local_batch: i64) -> Option<i64> {
        let is_within = |local_batch| self.at([nodes, replicas, local_batch]).is_some();
        if is_within(local_batch) {
            return Some(local_batch);
        }
        let mut smallest: Vec<i64> =
            self.points.iter().map(|point| point[2]).filter(|&batch| batch < local_batch).collect();
        smallest.sort_unstable();
        let mut low = smallest.into_iter().rev().find(|&batch| is_within(batch))?;
        let mut high = local_batch;
        while high - low > 1 {
            let middle = i64::midpoint(low, high);
            if is_within(middle) { low = middle } else { high = middle }
        }
        Some(low)
    }

    /// The interpolated times; `None` outside of what measurements enclose.
    pub(super) fn at(&self, query: Point) -> Option<StepTime> {
        let pieces = self.pieces.get(usize::try_from(query[0]).ok()?)?;
        let may_hold = |piece: &&Piece| (1..3).all(|axis| (piece.low[axis]..=piece.high[axis]).contains(&query[axis]));
        pieces.iter().filter(may_hold).find_map(|piece| self.within(&piece.simplex, query))
    }

    /// The times of the measured point that is nearest in nodes and replicas, then in local batch.
    pub(super) fn nearest(&self, query: Point) -> StepTime {
        let distance = |point: &Point| {
            let [nodes, replicas, local_batch] = [0, 1, 2].map(|axis| (point[axis] - query[axis]).abs());
            (nodes + replicas, local_batch)
        };
        let nearest = self.points.iter().zip(&self.times).min_by_key(|(point, _)| distance(point));
        *nearest.expect("an interpolation has points").1
    }

    /// Weighs the corners by the volumes opposite to them, all exact, if the query is inside or on the border.
    fn within(&self, simplex: &Simplex, query: Point) -> Option<StepTime> {
        let corners = simplex.corners.map(|corner| self.points[corner]);
        let whole = orientation(corners);
        let mut time = StepTime { step_s: 0.0, sync_s: 0.0 };
        for (idx, &corner) in simplex.corners.iter().enumerate() {
            let mut part = corners;
            part[idx] = query;
            let volume = orientation(part);
            if volume.signum() * whole.signum() < 0 {
                return None;
            }
            let weight = volume as f64 / whole as f64;
            time.step_s += weight * self.times[corner].step_s;
            time.sync_s += weight * self.times[corner].sync_s;
        }
        Some(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn time(step_s: f64) -> StepTime {
        StepTime { step_s, sync_s: step_s / 2.0 }
    }

    fn grid() -> ShapeInterpolation {
        let points: Vec<Point> = [1, 3]
            .into_iter()
            .flat_map(|n| [4, 8].into_iter().flat_map(move |k| [10, 20].map(|b| [n, k, b])))
            .collect();
        let times = points.iter().map(|&[nodes, replicas, batch]| time((nodes + replicas + batch) as f64)).collect();
        ShapeInterpolation::new(points, times, &[0, 1, 2, 3, 4, 5, 6, 7]).unwrap()
    }

    #[test]
    fn a_linear_function_is_told_exactly() {
        assert_eq!(grid().at([2, 5, 13]), Some(time(20.0)));
        assert_eq!(grid().at([2, 8, 20]), Some(time(30.0)));
    }

    #[test]
    fn outside_of_the_measurements_there_is_no_answer() {
        for query in [[0, 5, 13], [4, 5, 13], [2, 3, 13], [2, 9, 13], [2, 5, 9], [2, 5, 21], [-1, -1, -1]] {
            assert_eq!(grid().at(query), None);
        }
        assert_eq!(grid().local_batch_within(2, 5, 99), Some(20));
        assert_eq!(grid().local_batch_within(2, 9, 99), None);
        assert_eq!(grid().nearest([9, 9, 18]), time(31.0));
    }

    proptest! {
        #[test]
        fn measured_points_keep_their_times(
            points in prop::collection::btree_set([1..6_i64, 1..8_i64, 1..20_i64], 4..60),
            seed in any::<u64>(),
        ) {
            let points: Vec<Point> = points.into_iter().collect();
            let times: Vec<_> = (0..points.len()).map(|idx| time(1.0 + (idx * 7 % 13) as f64)).collect();
            let mut order: Vec<usize> = (0..points.len()).collect();
            let mut rng = crate::SimRng::new(seed);
            order.sort_by_cached_key(|_| rng.next_u64());
            if let Some(interpolation) = ShapeInterpolation::new(points.clone(), times.clone(), &order) {
                for (&point, &measured) in points.iter().zip(&times) {
                    prop_assert_eq!(interpolation.at(point), Some(measured));
                }
                for query in (1..6).flat_map(|n| (1..8).map(move |k| [n, k, 9])) {
                    prop_assert!(interpolation.at(query).is_none_or(|at| (1.0..=13.0001).contains(&at.step_s)));
                }
            }
        }
    }
}
