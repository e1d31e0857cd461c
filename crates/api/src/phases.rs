//! Phases in the words of a newer scheduler: a reader who does not know one still shows the rest.

use std::collections::BTreeMap;

use pollux_job::Phase;
use serde::{Deserialize, Deserializer};

fn known(word: &str) -> Phase {
    Phase::ALL.into_iter().find(|phase| phase.word() == word).unwrap_or(Phase::Unknown)
}

/// A phase, or that it is not known.
pub(crate) fn one<'de, D: Deserializer<'de>>(parser: D) -> Result<Phase, D::Error> {
    String::deserialize(parser).map(|word| known(&word))
}

/// The same where there may be none.
pub(crate) fn any<'de, D: Deserializer<'de>>(parser: D) -> Result<Option<Phase>, D::Error> {
    Option::<String>::deserialize(parser).map(|word| word.as_deref().map(known))
}

/// Numbers by phase; those of all unknown ones together.
pub(crate) fn counts<'de, D: Deserializer<'de>>(parser: D) -> Result<BTreeMap<Phase, u64>, D::Error> {
    let mut counts = BTreeMap::new();
    for (word, count) in BTreeMap::<String, u64>::deserialize(parser)? {
        *counts.entry(known(&word)).or_default() += count;
    }
    Ok(counts)
}
