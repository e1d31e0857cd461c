use crate::antman::AntManMemory;
use crate::gandiva::GandivaMemory;
use crate::gavel::GavelMemory;
use crate::themis::ThemisMemory;
use crate::tiresias::TiresiasMemory;

/// What a policy remembers from plan to plan. It is kept with the state of a cluster, so that a policy goes on after a
/// restart as if there had been none.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct PolicyState {
    pub(crate) memory: Memory,
}

/// One arm for every policy that remembers anything.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub(crate) enum Memory {
    Tiresias(TiresiasMemory),
    Themis(ThemisMemory),
    Gandiva(GandivaMemory),
    Gavel(GavelMemory),
    #[cfg_attr(feature = "serde", serde(rename = "antman"))]
    AntMan(AntManMemory),
}

impl PolicyState {
    /// The format that these are written in: higher whenever any policy remembers something else, or otherwise.
    pub const VERSION: u32 = 1;

    /// The name of the policy that remembers this.
    pub const fn policy(&self) -> &'static str {
        match self.memory {
            Memory::Tiresias(_) => "tiresias",
            Memory::Themis(_) => "themis",
            Memory::Gandiva(_) => "gandiva",
            Memory::Gavel(_) => "gavel",
            Memory::AntMan(_) => "antman",
        }
    }

    pub(crate) const fn new(memory: Memory) -> Self {
        Self { memory }
    }
}
