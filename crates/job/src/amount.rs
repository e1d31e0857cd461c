//! Durations and sizes as people write them.

use thiserror::Error;

/// A duration or a size that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{written:?}: expected {expected}")]
pub struct AmountError {
    written: String,
    expected: &'static str,
}

/// Whole numbers up to here are the same with a fraction.
const EXACT_MAX: f64 = (1_u64 << 53) as f64;
const DURATION: &str = "seconds, or a duration such as 90s, 30m, 8h, 1h30m or 2d";
const SIZE: &str = "bytes, or a size such as 512M, 16G or 16GiB";

/// Seconds of a duration such as `90`, `90s`, `30m`, `1h30m` or `2d`.
pub fn seconds(text: &str) -> Result<u64, AmountError> {
    let refused = || AmountError { written: text.to_owned(), expected: DURATION };
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    let mut total: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit()).filter(|&at| at > 0).ok_or_else(refused)?;
        let (number, tail) = rest.split_at(digits);
        let unit = match tail.as_bytes()[0] {
            b's' => 1,
            b'm' => 60,
            b'h' => 3_600,
            b'd' => 86_400,
            _ => return Err(refused()),
        };
        let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
        total = part.and_then(|part| total.checked_add(part)).ok_or_else(refused)?;
        rest = &tail[1..];
    }
    if text.is_empty() { Err(refused()) } else { Ok(total) }
}

/// Bytes of a size such as `16G`, `16GiB`, `512mb` or `1.5G`: units are powers of 1024.
pub fn bytes(text: &str) -> Result<u64, AmountError> {
    let refused = || AmountError { written: text.to_owned(), expected: SIZE };
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "ki" | "kib" => 10,
        "m" | "mb" | "mi" | "mib" => 20,
        "g" | "gb" | "gi" | "gib" => 30,
        "t" | "tb" | "ti" | "tib" => 40,
        _ => return Err(refused()),
    };
    if number.contains('.') && shift > 0 {
        let bytes = number.parse::<f64>().map_err(|_| refused())? * (1_u64 << shift) as f64;
        return if bytes < EXACT_MAX { Ok(bytes.round() as u64) } else { Err(refused()) };
    }
    let number: u64 = number.parse().map_err(|_| refused())?;
    number.checked_mul(1 << shift).ok_or_else(refused)
}

/// Bytes in the largest unit of which there is one; units are powers of 1024.
pub fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        Some((shift, name)) => format!("{:.1} {name}", bytes as f64 / (1_u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

/// How amounts are read from files and requests: as numbers, or as people write them.
#[cfg(feature = "serde")]
pub mod written {
    use serde::{Deserialize, Deserializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Amount {
        Number(u64),
        Text(String),
    }

    fn read<'de, D: Deserializer<'de>>(
        deserializer: D,
        parse: fn(&str) -> Result<u64, super::AmountError>,
        expected: &'static str,
    ) -> Result<Option<u64>, D::Error> {
        let amount = Option::<Amount>::deserialize(deserializer);
        match amount.map_err(|_| serde::de::Error::custom(format_args!("expected {expected}")))? {
            None => Ok(None),
            Some(Amount::Number(number)) => Ok(Some(number)),
            Some(Amount::Text(text)) => parse(&text).map(Some).map_err(serde::de::Error::custom),
        }
    }

    /// Seconds, or a duration such as `8h`; for `deserialize_with`.
    pub fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        read(deserializer, super::seconds, super::DURATION)
    }

    /// Bytes, or a size such as `16G`; for `deserialize_with`.
    pub fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        read(deserializer, super::bytes, super::SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_their_largest_unit() {
        let shown = [0, 1_023, 1_024, 1_572_864, 50 << 30].map(size);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "50.0 GiB"]);
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, expected) in [("0", 0), ("90", 90), ("90s", 90), ("30m", 1_800), ("1h30m", 5_400), ("2d", 172_800)] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for text in ["", "h", "1x", "-1", "1.5h", "1h30", "99999999999999999999", "999999999999999999d"] {
            let message = seconds(text).unwrap_err().to_string();
            assert_eq!(message, format!("{text:?}: expected {DURATION}"));
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, expected) in [
            ("0", 0),
            ("512", 512),
            ("2K", 2_048),
            ("3MiB", 3 << 20),
            ("16g", 16 << 30),
            ("1Ti", 1 << 40),
            ("1.5GB", 3 << 29),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "G", "1.5", "1.2.3G", "-1", "16 G", "16Q", "99999999999T", "9999999.5T"] {
            assert_eq!(bytes(text).unwrap_err().to_string(), format!("{text:?}: expected {SIZE}"));
        }
    }
}
