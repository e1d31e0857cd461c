use pollux_model::{GpuType, GpuTypeName};

/// More types than any cluster has.
const TYPES_MAX: usize = 1_000;

/// The types of GPU that ever joined, by the numbers that policies know them by.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub(crate) struct GpuTypes {
    names: Vec<GpuTypeName>,
}

impl GpuTypes {
    pub(crate) const LIMIT: usize = TYPES_MAX;

    pub(crate) fn from_names(names: Vec<GpuTypeName>) -> Self {
        Self { names }
    }

    pub(crate) fn number(&self, name: &GpuTypeName) -> Option<GpuType> {
        let place = self.names.iter().position(|known| known == name)?;
        u16::try_from(place).ok().map(GpuType)
    }

    pub(crate) fn name(&self, number: GpuType) -> Option<&GpuTypeName> {
        self.names.get(usize::from(number.0))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
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

    /// Gives every number up to this one a name.
    pub(crate) fn cover(&mut self, number: GpuType) {
        for missing in self.names.len()..=usize::from(number.0) {
            self.names.push(GpuTypeName::numbered(u16::try_from(missing).unwrap_or(number.0)));
        }
    }
}
