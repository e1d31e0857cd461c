//! Real trainer processes: alone, side by side, and driven through changes by a scheduler that is only pretended.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

mod scheduler;
mod processes;

mod alone;
mod together;
mod resizing;
mod losses;
