//! Amounts as Kubernetes writes them: `250m`, `16Gi`, `1e3`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

const SUFFIXES: [(&str, f64); 15] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("Ei", 1_152_921_504_606_846_976.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("E", 1e18),
];

/// How much it is; `None` where that makes no sense.
pub(crate) fn amount(quantity: &Quantity) -> Option<f64> {
    let text = quantity.0.trim();
    let (number, factor) = SUFFIXES
        .iter()
        .find_map(|(suffix, factor)| text.strip_suffix(suffix).map(|number| (number, *factor)))
        .unwrap_or((text, 1.0));
    let number: f64 = number.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

/// So many times as much; what makes no sense stays as it is.
pub(crate) fn times(quantity: &Quantity, factor: usize) -> Quantity {
    let text = quantity.0.trim();
    let suffix = SUFFIXES.iter().map(|(suffix, _)| *suffix).find(|suffix| text.ends_with(suffix)).unwrap_or_default();
    let number = text.strip_suffix(suffix).unwrap_or(text);
    match (number.parse::<u64>(), amount(quantity), number.parse::<f64>()) {
        (Ok(whole), _, _) => Quantity(format!("{}{suffix}", whole.saturating_mul(factor as u64))),
        (Err(_), Some(_), Ok(number)) => Quantity(format!("{}{suffix}", decimals(number * factor as f64))),
        (Err(_), _, _) => quantity.clone(),
    }
}

/// A number as an amount.
pub(crate) fn number(number: f64) -> Quantity {
    Quantity(decimals(number))
}

/// As many decimals as Kubernetes keeps.
fn decimals(number: f64) -> String {
    format!("{number:.9}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_writes_them() {
        for (text, expected) in [
            ("4", Some(4.0)),
            ("250m", Some(0.25)),
            ("16Gi", Some(17_179_869_184.0)),
            ("2M", Some(2e6)),
            ("1e3", Some(1000.0)),
            ("1E", Some(1e18)),
            ("2Ei", Some(2_305_843_009_213_693_952.0)),
            ("1E3", Some(1000.0)),
            ("E", None),
            ("-1", None),
            ("", None),
            ("lots", None),
        ] {
            assert_eq!(amount(&Quantity(text.to_owned())), expected, "{text}");
        }
    }

    #[test]
    fn multiples_are_written_in_the_same_units() {
        for (text, factor, expected) in [
            ("250m", 4, "1000m"),
            ("16Gi", 4, "64Gi"),
            ("1.5Gi", 4, "6Gi"),
            ("0.1Gi", 3, "0.3Gi"),
            ("1e3", 4, "4000"),
            ("1E", 4, "4E"),
            ("1.5Ei", 3, "4.5Ei"),
            ("0.0", 4, "0"),
            ("lots", 4, "lots"),
        ] {
            assert_eq!(times(&Quantity(text.to_owned()), factor).0, expected, "{text} x {factor}");
        }
    }
}
