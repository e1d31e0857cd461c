/// Integer coordinates below [`COORDINATE_MAX`], so that both predicates are exact in 128 bits.
pub(in crate::physics) type Point = [i64; 3];

pub(in crate::physics) const COORDINATE_MAX: u32 = 1 << 20;

/// Six times the signed volume of a tetrahedron; 0 if its corners lie in a plane.
pub(in crate::physics) fn orientation(corners: [Point; 4]) -> i128 {
    let [a, b, c, d] = corners;
    determinant(minus(a, d), minus(b, d), minus(c, d))
}

/// Positive if `point` lies inside the sphere through the corners of a tetrahedron of positive orientation, 0 on it.
pub(super) fn in_sphere(corners: [Point; 4], point: Point) -> i128 {
    let [a, b, c, d] = corners.map(|corner| minus(corner, point));
    let height = |row: [i128; 3]| row[0] * row[0] + row[1] * row[1] + row[2] * row[2];
    height(b) * determinant(a, c, d) - height(a) * determinant(b, c, d) + height(d) * determinant(a, b, c)
        - height(c) * determinant(a, b, d)
}

fn minus(a: Point, b: Point) -> [i128; 3] {
    [0, 1, 2].map(|axis| i128::from(a[axis] - b[axis]))
}

fn determinant(a: [i128; 3], b: [i128; 3], c: [i128; 3]) -> i128 {
    a[0] * (b[1] * c[2] - b[2] * c[1]) - a[1] * (b[0] * c[2] - b[2] * c[0]) + a[2] * (b[0] * c[1] - b[1] * c[0])
}
