//! Bytes and time spans, as people write and read them.

/// Reads bytes: a whole number, with K, M, G or T for thousands, millions and so on, or Ki, Mi, Gi or Ti for powers of
/// 1024; a B behind it changes nothing.
pub(crate) fn bytes(text: &str) -> Result<u64, &'static str> {
    const ACCEPTED: &str = "accepted are bytes such as 50G, 512M or 64Gi";
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.strip_suffix(['B', 'b']).unwrap_or(unit);
    let factor = match unit.to_ascii_uppercase().as_str() {
        "" => 1,
        "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "KI" => 1 << 10,
        "MI" => 1 << 20,
        "GI" => 1 << 30,
        "TI" => 1 << 40,
        _ => return Err(ACCEPTED),
    };
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or(ACCEPTED)
}

/// Reads a time span: a whole number of s, m, h or d.
pub(crate) fn seconds(text: &str) -> Result<u64, &'static str> {
    const ACCEPTED: &str = "accepted are times such as 90s, 30m, 12h or 7d";
    let unit = text.chars().next_back().ok_or(ACCEPTED)?;
    let factor = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(ACCEPTED),
    };
    let number = text.strip_suffix(unit).unwrap_or_default();
    let number = number.bytes().all(|digit| digit.is_ascii_digit()).then(|| number.parse::<u64>().ok()).flatten();
    number.and_then(|number| number.checked_mul(factor)).ok_or(ACCEPTED)
}

/// Bytes in the largest unit of which there is one.
pub(crate) fn bytes_text(bytes: u64) -> String {
    let units = [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_people_write_them() {
        let read: Vec<_> = ["7", "50G", "50GB", "2Ki", "64GiB", "1t"].map(|text| bytes(text).unwrap()).to_vec();
        assert_eq!(read, [7, 50_000_000_000, 50_000_000_000, 2_048, 64 << 30, 1_000_000_000_000]);
        for text in ["", "G", "-1", "1.5G", "1X", "99999999T"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        let read: Vec<_> = ["0s", "90s", "30m", "12h", "7d"].map(|text| seconds(text).unwrap()).to_vec();
        assert_eq!(read, [0, 90, 1_800, 43_200, 604_800]);
        for text in ["", "7", "d", "-1d", "+1d", "1w", "99999999999999999999d"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_are_shown_in_their_largest_unit() {
        let shown = [0, 999, 1_000, 1_500_000, 52_340_000_000].map(bytes_text);
        assert_eq!(shown, ["0 B", "999 B", "1.0 kB", "1.5 MB", "52.3 GB"]);
    }
}
