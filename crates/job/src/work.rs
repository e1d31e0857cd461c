/// How long a job is to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", try_from = "EitherLength"))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Work {
    /// Times through its data.
    Epochs(u32),
    /// Steps at the baseline batch.
    BaselineSteps(u64),
}

/// As it is read: an enum would be a tag in YAML, and two of its variants no JSON.
#[cfg(feature = "serde")]
#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct EitherLength {
    epochs: Option<u32>,
    baseline_steps: Option<u64>,
}

#[cfg(feature = "serde")]
impl TryFrom<EitherLength> for Work {
    type Error = &'static str;

    fn try_from(length: EitherLength) -> Result<Self, Self::Error> {
        match (length.epochs, length.baseline_steps) {
            (Some(epochs), None) => Ok(Self::Epochs(epochs)),
            (None, Some(steps)) => Ok(Self::BaselineSteps(steps)),
            (_, _) => Err("work: expected either epochs or baseline_steps"),
        }
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;

    #[test]
    fn work_reads_as_documented() {
        assert_eq!(serde_json::from_str::<Work>(r#"{"epochs":5}"#).unwrap(), Work::Epochs(5));
        assert_eq!(serde_json::from_str::<Work>(r#"{"baseline_steps":9}"#).unwrap(), Work::BaselineSteps(9));
        for neither in ["{}", r#"{"epochs":1,"baseline_steps":1}"#, r#"{"years":1}"#] {
            assert!(serde_json::from_str::<Work>(neither).is_err(), "{neither}");
        }
    }
}
