use pollux_model::{GpuType, GpuTypeName};

/// More types than any cluster has.
const TYPES_MAX: usize = 1_000;

/// The types of GPU that ever joined, by the numbers that policies know them by.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuTypes {
    names: Vec<GpuTypeName>,
}

impl GpuTypes {
    pub(crate) const LIMIT: usize = TYPES_MAX;

    pub(crate) const fn from_names(names: Vec<GpuTypeName>) -> Self {
        Self { names }
    }

    pub(crate) fn number(&self, name: &GpuTypeName) -> Option<GpuType> {
        let place = self.names.iter().position(|known| known == name)?;
        u16::try_from(place).ok().map(GpuType)
    }

    pub(crate) fn name(&self, number: GpuType) -> Option<&GpuTypeName> {
        self.names.get(usize::from(number.0))
    }

    /// The numbers of the types that a job may run on, as far as there are nodes of them; nothing if it may on any.
    pub(crate) fn numbers(&self, names: &[String]) -> Option<Vec<GpuType>> {
        let known = names.iter().filter_map(|name| self.number(&GpuTypeName::nearest(name)));
        let mut numbers: Vec<GpuType> = known.collect();
        numbers.sort_unstable();
        (!names.is_empty()).then_some(numbers)
    }

    pub(crate) fn names(&self) -> &[GpuTypeName] {
        &self.names
    }

    /// The number of a type, and whether it is to be remembered for it; `None` if there are too many.
    pub(crate) fn number_or_next(&self, name: &GpuTypeName) -> Option<(GpuType, bool)> {
        match self.number(name) {
            Some(number) => Some((number, false)),
            None if self.names.len() >= TYPES_MAX => None,
            None => Some((GpuType(u16::try_from(self.names.len()).ok()?), true)),
        }
    }

    pub(crate) fn push(&mut self, name: GpuTypeName) {
        self.names.push(name);
    }

    /// The number of a type that a saved node has; there are never too many of them.
    pub(crate) fn intern(&mut self, name: GpuTypeName) -> GpuType {
        let Some((number, is_new)) = self.number_or_next(&name) else { return GpuType::default() };
        if is_new {
            self.push(name);
        }
        number
    }
}
