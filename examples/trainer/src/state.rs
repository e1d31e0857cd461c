use pollux_agent::AgentState;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::optimiser::{Optimiser, OptimiserKind};
use crate::share::Position;

const MAGIC: &[u8; 8] = b"plxtrain";
const VERSION: u32 = 1;
const DIGEST_BYTES: usize = 8;

/// What makes two trainings the same training: a state of one is of no use to another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recipe {
    pub(crate) seed: u64,
    pub(crate) samples: u32,
    pub(crate) label_noise: f64,
    pub(crate) width: usize,
    pub(crate) optimiser: OptimiserKind,
    pub(crate) batch_size: u32,
}

/// What every rank has a copy of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Replica {
    pub(crate) parameters: Vec<f32>,
    pub(crate) optimiser: Optimiser,
    pub(crate) position: Position,
}

/// What only rank 0 keeps up to date.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BrainState {
    pub(crate) agent: AgentState,
    /// Samples since the training began.
    pub(crate) samples: u64,
    /// Of the epoch so far.
    pub(crate) epoch_samples: u64,
    pub(crate) epoch_checksum: u64,
    pub(crate) epoch_loss: f64,
}

/// Why bytes are not a state of this training.
#[derive(Debug, Error)]
pub(crate) enum StateError {
    #[error("{0}")]
    Corrupt(&'static str),
    #[error("version {found}; expected {VERSION}")]
    Version { found: u32 },
    #[error("it belongs to another training ({found:?}); expected one with {expected:?}")]
    Recipe { found: Box<Recipe>, expected: Box<Recipe> },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header<B> {
    recipe: Recipe,
    position: Position,
    optimiser_steps: u32,
    brain: B,
}

/// One format for checkpoints and for newcomers: a header, the vectors, and a digest of it all.
pub(crate) fn encode(recipe: &Recipe, replica: &Replica, brain: &BrainState) -> Vec<u8> {
    let (vectors, optimiser_steps) = replica.optimiser.parts();
    let header = Header { recipe: *recipe, position: replica.position, optimiser_steps, brain };
    let header = serde_json::to_vec(&header).expect("plain data with string keys");
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((header.len() as u64).to_le_bytes());
    bytes.extend(header);
    for vector in std::iter::once(replica.parameters.as_slice()).chain(vectors) {
        bytes.extend(floats_to_bytes(vector));
    }
    bytes.extend(digest(&bytes).to_le_bytes());
    bytes
}

/// What [`encode`] was given.
pub(crate) fn decode(
    bytes: &[u8],
    expected: &Recipe,
    parameter_count: usize,
) -> Result<(Replica, BrainState), StateError> {
    let corrupt = StateError::Corrupt;
    let (content, stored) = bytes.split_last_chunk::<DIGEST_BYTES>().ok_or(corrupt("too short"))?;
    let rest = content.strip_prefix(MAGIC).ok_or(corrupt("not a state of this program"))?;
    if u64::from_le_bytes(*stored) != digest(content) {
        return Err(corrupt("its digest does not match its content"));
    }
    let (version, rest) = rest.split_first_chunk().ok_or(corrupt("too short"))?;
    let found = u32::from_le_bytes(*version);
    if found != VERSION {
        return Err(StateError::Version { found });
    }
    let (length, rest) = rest.split_first_chunk().ok_or(corrupt("too short"))?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (header, floats) = rest.split_at_checked(length).ok_or(corrupt("too short"))?;
    let header: Header<BrainState> =
        serde_json::from_slice(header).map_err(|_| corrupt("its header makes no sense"))?;
    if header.recipe != *expected {
        return Err(StateError::Recipe { found: Box::new(header.recipe), expected: Box::new(*expected) });
    }
    let floats = floats_from_bytes(floats).ok_or(corrupt("half a number at its end"))?;
    let mut vectors = floats.chunks(parameter_count).map(<[f32]>::to_vec);
    let parameters = vectors.next().ok_or(corrupt("no parameters"))?;
    let optimiser = Optimiser::from_parts(expected.optimiser, vectors.collect(), header.optimiser_steps);
    let optimiser = optimiser.ok_or(corrupt("another number of vectors than the optimiser has"))?;
    if floats.len() % parameter_count != 0 || header.position.cursor >= expected.samples {
        return Err(corrupt("vectors or position that cannot be"));
    }
    Ok((Replica { parameters, optimiser, position: header.position }, header.brain))
}

pub(crate) fn floats_to_bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

/// `None` if there is half a number at the end.
pub(crate) fn floats_from_bytes(bytes: &[u8]) -> Option<Vec<f32>> {
    let (chunks, rest) = bytes.as_chunks();
    rest.is_empty().then(|| chunks.iter().map(|&chunk| f32::from_le_bytes(chunk)).collect())
}

/// FNV-1a: no change of a single byte escapes it.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
