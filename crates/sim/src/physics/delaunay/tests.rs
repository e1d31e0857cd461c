use super::predicates::in_sphere;
use super::*;

fn in_order(points: &[Point]) -> Vec<Simplex> {
    triangulate(points, &(0..points.len()).collect::<Vec<_>>()).unwrap()
}

fn volume(points: &[Point], simplices: &[Simplex]) -> i128 {
    simplices.iter().map(|simplex| orientation(simplex.corners.map(|corner| points[corner])).abs()).sum()
}

fn grid(side: i64) -> Vec<Point> {
    (0..side).flat_map(|x| (0..side).flat_map(move |y| (0..side).map(move |z| [x, y, z]))).collect()
}

#[test]
fn the_predicates_know_their_signs() {
    let corners = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]];
    assert_eq!(orientation(corners), 1);
    assert!(in_sphere(corners, [1, 1, 1]) == 0 && in_sphere(corners, [2, 0, 0]) < 0);
    assert!(in_sphere([[9, 0, 0], [0, 9, 0], [0, 0, 9], [0, 0, 0]], [1, 1, 1]) > 0);
}

#[test]
fn a_cube_is_fanned_out_from_its_last_point() {
    let points = grid(2);
    let simplices = in_order(&points);
    assert_eq!(volume(&points, &simplices), 6);
    assert_eq!(simplices.len(), 6);
    assert!(simplices.iter().all(|simplex| simplex.corners.contains(&7) && simplex.cell_rank == 7));
}

#[test]
fn grids_are_filled_whatever_the_order() {
    let points = grid(4);
    for step in [1, 3, 5, 27, 61] {
        let order: Vec<_> = (0..64).map(|idx| idx * step % 64).collect();
        let simplices = triangulate(&points, &order).unwrap();
        assert_eq!(volume(&points, &simplices), 6 * 27);
    }
}

#[test]
fn no_sphere_holds_a_point() {
    let mut state = 7_u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 58) as i64
    };
    let mut points: Vec<Point> = (0..80).map(|_| [draw(), draw(), draw()]).collect();
    points.sort_unstable();
    points.dedup();
    for simplex in in_order(&points) {
        let mut corners = simplex.corners.map(|corner| points[corner]);
        if orientation(corners) < 0 {
            corners.swap(0, 1);
        }
        assert!(points.iter().all(|&point| in_sphere(corners, point) <= 0));
    }
}

#[test]
fn flat_points_have_no_triangulation() {
    let points: Vec<_> = grid(3).into_iter().filter(|point| point[1] == 1).collect();
    assert!(triangulate(&points, &(0..9).collect::<Vec<_>>()).is_none());
    assert!(triangulate(&[], &[]).is_none());
}
