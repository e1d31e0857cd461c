use super::mesh::Mesh;

/// A tetrahedron of the triangulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::physics) struct Simplex {
    /// Indices of its corners.
    pub(in crate::physics) corners: [usize; 4],
    /// When the last point of its cell came: the cell's age.
    pub(in crate::physics) cell_rank: usize,
}

/// Cuts each cell, all points of which lie on one sphere, into tetrahedra from its last point to the faces that do not
/// touch it.
///
/// Neighbouring cells may cut a face they share along different diagonals; on such a face the simplex of the older
/// cell counts.
pub(super) fn fan_out(mesh: &Mesh<'_>, ranks: &[usize]) -> Vec<Simplex> {
    let cells = cells(mesh);
    let mut cell_of = vec![usize::MAX; mesh.tetrahedra.len()];
    for (number, cell) in cells.iter().enumerate() {
        for &idx in cell {
            cell_of[idx] = number;
        }
    }
    let mut simplices = Vec::new();
    for (number, cell) in cells.iter().enumerate() {
        let corners = cell.iter().flat_map(|&idx| mesh.tetrahedra[idx].corners);
        let apex = corners.max_by_key(|&corner| ranks[corner]).expect("a cell holds a tetrahedron");
        for &idx in cell {
            let tetrahedron = &mesh.tetrahedra[idx];
            for (face, &neighbour) in tetrahedron.neighbours.iter().enumerate() {
                let mut corners = tetrahedron.corners;
                let touches_apex = corners.iter().enumerate().any(|(at, &corner)| at != face && corner == apex);
                corners[face] = apex;
                if cell_of[neighbour] != number && !touches_apex && mesh.orientation(corners) != 0 {
                    simplices.push(Simplex { corners, cell_rank: ranks[apex] });
                }
            }
        }
    }
    simplices
}

/// Tetrahedra that share their sphere with a neighbour, together.
fn cells(mesh: &Mesh<'_>) -> Vec<Vec<usize>> {
    let mut seen = vec![false; mesh.tetrahedra.len()];
    let mut cells = Vec::new();
    for start in mesh.real() {
        if seen[start] {
            continue;
        }
        seen[start] = true;
        let mut cell = vec![start];
        let mut reached = 0;
        while let Some(&idx) = cell.get(reached) {
            reached += 1;
            let corners = mesh.tetrahedra[idx].corners;
            for &neighbour in &mesh.tetrahedra[idx].neighbours {
                let across = &mesh.tetrahedra[neighbour];
                if seen[neighbour] || !across.is_real() {
                    continue;
                }
                let far = across.corners.into_iter().find(|corner| !corners.contains(corner));
                if far.is_some_and(|far| mesh.is_on_sphere(idx, far)) {
                    seen[neighbour] = true;
                    cell.push(neighbour);
                }
            }
        }
        cells.push(cell);
    }
    cells
}
