/// How a job may be moved and resized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Flexibility {
    /// It may grow, shrink, move and wait.
    #[default]
    Elastic,
    /// Its size may be chosen, but once started it keeps its GPUs.
    NonPreemptible,
    /// It gets exactly what it asked for, all at once, and keeps it.
    Rigid,
}
