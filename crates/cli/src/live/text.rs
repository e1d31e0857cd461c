//! Phases, times and amounts as people read them.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::builder::styling::{AnsiColor, Style};
use pollux_job::Phase;

/// What is not known.
pub(super) const UNKNOWN: &str = "-";

/// Green trains, yellow waits, red has failed, dim is over.
pub(super) const fn phase_style(phase: Phase) -> Style {
    match phase {
        Phase::Running | Phase::Resizing => AnsiColor::Green.on_default(),
        Phase::Queued | Phase::Starting | Phase::Paused => AnsiColor::Yellow.on_default(),
        Phase::Failed => AnsiColor::Red.on_default(),
        Phase::Succeeded | Phase::Cancelled => Style::new().dimmed(),
        Phase::Unknown => Style::new(),
    }
}

/// Whether nothing will happen to the job any more.
pub(super) const fn has_ended(phase: Phase) -> bool {
    matches!(phase, Phase::Succeeded | Phase::Failed | Phase::Cancelled)
}

/// Reads a phase.
pub(super) fn phase(text: &str) -> Result<Phase, String> {
    let words = || Phase::ALL.map(Phase::word).join(", ");
    Phase::ALL.into_iter().find(|phase| phase.word() == text).ok_or_else(|| format!("expected {}", words()))
}

/// Milliseconds since 1970, by the clock of this machine.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Seconds from one moment to another; none if it goes back.
pub(super) const fn seconds_between(from_ms: u64, to_ms: u64) -> f64 {
    to_ms.saturating_sub(from_ms) as f64 / 1_000.0
}

/// A time span in its two largest units.
pub(super) fn span(seconds: f64) -> String {
    if !(seconds.is_finite() && seconds >= 0.0) {
        return UNKNOWN.to_owned();
    }
    let whole = seconds.round() as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60);
    match whole {
        0..60 => format!("{whole}s"),
        60..3_600 => format!("{minutes}m {:02}s", whole % 60),
        3_600..86_400 => format!("{hours}h {minutes:02}m"),
        _ => format!("{days}d {hours:02}h"),
    }
}

/// A moment in UTC.
pub(super) fn moment(at_ms: u64) -> String {
    let (days, seconds) = (at_ms / 86_400_000, at_ms / 1_000 % 86_400);
    let (year, month, day) = date(days);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// The Gregorian date so many days after the first of 1970. Years are taken to begin in March, so that leap days come
/// last.
const fn date(days: u64) -> (u64, u64, u64) {
    const FOUR_CENTURIES: u64 = 146_097;
    // From the first of March of year 0.
    let days = days + 719_468;
    let (era, day) = (days / FOUR_CENTURIES, days % FOUR_CENTURIES);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}

/// An amount with about three digits.
pub(super) fn amount(value: f64) -> String {
    // The sum of nothing is -0.
    let value = value + 0.0;
    let digits = match value.abs() {
        0.0..9.995 => 2,
        9.995..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// A share of one.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// What is known, as text.
pub(super) fn known<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), text)
}

/// "1 GPU", "2 GPUs".
pub(crate) fn count(number: u32, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// A share of one as a bar of so many cells, to an eighth of a cell.
pub(super) fn bar(share: f64, cells: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    // NaN becomes 0.
    let eighths = (share.clamp(0.0, 1.0) * cells as f64 * 8.0).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// Numbers of jobs, in a row.
pub(super) fn ids(jobs: &[u64]) -> String {
    jobs.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_show_their_two_largest_units() {
        let spans = [0.4, 59.4, 59.6, 61.0, 3_600.0, 90_061.0, f64::NAN, -1.0].map(span);
        assert_eq!(spans, ["0s", "59s", "1m 00s", "1m 01s", "1h 00m", "1d 01h", "-", "-"]);
    }

    #[test]
    fn a_part_of_a_span_is_never_shown_as_longer_than_the_whole() {
        let (whole, part) = (seconds_between(1_000, 3_900), 2.8);
        assert_eq!([whole, part].map(span), ["3s", "3s"]);
        assert_eq!(span(seconds_between(2_000, 1_000)), "0s");
    }

    #[test]
    fn moments_are_dates_of_the_calendar() {
        assert_eq!(moment(0), "1970-01-01 00:00:00");
        assert_eq!(moment(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(moment(951_868_799_999), "2000-02-29 23:59:59");
        assert_eq!(moment(4_107_542_400_000), "2100-03-01 00:00:00");
        assert_eq!(moment(1_794_796_878_000), "2026-11-16 02:41:18");
    }

    #[test]
    fn amounts_have_about_three_digits() {
        let amounts = [-0.0, 0.126, 9.994, 9.996, 12.34, 99.96, 12_345.6].map(amount);
        assert_eq!(amounts, ["0.00", "0.13", "9.99", "10.0", "12.3", "100", "12346"]);
    }

    #[test]
    fn bars_are_as_long_as_their_share() {
        assert_eq!([0.0, 0.5, 1.0, 0.3125, 2.0, f64::NAN].map(|share| bar(share, 2)), ["", "█", "██", "▋", "██", ""]);
    }

    #[test]
    fn every_phase_is_read_as_it_is_written() {
        for it in Phase::ALL {
            assert_eq!(phase(it.word()), Ok(it));
            assert_eq!(serde_json::to_value(it).unwrap(), it.word());
        }
        assert!(phase("done").unwrap_err().starts_with("expected queued, starting, "));
    }
}
