use std::collections::BTreeMap;
use std::path::Path;

use super::delaunay::{COORDINATE_MAX, Point};
use super::insertion_order::insertion_order;
use super::interpolation::ShapeInterpolation;
use super::{ApplicationName, PhysicsError, StepTime};
use crate::table::{Row, Table, TableError, is_measure};

const PLACEMENT_COLUMNS: &[&str] = &["placement", "local_bsz", "step_time", "sync_time"];
const SHAPE_COLUMNS: &[&str] = &["num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"];

/// Nodes and replicas of a measured shape, at most.
const SHAPE_MAX: u32 = 1024;

/// Measured step times of one application, and what lies between them.
#[derive(Clone, Debug)]
pub(super) struct StepTimes {
    /// Per measured placement, in the smallest rotation, times by local batch in ascending order.
    curves: BTreeMap<Vec<u32>, Vec<(u32, StepTime)>>,
    /// Nothing where only placements on one node were measured.
    shapes: Option<ShapeInterpolation>,
    /// The most replicas that any measured node held.
    per_node_max: u32,
    /// The means over the placements of a shape, then the larger shapes.
    means: Vec<(Point, StepTime)>,
}

/// What becomes of a shape that is listed twice.
#[derive(Clone, Copy, Debug)]
enum Repeated {
    Refused,
    FirstCounts,
}

impl StepTimes {
    /// From `placements.csv` and `scalability.csv` of an application's folder.
    pub(super) fn load(name: ApplicationName, folder: &Path) -> Result<Self, PhysicsError> {
        let placements = Table::read(&folder.join("placements.csv"), PLACEMENT_COLUMNS)?;
        let scalability = Table::read(&folder.join("scalability.csv"), SHAPE_COLUMNS)?;
        Self::from_tables(&placements, &scalability, Repeated::Refused, |shapes| insertion_order(name, shapes))
    }

    /// From `placements-<type>.csv` and `scalability-<type>.csv`. Those of some types list the same shapes twice.
    pub(super) fn load_type(folder: &Path, gpu_type: &str) -> Result<Self, PhysicsError> {
        let placements = Table::read(&folder.join(format!("placements-{gpu_type}.csv")), PLACEMENT_COLUMNS)?;
        let scalability = Table::read(&folder.join(format!("scalability-{gpu_type}.csv")), SHAPE_COLUMNS)?;
        Self::from_tables(&placements, &scalability, Repeated::FirstCounts, |shapes| (0..shapes).collect())
    }

    fn from_tables(
        placements: &Table,
        scalability: &Table,
        repeated: Repeated,
        order: impl Fn(usize) -> Vec<usize>,
    ) -> Result<Self, PhysicsError> {
        let mut curves: BTreeMap<Vec<u32>, Vec<(u32, StepTime)>> = BTreeMap::new();
        let mut sums: BTreeMap<Point, (StepTime, f64)> = BTreeMap::new();
        for row in placements.rows() {
            let placement = placement(&row)?;
            let (local_batch, time) = timing(&row, 1)?;
            let replicas: u32 = placement.iter().sum();
            let shape = [placement.len() as i64, i64::from(replicas), i64::from(local_batch)];
            let (sum, count) = sums.entry(shape).or_insert((StepTime { step_s: 0.0, sync_s: 0.0 }, 0.0));
            sum.step_s += time.step_s;
            sum.sync_s += time.sync_s;
            *count += 1.0;
            let curve = curves.entry(placement).or_default();
            if curve.iter().any(|&(seen, _)| seen == local_batch) {
                return Err(row.refuse(1, "each local batch once per placement").into());
            }
            curve.push((local_batch, time));
        }
        for curve in curves.values_mut() {
            curve.sort_by_key(|&(local_batch, _)| local_batch);
        }
        let mut means: Vec<(Point, StepTime)> = Vec::with_capacity(sums.len());
        for (&shape, &(sum, count)) in &sums {
            means.push((shape, StepTime { step_s: sum.step_s / count, sync_s: sum.sync_s / count }));
        }
        for row in scalability.rows() {
            let count = |column| row.get(column, "1 to 1024", |count| (1..=SHAPE_MAX).contains(count));
            let (nodes, replicas): (u32, u32) = (count(0)?, count(1)?);
            let (local_batch, time) = timing(&row, 2)?;
            let shape = [nodes, replicas, local_batch].map(i64::from);
            match (means.iter().any(|&(seen, _)| seen == shape), repeated) {
                (false, _) => means.push((shape, time)),
                (true, Repeated::FirstCounts) => {}
                (true, Repeated::Refused) => {
                    return Err(row.refuse(2, "each shape once, here or among the placements").into());
                }
            }
        }
        let per_node_max = curves.keys().flatten().copied().max().unwrap_or(1);
        let (points, times) = means.iter().copied().unzip();
        let shapes = ShapeInterpolation::new(points, times, &order(means.len()));
        let on_a_node = curves.keys().all(|placement| placement.len() == 1) && curves.contains_key([1].as_slice());
        if shapes.is_none() && !(on_a_node && matches!(repeated, Repeated::FirstCounts)) {
            return Err(PhysicsError::FlatShapes { file: placements.file().to_owned(), shapes: means.len() });
        }
        Ok(Self { curves, shapes, per_node_max, means })
    }

    /// Measured local batches, smallest and largest.
    pub(super) fn local_batch_range(&self) -> (u32, u32) {
        let batches = || self.curves.values().flatten().map(|&(local_batch, _)| local_batch);
        (batches().min().unwrap_or(1), batches().max().unwrap_or(1))
    }

    /// Times per measured `(nodes, replicas, local batch)`.
    pub(super) fn means(&self) -> &[(Point, StepTime)] {
        &self.means
    }

    /// A measured placement is linear in the local batch; another is interpolated between shapes.
    ///
    /// Beyond the largest local batch that was measured there, compute grows in proportion and synchronisation stays.
    /// A node fuller than any measured counts as several, and shapes wider or larger than all measured as the widest
    /// or largest.
    pub(super) fn at(&self, placement: &[u32], local_batch: u32) -> StepTime {
        let placement = normalised(placement, self.per_node_max);
        if let Some(curve) = self.curves.get(placement.as_slice()) {
            return on_curve(curve, local_batch);
        }
        let Some(shapes) = &self.shapes else {
            let all = [placement.iter().sum()];
            let (_, curve) = self.curves.range(..=all.to_vec()).next_back().expect("one replica was measured");
            return on_curve(curve, local_batch);
        };
        let nodes = (placement.len() as i64).min(shapes.nodes_max());
        let replicas = i64::from(placement.iter().sum::<u32>()).min(shapes.replicas_max());
        let wanted = i64::from(local_batch);
        let time = |local_batch| shapes.at([nodes, replicas, local_batch]);
        let enclosed = shapes.local_batch_within(nodes, replicas, wanted);
        match enclosed.and_then(|local_batch| Some((local_batch, time(local_batch)?))) {
            Some((enclosed, time)) if enclosed < wanted => grown(time, wanted as f64 / enclosed as f64),
            Some((_, time)) => time,
            None => shapes.nearest([nodes, replicas, wanted]),
        }
    }
}

/// Linear between neighbours, the smallest below them all.
fn on_curve(curve: &[(u32, StepTime)], local_batch: u32) -> StepTime {
    let above = curve.partition_point(|&(batch, _)| batch < local_batch);
    let Some(&(high_batch, high)) = curve.get(above) else {
        let (largest, time) = curve[curve.len() - 1];
        return grown(time, f64::from(local_batch) / f64::from(largest));
    };
    if above == 0 || high_batch == local_batch {
        return high;
    }
    let (low_batch, low) = curve[above - 1];
    let along = |low: f64, high: f64| {
        let slope = (high - low) / f64::from(high_batch - low_batch);
        slope * f64::from(local_batch - low_batch) + low
    };
    StepTime { step_s: along(low.step_s, high.step_s), sync_s: along(low.sync_s, high.sync_s) }
}

fn grown(time: StepTime, factor: f64) -> StepTime {
    StepTime { step_s: (time.step_s - time.sync_s) * factor + time.sync_s, sync_s: time.sync_s }
}

/// Without empty nodes, full nodes split, in the lexicographically smallest rotation.
fn normalised(placement: &[u32], per_node_max: u32) -> Vec<u32> {
    let mut nodes = Vec::with_capacity(placement.len());
    for &replicas in placement {
        let mut left = replicas;
        while left > 0 {
            nodes.push(left.min(per_node_max));
            left -= left.min(per_node_max);
        }
    }
    let rotation = |start: usize| nodes[start..].iter().chain(&nodes[..start]);
    let smallest = (0..nodes.len()).min_by(|&a, &b| rotation(a).cmp(rotation(b))).unwrap_or(0);
    nodes.rotate_left(smallest);
    nodes
}

/// Replicas per node, one digit each.
fn placement(row: &Row<'_>) -> Result<Vec<u32>, TableError> {
    let digits: Option<Vec<u32>> = row.text(0)?.chars().map(|digit| digit.to_digit(10)).collect();
    let valid = digits.filter(|digits| !digits.is_empty() && digits.len() <= 64 && !digits.contains(&0));
    let digits = valid.ok_or_else(|| row.refuse(0, "one digit 1 to 9 per node, of 1 to 64 nodes"))?;
    Ok(normalised(&digits, 9))
}

/// Local batch, step time and sync time from three columns in a row.
fn timing(row: &Row<'_>, column: usize) -> Result<(u32, StepTime), TableError> {
    let local_batch = row.get(column, "1 to 1048575", |batch| (1..COORDINATE_MAX).contains(batch))?;
    let step_s = row.get(column + 1, "seconds above 0", |time| is_measure(time) && *time > 0.0)?;
    let sync_s = row.get(column + 2, "seconds from 0 to below step_time", |time| is_measure(time) && *time < step_s)?;
    Ok((local_batch, StepTime { step_s, sync_s }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rotations_of_a_placement_are_one() {
        for placement in [[1, 4, 2, 4], [4, 1, 4, 2], [2, 4, 1, 4]] {
            assert_eq!(normalised(&placement, 4), [1, 4, 2, 4]);
        }
        assert_eq!(normalised(&[0, 3, 0, 1], 4), [1, 3]);
    }

    #[test]
    fn a_node_fuller_than_any_measured_counts_as_several() {
        assert_eq!(normalised(&[10, 4], 4), [2, 4, 4, 4]);
    }

    fn read(placements: &str, shapes: &str) -> Result<StepTimes, String> {
        let placements = format!("placement,local_bsz,step_time,sync_time\n{placements}");
        let shapes = format!("num_nodes,num_replicas,local_bsz,step_time,sync_time\n{shapes}");
        let table = |file: &str, text: &str, columns| {
            Table::parse(file, text.as_bytes(), columns).map_err(|error| error.to_string())
        };
        let placements = table("p.csv", &placements, PLACEMENT_COLUMNS)?;
        let shapes = table("s.csv", &shapes, SHAPE_COLUMNS)?;
        let order = |shapes| (0..shapes).collect();
        StepTimes::from_tables(&placements, &shapes, Repeated::Refused, order).map_err(|error| error.to_string())
    }

    #[test]
    fn broken_measurements_are_refused() {
        let check = |placements: &str, shapes: &str, expected: &str| {
            assert_eq!(read(placements, shapes).unwrap_err(), expected);
        };
        let (placement, shape) = ("1,4,2,1\n", "2,2,4,2,1\n");
        check("10,4,2,1\n", shape, "p.csv:2: placement \"10\"; expected one digit 1 to 9 per node, of 1 to 64 nodes");
        check("1,4,0,0\n", shape, "p.csv:2: step_time \"0\"; expected seconds above 0");
        check("1,4,2,3\n", shape, "p.csv:2: sync_time \"3\"; expected seconds from 0 to below step_time");
        check("1,4,2,1\n1,4,2,1\n", shape, "p.csv:3: local_bsz \"4\"; expected each local batch once per placement");
        check(placement, "0,2,4,2,1\n", "s.csv:2: num_nodes \"0\"; expected 1 to 1024");
        let twice = "s.csv:2: local_bsz \"4\"; expected each shape once, here or among the placements";
        check(placement, "1,1,4,2,1\n", twice);
        let flat = "p.csv: 2 measured shapes; expected shapes that differ in nodes, replicas and local batch";
        check(placement, shape, flat);
    }

    proptest! {
        #[test]
        fn no_row_makes_the_reader_panic(
            placements in "([1-4]{1,5},[1-9]{1,3},2,1\n|[0-9,.\\-\n]){0,30}",
            shapes in "([1-9],[1-9]{1,2},[1-9]{1,2},2,1\n|[0-9,.\\-\n]){0,20}",
            local_batch in 1..2000_u32,
        ) {
            if let Ok(times) = read(&placements, &shapes) {
                for placement in [&[1][..], &[4, 4], &[3; 20], &[1; 70]] {
                    let time = times.at(placement, local_batch);
                    prop_assert!(time.step_s > 0.0 && time.sync_s >= 0.0 && time.sync_s < time.step_s);
                }
            }
        }
    }

    #[test]
    fn times_beyond_the_measured_batches_stay_sane() {
        let time = |step_s| StepTime { step_s, sync_s: 1.0 };
        let curve = [(4, time(2.0)), (8, time(3.0))];
        assert_eq!(on_curve(&curve, 2), time(2.0));
        assert_eq!(on_curve(&curve, 6), time(2.5));
        assert_eq!(on_curve(&curve, 16), time(5.0));
    }
}
