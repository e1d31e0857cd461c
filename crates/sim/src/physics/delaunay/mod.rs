//! Delaunay triangulation of integer points in space, exact and deterministic.
//!
//! Measured shapes form grids, so almost every empty sphere passes through more than four points and the triangulation
//! is a matter of choice. The choice here is the one that an incremental convex hull in lifted space makes: points
//! come in a given order, each joins what it sees, and a cell of many points is fanned out from the last that came.

mod cells;
mod mesh;
mod predicates;

pub(super) use cells::Simplex;
pub(super) use predicates::{COORDINATE_MAX, Point, orientation};

use mesh::Mesh;

/// Triangulates distinct points, inserted in the given order. `None` if all lie in one plane.
pub(super) fn triangulate(points: &[Point], order: &[usize]) -> Option<Vec<Simplex>> {
    let mesh = Mesh::build(points, order)?;
    let mut ranks = vec![0; points.len()];
    for (rank, &point) in order.iter().enumerate() {
        ranks[point] = rank;
    }
    Some(cells::fan_out(&mesh, &ranks))
}

#[cfg(test)]
mod tests;
