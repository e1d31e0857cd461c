//! What jobs have saved, where machines do not share a disk: who has the newest, and how others get it.
//!
//! ```text
//!  agent that trained ── Saved ──> Handover ── fetch, as soon as it can ──> the scheduler's folder
//!                                     │ a start waits until that is the newest
//!  agent that starts <── Start ───────┘   ── fetch ──> its own folder, then the program
//! ```
//!
//! Whoever wants files asks for them, piece by piece, over the one connection: no more than a piece is in memory, and nobody
//! sends what is not waited for. They are gathered beside the job's folder and take its place at once when every file has the
//! digest that the other side says, so that there is never half of anything. What was gathered before a cut is not asked for
//! again. The newest is what was written last.

pub(crate) mod fetch;
pub(crate) mod files;
pub(crate) mod line;
