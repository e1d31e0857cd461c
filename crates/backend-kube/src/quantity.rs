//! Amounts as Kubernetes writes them: `250m`, `16Gi`, `1e3`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

const SUFFIXES: [(&str, f64); 13] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
];

/// How much it is; `None` where that makes no sense.
pub fn amount(quantity: &Quantity) -> Option<f64> {
    let text = quantity.0.trim();
    let (number, factor) = SUFFIXES
        .iter()
        .find_map(|(suffix, factor)| text.strip_suffix(suffix).map(|number| (number, *factor)))
        .unwrap_or((text, 1.0));
    let number: f64 = number.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
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
            ("1E", None),
            ("-1", None),
            ("", None),
            ("lots", None),
        ] {
            assert_eq!(amount(&Quantity(text.to_owned())), expected, "{text}");
        }
    }
}
