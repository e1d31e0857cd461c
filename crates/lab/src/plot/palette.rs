//! One colour for each policy, the same in every picture.

use plotters::style::RGBColor;

use super::panel::{BLUE, FAINT, GREEN, INK, ORANGE, VERMILION};

/// Okabe and Ito's palette, then colours of Paul Tol's: both can be told apart by the colour-blind.
const POLICIES: [(&str, RGBColor); 13] = [
    ("pollux", BLUE),
    ("castor", VERMILION),
    ("sia", RGBColor(51, 34, 136)),
    ("gavel", RGBColor(170, 68, 153)),
    ("tiresias", GREEN),
    ("optimus-oracle", RGBColor(204, 121, 167)),
    ("optimus", RGBColor(136, 34, 85)),
    ("srtf", ORANGE),
    ("gandiva", RGBColor(86, 180, 233)),
    ("themis", RGBColor(153, 153, 51)),
    ("slaq", RGBColor(221, 204, 119)),
    ("antman", INK),
    ("fifo", FAINT),
];

/// Of rows by their policies: rows of one policy have shades of its colour, from dark to light.
pub(crate) fn row_colours(policies: &[&str]) -> Vec<RGBColor> {
    let shade = |(idx, policy): (usize, &&str)| {
        let same = |rows: &[&str]| rows.iter().filter(|other| *other == policy).count();
        let (before, all) = (same(&policies[..idx]), same(policies));
        let colour = POLICIES.iter().find(|known| known.0 == *policy).map_or(FAINT, |known| known.1);
        match all {
            1 => colour,
            2 => lighter(colour, 0.5 * before as f64),
            _ => {
                let place = before as f64 / (all - 1) as f64;
                if place < 0.5 { darker(colour, 0.6 - 1.2 * place) } else { lighter(colour, 1.3 * place - 0.65) }
            }
        }
    };
    policies.iter().enumerate().map(shade).collect()
}

/// Part of the way to white.
pub(crate) fn lighter(colour: RGBColor, share: f64) -> RGBColor {
    mixed(colour, 255.0, share)
}

fn darker(colour: RGBColor, share: f64) -> RGBColor {
    mixed(colour, 0.0, share)
}

fn mixed(RGBColor(red, green, blue): RGBColor, other: f64, share: f64) -> RGBColor {
    let mix = |part: u8| (f64::from(part) + (other - f64::from(part)) * share).round() as u8;
    RGBColor(mix(red), mix(green), mix(blue))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_keeps_its_colour_and_its_rows_differ_in_shade() {
        assert_eq!(row_colours(&["castor", "pollux"]), [VERMILION, BLUE]);
        let shades = row_colours(&["pollux", "castor", "pollux", "pollux", "pollux"]);
        assert_eq!(shades[1], VERMILION);
        for (idx, shade) in shades.iter().enumerate() {
            assert!(!shades[..idx].contains(shade), "{shades:?}");
        }
    }
}
