use std::collections::BTreeMap;

use super::predicates::{Point, in_sphere, orientation};

/// The corner that every face of the hull shares with the outside.
const GHOST: usize = usize::MAX;

/// A tetrahedron; `neighbours[i]` lies across the face without `corners[i]`.
///
/// With a point from beyond the hull in the place of a ghost, the orientation is positive as everywhere else.
#[derive(Clone, Copy)]
pub(super) struct Tetrahedron {
    pub(super) corners: [usize; 4],
    pub(super) neighbours: [usize; 4],
}

impl Tetrahedron {
    fn ghost(&self) -> Option<usize> {
        self.corners.iter().position(|&corner| corner == GHOST)
    }

    pub(super) fn is_real(&self) -> bool {
        self.ghost().is_none()
    }
}

/// The tetrahedra over the points inserted so far, closed by ghosts around them.
///
/// A point on the sphere of a tetrahedron does not disturb it, as if every point were lifted by far less than those
/// after it. No tetrahedron is flat.
pub(super) struct Mesh<'points> {
    points: &'points [Point],
    pub(super) tetrahedra: Vec<Tetrahedron>,
    /// Slots of tetrahedra that a later point destroyed.
    free: Vec<usize>,
    alive: Vec<bool>,
    /// Where the last point went in: the next one is often near.
    recent: usize,
}

/// A face between a tetrahedron that a new point destroys and one that stays.
struct Border {
    inside: Tetrahedron,
    outside: usize,
    /// Corner of `inside` that the new point replaces.
    corner: usize,
}

impl<'points> Mesh<'points> {
    /// `None` if all points lie in one plane.
    pub(super) fn build(points: &'points [Point], order: &[usize]) -> Option<Self> {
        let first = first_simplex(points, order)?;
        let mut mesh = Self { points, tetrahedra: Vec::new(), free: Vec::new(), alive: Vec::new(), recent: 0 };
        mesh.start(first);
        for &point in order.iter().filter(|point| !first.contains(point)) {
            mesh.insert(point);
        }
        Some(mesh)
    }

    /// Indices of the tetrahedra without a ghost.
    pub(super) fn real(&self) -> impl Iterator<Item = usize> {
        (0..self.tetrahedra.len()).filter(|&idx| self.alive[idx] && self.tetrahedra[idx].is_real())
    }

    /// Whether a point lies on the sphere of a real tetrahedron.
    pub(super) fn is_on_sphere(&self, tetrahedron: usize, point: usize) -> bool {
        in_sphere(self.positions(self.tetrahedra[tetrahedron].corners), self.points[point]) == 0
    }

    /// Six times the signed volume.
    pub(super) fn orientation(&self, corners: [usize; 4]) -> i128 {
        orientation(self.positions(corners))
    }

    fn positions(&self, corners: [usize; 4]) -> [Point; 4] {
        corners.map(|corner| self.points[corner])
    }

    fn start(&mut self, mut first: [usize; 4]) {
        if self.orientation(first) < 0 {
            first.swap(0, 1);
        }
        self.tetrahedra.push(Tetrahedron { corners: first, neighbours: [1, 2, 3, 4] });
        for corner in 0..4 {
            let mut corners = first;
            corners[corner] = GHOST;
            let [one, other] = [(corner + 1) % 4, (corner + 2) % 4];
            corners.swap(one, other);
            // Ghost k + 1 is the one across from corner k, and shares with it all corners but k.
            let mut neighbours = [0, 1, 2, 3].map(|idx| idx + 1);
            neighbours.swap(one, other);
            neighbours[corner] = 0;
            self.tetrahedra.push(Tetrahedron { corners, neighbours });
        }
        self.alive = vec![true; 5];
    }

    fn insert(&mut self, point: usize) {
        let (cavity, borders) = self.cavity(point);
        for idx in cavity {
            self.alive[idx] = false;
            self.free.push(idx);
        }
        // Two new tetrahedra that share the point and an edge of the border are neighbours.
        let mut open: BTreeMap<(usize, usize), (usize, usize)> = BTreeMap::new();
        for border in &borders {
            let mut fresh = border.inside;
            fresh.corners[border.corner] = point;
            fresh.neighbours[border.corner] = border.outside;
            let idx = self.add(fresh);
            let back = self.face_towards(border);
            self.tetrahedra[border.outside].neighbours[back] = idx;
            for side in (0..4).filter(|&side| side != border.corner) {
                let mut edge = (0..4).filter(|&corner| corner != side && corner != border.corner);
                let ends = [edge.next(), edge.next()].map(|end| end.map_or(GHOST, |end| fresh.corners[end]));
                let key = (ends[0].min(ends[1]), ends[0].max(ends[1]));
                if let Some((other, other_side)) = open.remove(&key) {
                    self.tetrahedra[idx].neighbours[side] = other;
                    self.tetrahedra[other].neighbours[other_side] = idx;
                } else {
                    open.insert(key, (idx, side));
                }
            }
            self.recent = idx;
        }
        assert!(open.is_empty(), "the border of a cavity is closed");
    }

    /// The face of the outer tetrahedron on this border: the corner that the inner one lacks.
    fn face_towards(&self, border: &Border) -> usize {
        let shared = |corner: &usize| {
            border.inside.corners.iter().enumerate().any(|(idx, inner)| idx != border.corner && inner == corner)
        };
        let outside = &self.tetrahedra[border.outside].corners;
        outside.iter().position(|corner| !shared(corner)).expect("two tetrahedra differ in a corner")
    }

    fn add(&mut self, tetrahedron: Tetrahedron) -> usize {
        if let Some(idx) = self.free.pop() {
            self.tetrahedra[idx] = tetrahedron;
            self.alive[idx] = true;
            return idx;
        }
        self.tetrahedra.push(tetrahedron);
        self.alive.push(true);
        self.tetrahedra.len() - 1
    }

    /// All tetrahedra that a new point destroys, and the faces around them.
    fn cavity(&self, point: usize) -> (Vec<usize>, Vec<Border>) {
        let start = self.locate(point);
        let mut destroyed = vec![start];
        let mut borders = Vec::new();
        let mut reached = 0;
        while let Some(&idx) = destroyed.get(reached) {
            reached += 1;
            let inside = self.tetrahedra[idx];
            for (corner, &outside) in inside.neighbours.iter().enumerate() {
                if destroyed.contains(&outside) {
                    continue;
                }
                if self.is_disturbed(outside, point) {
                    destroyed.push(outside);
                } else {
                    borders.push(Border { inside, outside, corner });
                }
            }
        }
        (destroyed, borders)
    }

    /// A tetrahedron that the point disturbs, found by walking towards it.
    fn locate(&self, point: usize) -> usize {
        let mut here = self.recent;
        if let Some(ghost) = self.tetrahedra[here].ghost() {
            here = self.tetrahedra[here].neighbours[ghost];
        }
        'walk: loop {
            let Tetrahedron { corners, neighbours } = self.tetrahedra[here];
            if corners.contains(&GHOST) {
                return here;
            }
            for (face, &next) in neighbours.iter().enumerate() {
                let mut towards = corners;
                towards[face] = point;
                if self.orientation(towards) < 0 {
                    here = next;
                    continue 'walk;
                }
            }
            return here;
        }
    }

    fn is_disturbed(&self, idx: usize, point: usize) -> bool {
        let tetrahedron = &self.tetrahedra[idx];
        let Some(ghost) = tetrahedron.ghost() else {
            return in_sphere(self.positions(tetrahedron.corners), self.points[point]) > 0;
        };
        let mut beyond = tetrahedron.corners;
        beyond[ghost] = point;
        match self.orientation(beyond) {
            // In the plane of a face of the hull, the sphere behind that face decides.
            0 => self.is_disturbed(tetrahedron.neighbours[ghost], point),
            side => side > 0,
        }
    }
}

/// The first four points of the order that are not in one plane.
fn first_simplex(points: &[Point], order: &[usize]) -> Option<[usize; 4]> {
    let (&first, rest) = order.split_first()?;
    let (&second, rest) = rest.split_first()?;
    let direction = |point: usize| [0, 1, 2].map(|axis| i128::from(points[point][axis] - points[first][axis]));
    let along = direction(second);
    let is_aside = |&&point: &&usize| {
        let to = direction(point);
        (0..3).any(|axis| along[axis] * to[(axis + 1) % 3] != along[(axis + 1) % 3] * to[axis])
    };
    let third = *rest.iter().find(is_aside)?;
    let is_above = |&&point: &&usize| orientation([first, second, third, point].map(|idx| points[idx])) != 0;
    let fourth = *rest.iter().find(is_above)?;
    Some([first, second, third, fourth])
}
