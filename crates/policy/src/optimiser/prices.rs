/// What a GPU costs, by its kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prices<'a> {
    /// Kinds beyond its end cost nothing.
    by_kind: &'a [f64],
    /// What part of that is to be paid.
    share: f64,
}

impl Prices<'_> {
    /// Everything costs nothing.
    pub(super) const NONE: Self = Prices { by_kind: &[], share: 1.0 };

    /// What a GPU of a kind costs.
    pub(super) fn of(self, kind: usize) -> f64 {
        self.by_kind.get(kind).map_or(0.0, |price| self.share * price)
    }

    /// Whether these are prices at which everybody gets as little as possible.
    pub(super) fn are_infinite(self) -> bool {
        self.share.is_infinite()
    }
}

impl<'a> Prices<'a> {
    /// So many times what each kind costs; an infinite share leaves everybody the smallest size.
    pub(super) const fn new(by_kind: &'a [f64], share: f64) -> Self {
        Self { by_kind, share }
    }
}
