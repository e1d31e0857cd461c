use super::prices::Prices;
use super::problem::Problem;
use super::relaxation::{concave_hull, option_points};

/// What each job could have of each kind of GPU: only the vertices of the concave hulls of its values, which are all
/// that any price can make it choose.
pub(super) struct Hulls {
    kinds: usize,
    none: Vec<f64>,
    vertices: Vec<Vertex>,
    /// Where the vertices of a job on a kind begin, at `job * kinds + kind`, and the end of all.
    starts: Vec<u32>,
}

/// A size of a job on a kind that is worth choosing at some price.
#[derive(Clone, Copy)]
pub(super) struct Vertex {
    pub(super) gpus: f64,
    pub(super) value: f64,
    /// What each GPU adds since the vertex before.
    slope: f64,
}

impl Hulls {
    pub(super) fn of(problem: &Problem) -> Self {
        let kinds = problem.kinds();
        let mut rooms = vec![(0u32, 0u32); kinds];
        for node in &problem.nodes {
            let (largest, all) = &mut rooms[node.kind];
            *largest = (*largest).max(node.resources.gpus);
            *all = all.saturating_add(node.resources.gpus);
        }
        let mut hulls = Self { kinds, none: Vec::new(), vertices: Vec::new(), starts: vec![0] };
        let (mut points, mut hull) = (Vec::new(), Vec::new());
        for options in &problem.jobs {
            hulls.none.push(options.none);
            let keep = options.keep.as_ref().map(|keep| (keep.kind(&problem.nodes), keep));
            for (kind, room) in rooms.iter().enumerate() {
                let kept = keep.filter(|&(kept, _)| kept == kind).map(|(_, keep)| keep);
                option_points(options, (kind, kept), *room, &mut points);
                concave_hull(&points, &mut hull);
                hulls.vertices.extend(hull.windows(2).map(|pair| {
                    let (before, gpus) = (f64::from(pair[0].0), f64::from(pair[1].0));
                    Vertex { gpus, value: pair[1].1, slope: (pair[1].1 - pair[0].1) / (gpus - before) }
                }));
                hulls.starts.push(hulls.vertices.len() as u32);
            }
        }
        hulls
    }

    pub(super) fn jobs(&self) -> usize {
        self.none.len()
    }

    pub(super) fn kinds(&self) -> usize {
        self.kinds
    }

    /// What nothing is worth to a job.
    pub(super) fn none(&self, job: usize) -> f64 {
        self.none[job]
    }

    /// The vertices of a job on a kind, smallest first.
    pub(super) fn on(&self, job: usize, kind: usize) -> &[Vertex] {
        let at = job * self.kinds + kind;
        &self.vertices[self.starts[at] as usize..self.starts[at + 1] as usize]
    }

    /// How many GPUs of a kind a job would choose at a price, and what is left to it after paying.
    pub(super) fn choice(&self, job: usize, kind: usize, price: f64) -> (f64, f64) {
        let hull = self.on(job, kind);
        match chosen(hull, price).checked_sub(1) {
            Some(idx) => (hull[idx].gpus, hull[idx].net(price)),
            None => (0.0, self.none[job]),
        }
    }

    /// The same if it has to have some, where it can.
    pub(super) fn choice_of_some(&self, job: usize, kind: usize, price: f64) -> Option<(f64, f64)> {
        let hull = self.on(job, kind);
        let vertex = hull.get(chosen(hull, price).saturating_sub(1))?;
        Some((vertex.gpus, vertex.net(price)))
    }

    /// The kind that a job would choose at the prices, with the GPUs and what is left to it; the lower of two alike.
    pub(super) fn best(&self, job: usize, prices: Prices<'_>) -> (usize, f64, f64) {
        let mut best = (0, 0.0, self.none[job]);
        for kind in 0..self.kinds {
            let (gpus, net) = self.choice(job, kind, prices.of(kind));
            if net > best.2 {
                best = (kind, gpus, net);
            }
        }
        best
    }
}

impl Vertex {
    pub(super) fn net(&self, price: f64) -> f64 {
        self.value - price * self.gpus
    }
}

/// The number of vertices that are worth climbing to at a price.
pub(super) fn chosen(hull: &[Vertex], price: f64) -> usize {
    hull.partition_point(|vertex| vertex.slope > price)
}
