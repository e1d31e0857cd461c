use std::fmt;

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Phase {
    /// Waits for GPUs, or for other jobs.
    Queued,
    /// Its replicas are being started.
    Starting,
    /// Every replica trains.
    Running,
    /// It trains on while its group changes.
    Resizing,
    /// Set aside by its user.
    Paused,
    /// Trained to the end.
    Succeeded,
    /// Given up.
    Failed,
    /// Ended by its user.
    Cancelled,
    /// Said by a newer scheduler, in a word that this version does not know. No job of ours is ever in it, and nobody can
    /// ask for it.
    #[cfg_attr(feature = "serde", serde(skip_deserializing))]
    Unknown,
}

impl Phase {
    /// Every phase that a job can be in, in order.
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Starting,
        Self::Running,
        Self::Resizing,
        Self::Paused,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
    ];

    /// As it is written.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Resizing => "resizing",
            Self::Paused => "paused",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        }
    }

    /// Whether nothing will happen to the job any more.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_is_sent() {
        for phase in Phase::ALL {
            let word = format!("\"{phase}\"");
            assert_eq!(serde_json::to_string(&phase).unwrap(), word);
            assert_eq!(serde_json::from_str::<Phase>(&word).unwrap(), phase);
        }
    }

    #[test]
    fn nobody_can_ask_for_a_phase_that_is_not_known() {
        let refused = serde_json::from_str::<Phase>("\"unknown\"").unwrap_err().to_string();
        assert!(refused.starts_with("unknown variant `unknown`, expected one of `queued`, "), "{refused}");
    }
}
