use std::fmt;
use std::sync::Arc;

use crate::ModelError;

/// Longest name of a type.
const NAME_CHARS_MAX: usize = 64;
/// What backends without a name for their GPUs have, and agents without a scheduler.
const UNNAMED: &str = "gpu";

/// A type of GPU, numbered by whoever keeps the list of types; a cluster of one type has only the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GpuType(pub u16);

/// A type of GPU as everybody calls it: the same name on every wire, in every report and in every file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuTypeName(Arc<str>);

impl GpuTypeName {
    /// 1 to 64 characters that can be printed.
    pub fn new(name: &str) -> Result<Self, ModelError> {
        let length = name.chars().count();
        if length == 0 || length > NAME_CHARS_MAX || name.chars().any(char::is_control) || name.trim() != name {
            return Err(ModelError::GpuTypeName { name: name.chars().take(NAME_CHARS_MAX).collect() });
        }
        Ok(Self(name.into()))
    }

    /// The nearest name to what a machine says of itself.
    pub fn nearest(told: &str) -> Self {
        let printable: String =
            told.trim().chars().filter(|letter| !letter.is_control()).take(NAME_CHARS_MAX).collect();
        Self::new(printable.trim()).unwrap_or_default()
    }

    /// The name that stands for a number of version 0.1, whose reports and states numbered types.
    pub fn numbered(number: u16) -> Self {
        Self(format!("#{number}").into())
    }

    /// The number that this name stands for, if it was one.
    pub fn number(&self) -> Option<u16> {
        self.0.strip_prefix('#')?.parse().ok()
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for GpuTypeName {
    fn default() -> Self {
        Self(UNNAMED.into())
    }
}

impl fmt::Display for GpuTypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for GpuTypeName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// A name, or the number that version 0.1 wrote instead.
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for GpuTypeName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = GpuTypeName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "the name of a GPU type, 1 to {NAME_CHARS_MAX} characters")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<GpuTypeName, E> {
                GpuTypeName::new(name).map_err(E::custom)
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<GpuTypeName, E> {
                let number = u16::try_from(number);
                number.map(GpuTypeName::numbered).map_err(|_| E::custom("a GPU type numbered above 65535"))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_printed_in_a_line_are_refused() {
        assert_eq!(GpuTypeName::new("NVIDIA A100-SXM4-40GB").unwrap().as_str(), "NVIDIA A100-SXM4-40GB");
        assert_eq!(GpuTypeName::default().to_string(), "gpu");
        assert_eq!(GpuTypeName::nearest(" A\t100 \n").as_str(), "A100");
        assert_eq!(GpuTypeName::nearest("\n"), GpuTypeName::default());
        for name in ["", " a", "a\n", "a\u{7f}", &"x".repeat(65)] {
            assert!(GpuTypeName::new(name).is_err(), "{name:?}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_type_reads_and_writes_as_its_name_and_an_old_number_is_remembered_as_one() {
        let name: GpuTypeName = serde_json::from_str("\"A100\"").unwrap();
        assert_eq!((name.as_str(), name.number()), ("A100", None));
        assert_eq!(serde_json::to_string(&name).unwrap(), "\"A100\"");
        let numbered: GpuTypeName = serde_json::from_str("3").unwrap();
        assert_eq!(numbered.number(), Some(3));
        let written = serde_json::to_string(&numbered).unwrap();
        assert_eq!(serde_json::from_str::<GpuTypeName>(&written).unwrap(), numbered);
        assert!(serde_json::from_str::<GpuTypeName>("70000").is_err());
        assert!(serde_json::from_str::<GpuTypeName>("\"\"").is_err());
    }
}
