use std::io::{self, Write};

use anstyle_parse::{DefaultCharAccumulator, Params, Parser, Perform};

/// Lets text and colours through to a terminal, and nothing that could move its cursor, name its window or type for its
/// user: of escape sequences only colours, of control characters only those that end lines, go back to their start or
/// are tabs.
#[derive(Debug)]
pub(super) struct TerminalSanitizer<W> {
    out: W,
    parser: Parser<DefaultCharAccumulator>,
}

/// What came through and is not written yet.
#[derive(Debug, Default)]
struct Clean(Vec<u8>);

impl<W: Write> TerminalSanitizer<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, parser: Parser::default() }
    }

    /// Ends whatever colours the text has left on.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[0m")?;
        self.out.flush()
    }
}

impl<W: Write> Write for TerminalSanitizer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut clean = Clean(Vec::with_capacity(bytes.len()));
        for &byte in bytes {
            if byte == b'\n' {
                // Whoever forgets the end of a sequence shall not silence the next lines.
                self.parser = Parser::default();
                clean.0.push(byte);
            } else {
                self.parser.advance(&mut clean, byte);
            }
        }
        self.out.write_all(&clean.0)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Whatever is not taken up here is dropped: titles, clipboards, moves of the cursor, questions to the terminal.
impl Perform for Clean {
    fn print(&mut self, letter: char) {
        // U+007F to U+009F are controls too, of which some begin sequences.
        if !letter.is_control() {
            self.0.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }

    fn execute(&mut self, byte: u8) {
        if matches!(byte, b'\r' | b'\t') {
            self.0.push(byte);
        }
    }

    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], ignore: bool, action: u8) {
        if action != b'm' || ignore || !intermediates.is_empty() {
            return;
        }
        let numbers = |part: &[u16]| part.iter().map(ToString::to_string).collect::<Vec<_>>().join(":");
        let colours: Vec<String> = params.iter().map(numbers).collect();
        self.0.extend_from_slice(format!("\x1b[{}m", colours.join(";")).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cleaned(parts: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut sanitizer = TerminalSanitizer::new(&mut out);
        for part in parts {
            sanitizer.write_all(part).unwrap();
        }
        out
    }

    fn check(text: &str, expected: &str) {
        assert_eq!(String::from_utf8(cleaned(&[text.as_bytes()])).unwrap(), expected, "{text:?}");
    }

    #[test]
    fn text_and_colours_stay() {
        check("loss 0.5\r\n\tµ → \u{a0}é\n", "loss 0.5\r\n\tµ → \u{a0}é\n");
        check("日本 🚀\n", "日本 🚀\n");
        check(
            "\u{1b}[31mred\u{1b}[0m \u{1b}[1;38:2:1:2:3mrgb\u{1b}[m",
            "\u{1b}[31mred\u{1b}[0m \u{1b}[1;38:2:1:2:3mrgb\u{1b}[0m",
        );
    }

    #[test]
    fn whatever_else_a_terminal_would_obey_is_dropped() {
        check("a\u{1b}[2J\u{1b}[1;1Hb\u{1b}[?25lc", "abc");
        check("\u{1b}]0;title\u{7}x\u{1b}]52;c;aGk=\u{1b}\\y\u{1b}Pq\u{1b}\\z", "xyz");
        check("\u{1b}(0a\u{1b}cb\u{8}\u{7}\0c\u{7f}", "abc");
        check("\u{9b}2Ja\u{85}b", "2Jab");
        check("\u{1b}[>4;2mx\u{1b}[?1my", "xy");
        check(&format!("\u{1b}[{}mx", "1;".repeat(64)), "x");
    }

    #[test]
    fn a_character_that_is_cut_off_hides_nothing_behind_it() {
        let replaced = "\u{fffd}\u{fffd}a\u{fffd}[2Jb\nc\u{fffd}".as_bytes();
        assert_eq!(cleaned(&[b"\xc2\x07\xc2\x08a\xc2\x1b[2Jb\xc2\nc\xc2\x7f"]), replaced);
    }

    #[test]
    fn a_sequence_without_an_end_ends_with_its_line() {
        check("\u{1b}]0;for ever\nnext", "\nnext");
        check("\u{1b}[12\nnext", "\nnext");
    }

    /// Mostly those that mean something.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let telling = prop::sample::select(b"\x1b\xc2\x9b[]P(m;12\x07\x08\\\n\r\t\x7fa".to_vec());
        prop::collection::vec(prop_oneof![4 => telling, 1 => any::<u8>()], 0..100)
    }

    proptest! {
        #[test]
        fn only_colours_come_through_however_the_bytes_are_cut(text in bytes(), cut in any::<prop::sample::Index>()) {
            let at = cut.index(text.len() + 1);
            let out = cleaned(&[&text[..at], &text[at..]]);
            prop_assert_eq!(&out, &cleaned(&[&text]));
            let is_control = |byte: &u8| *byte == 0x7f || (*byte < 0x20 && !b"\n\r\t\x1b".contains(byte));
            prop_assert!(!out.iter().any(is_control), "{:?}", out);
            for (idx, _) in out.iter().enumerate().filter(|&(_, &byte)| byte == 0x1b) {
                let rest = &out[idx + 1..];
                let letter = rest.iter().skip(1).find(|byte| !matches!(byte, b'0'..=b'9' | b';' | b':'));
                prop_assert!(rest.first() == Some(&b'[') && letter == Some(&b'm'));
            }
        }
    }
}
