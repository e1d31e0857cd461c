//! The future of a live cluster: its engine as it is, in a world whose jobs do what they have told of themselves.

mod outcome;
mod play;
mod question;
mod trainees;

#[cfg(test)]
mod tests;

pub use outcome::{Cut, Forecast, ForecastError, JobForecast, Unforeseen};
pub use play::forecast;
pub use question::{Change, LiveCluster, Newcomer, Training};
