/// A figure for every size of a job: by kind of GPU, on one node and over several. All are in one block of memory, since
/// jobs are many and a plan visits them all.
#[derive(Clone, Debug, Default)]
pub(crate) struct BySize {
    /// For each kind the sizes on one node, then those over several.
    figures: Vec<f64>,
    single_max: usize,
    multi_max: usize,
}

impl BySize {
    /// Room for figures of up to `single_max` replicas on one node and `multi_max` over several.
    pub(crate) fn with_room(kinds: usize, single_max: u32, multi_max: u32) -> Self {
        let (single_max, multi_max) = (single_max as usize, multi_max as usize);
        Self { figures: Vec::with_capacity(kinds * (single_max + multi_max)), single_max, multi_max }
    }

    /// Adds the next kind, by functions of the number of replicas.
    pub(crate) fn push_kind(&mut self, single: impl Fn(u32) -> f64, multi: impl Fn(u32) -> f64) {
        self.figures.extend((1..=self.single_max as u32).map(single));
        self.figures.extend((1..=self.multi_max as u32).map(multi));
    }

    /// The same sizes with other figures, by a function of the number of replicas and the figure.
    pub(crate) fn map(&self, figure: impl Fn(u32, f64) -> f64) -> Self {
        let mut mapped = Vec::with_capacity(self.figures.len());
        for (single, multi) in self.by_kind() {
            for figures in [single, multi] {
                mapped.extend(figures.iter().zip(1..).map(|(&old, replicas)| figure(replicas, old)));
            }
        }
        Self { figures: mapped, ..*self }
    }

    /// Of each kind the figures on one node and over several; those of `r` replicas at index `r - 1`.
    pub(crate) fn by_kind(&self) -> impl Iterator<Item = (&[f64], &[f64])> {
        self.figures.chunks_exact(self.stride().max(1)).map(|figures| figures.split_at(self.single_max))
    }

    /// The figures of one kind, on one node and over several; none if there are none of it.
    pub(crate) fn of_kind(&self, kind: usize) -> (&[f64], &[f64]) {
        let start = kind * self.stride();
        let figures = self.figures.get(start..start + self.stride()).unwrap_or_default();
        figures.split_at(self.single_max.min(figures.len()))
    }

    /// Leaves out whatever is refused by its kind, its replicas and whether they are over several nodes.
    pub(crate) fn retain(&mut self, keeps: impl Fn(usize, u32, bool) -> bool) {
        let (single_max, stride) = (self.single_max, self.stride().max(1));
        for (kind, figures) in self.figures.chunks_exact_mut(stride).enumerate() {
            let (single, multi) = figures.split_at_mut(single_max);
            for (figures, is_multi_node) in [(single, false), (multi, true)] {
                for (figure, replicas) in figures.iter_mut().zip(1..) {
                    if !keeps(kind, replicas, is_multi_node) {
                        *figure = f64::NEG_INFINITY;
                    }
                }
            }
        }
    }

    /// One kind by itself.
    pub(crate) fn only(&self, kind: usize) -> Self {
        let figures = self.figures.chunks_exact(self.stride().max(1)).nth(kind).unwrap_or_default();
        Self { figures: figures.to_vec(), ..*self }
    }

    /// The figure of so many replicas, on one node or over several.
    pub(crate) fn at(&self, kind: usize, replicas: u32, is_multi_node: bool) -> Option<f64> {
        let (before, most) = if is_multi_node { (self.single_max, self.multi_max) } else { (0, self.single_max) };
        let idx = (replicas as usize).checked_sub(1).filter(|&idx| idx < most)?;
        self.figures.get(kind * self.stride() + before + idx).copied()
    }

    /// The best figure of the fewest replicas that have one above 0, over all kinds.
    pub(crate) fn first(&self) -> f64 {
        let of = |replicas: usize| {
            let at = |figures: &[f64]| figures.get(replicas).copied().unwrap_or(0.0);
            self.by_kind().map(|(single, multi)| at(single).max(at(multi))).fold(0.0, f64::max)
        };
        (0..self.largest()).map(of).find(|figure| *figure > 0.0).unwrap_or(1.0)
    }

    /// The most replicas that there is a figure for.
    pub(crate) fn largest(&self) -> usize {
        if self.figures.is_empty() { 0 } else { self.single_max.max(self.multi_max) }
    }

    fn stride(&self) -> usize {
        self.single_max + self.multi_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_kind_size_and_placement() {
        let mut sizes = BySize::with_room(2, 2, 3);
        sizes.push_kind(f64::from, |replicas| 10.0 * f64::from(replicas));
        sizes.push_kind(|replicas| 100.0 * f64::from(replicas), |_| 0.0);
        assert_eq!([sizes.at(0, 2, false), sizes.at(0, 3, true), sizes.at(1, 1, false)], [2.0, 30.0, 100.0].map(Some));
        assert_eq!([sizes.at(0, 3, false), sizes.at(0, 0, true), sizes.at(2, 1, false)], [None; 3]);
        let by_kind: Vec<_> = sizes.by_kind().collect();
        assert_eq!(by_kind, [([1.0, 2.0].as_slice(), [10.0, 20.0, 30.0].as_slice()), (&[100.0, 200.0], &[0.0; 3])]);
        assert_eq!(sizes.map(|replicas, old| old + f64::from(replicas)).at(0, 3, true), Some(33.0));
        assert_eq!([sizes.of_kind(0), sizes.of_kind(1)], by_kind[..]);
        assert_eq!((sizes.of_kind(2), BySize::default().of_kind(0)), ((&[][..], &[][..]), (&[][..], &[][..])));
        assert_eq!((sizes.largest(), BySize::default().largest(), BySize::default().by_kind().count()), (3, 0, 0));
    }
}
