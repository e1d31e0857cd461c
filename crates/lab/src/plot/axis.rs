//! Where axes have their ticks and how numbers on them read.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// An axis with ticks and labels of our choice; places on it may be logarithms.
pub(crate) struct Axis {
    /// From one end to the other.
    pub(crate) range: Range<f64>,
    /// Places of the ticks.
    pub(crate) ticks: Vec<f64>,
    /// What to write at a place.
    pub(crate) label: fn(f64) -> String,
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (f64::from(limit.1 - limit.0) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        (self.label)(*value)
    }
}

/// Gives an axis about this many ticks.
const TICKS: f64 = 6.0;

/// 1, 2 and 5 times powers of ten between two positive bounds; only the powers where there are many.
pub(crate) fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = (high / low).log10();
    let steps: &[f64] = if decades > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let exponents = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let ticks = exponents.flat_map(|exponent| steps.iter().map(move |step| step * 10f64.powi(exponent)));
    ticks.filter(|tick| (low..=high).contains(tick)).collect()
}

/// Round numbers from 0 to a bound.
pub(crate) fn linear_ticks(high: f64) -> Vec<f64> {
    let rough = high / TICKS;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0].map(|step| step * power).into_iter().find(|step| *step >= rough).unwrap_or(10.0 * power);
    (0..).map(|idx| f64::from(idx) * step).take_while(|tick| *tick <= high).collect()
}

/// Counts of GPUs from 1 to a bound, a power of two apart.
pub(crate) fn gpu_ticks(gpus: u32) -> Vec<f64> {
    let step = (f64::from(gpus) / 9.0).max(1.0).log2().ceil().exp2();
    (1..).map(|idx| f64::from(idx) * step).take_while(|tick| *tick <= f64::from(gpus)).collect()
}

/// Doublings of one GPU up to a bound, few enough that their labels stay apart.
pub(crate) fn doubling_ticks(doublings: f64) -> Vec<f64> {
    let step = (doublings / 10.0).ceil().max(1.0);
    (0..).map(|idx| f64::from(idx) * step).take_while(|tick| *tick <= doublings).collect()
}

/// A count in full: those of GPUs have five digits at most.
pub(crate) fn whole(count: f64) -> String {
    format!("{count:.0}")
}

/// A number in few characters: 0.05, 1.5, 200, 20k, 3M.
pub(crate) fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    // Ticks are round; what lies behind the sixth digit is noise.
    let rounded = format!("{scaled:.6}");
    format!("{}{suffix}", rounded.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithmic_ticks_are_round_and_few() {
        assert_eq!(log_ticks(8.0, 120.0), [10.0, 20.0, 50.0, 100.0]);
        assert_eq!(log_ticks(0.5, 5e4), [1.0, 10.0, 100.0, 1000.0, 10_000.0]);
    }

    #[test]
    fn linear_ticks_start_at_zero() {
        assert_eq!(linear_ticks(105.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(linear_ticks(0.9), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8]);
    }

    #[test]
    fn gpu_ticks_are_a_power_of_two_apart() {
        assert_eq!(gpu_ticks(1), [1.0]);
        assert_eq!(gpu_ticks(16), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0]);
        assert_eq!(gpu_ticks(100), [16.0, 32.0, 48.0, 64.0, 80.0, 96.0]);
    }

    #[test]
    fn doublings_are_thinned_where_there_are_many() {
        assert_eq!(doubling_ticks(0.0), [0.0]);
        assert_eq!(doubling_ticks(4.5), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(doubling_ticks(16.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0]);
    }

    #[test]
    fn counts_of_gpus_read_in_full() {
        assert_eq!([1.0, 12.0, 8192.0, 65_536.0].map(whole), ["1", "12", "8192", "65536"]);
    }

    #[test]
    fn numbers_read_short() {
        assert_eq!(
            [0.6000000000000001, 200.0, 5000.0, 20_000.0, 1.5e6].map(short),
            ["0.6", "200", "5k", "20k", "1.5M"]
        );
    }
}
