/// Bytes between marks: a kubelet keeps far more.
pub const MARK_EVERY: u64 = 64 * 1024;

const BEFORE: &str = "[pollux: ";
const AFTER: &str = " bytes until here]\n";

/// The line that says how much was written before it.
pub fn mark(position: u64) -> String {
    format!("{BEFORE}{position}{AFTER}")
}

/// What a line says of how much was written before it, if it is such a line.
pub fn position_of(line: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(line).ok()?;
    text.strip_prefix(BEFORE)?.strip_suffix(AFTER)?.parse().ok()
}
