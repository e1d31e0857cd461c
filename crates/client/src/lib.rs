//! The REST interface of a Pollux server as Rust calls, which wait for their answers.
//!
//! ```text
//!  Connection::find ──> Client ──── requests of pollux-api ───> server
//!   (address, token)      │ <──── responses of pollux-api ─────
//!                         └─────> EventStream, LogStream: read on for as long as the server speaks
//! ```
//!
//! Every failure is a [`ClientError`], whose message is one line that ends with the next step. Nothing is tried again,
//! decided or printed here. [`Client`] is the main type.

mod error;
mod connection;
mod unix_socket;
mod client;
mod messages;
mod event_stream;
mod log_stream;

pub use client::{Client, EventQuery, JobAction, JobQuery, LogQuery, NodeAction};
pub use connection::{Connection, socket_in};
pub use error::ClientError;
pub use event_stream::EventStream;
pub use log_stream::LogStream;
