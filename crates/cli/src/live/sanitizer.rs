use std::io::{self, Write};

/// Lets text and colours through to a terminal, and nothing that could move its cursor, name its window or type for its
/// user: of escape sequences only colours, of control characters only those that end lines, go back to their start or
/// are tabs.
#[derive(Debug)]
pub(super) struct TerminalSanitizer<W> {
    out: W,
    state: State,
    /// The sequence that is being read.
    sequence: Vec<u8>,
}

/// Far above any colour.
const SEQUENCE_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    /// After the first byte of a character that may be a control.
    Lead,
    Escape,
    /// `ESC [`: parameters, then a letter.
    Control,
    /// `ESC ]` and its like: text up to a bell or `ESC \`.
    Message,
    /// In such a text, after an escape.
    MessageEscape,
    /// `ESC (` and its like: one more byte.
    OneMore,
}

impl<W: Write> TerminalSanitizer<W> {
    pub(super) const fn new(out: W) -> Self {
        Self { out, state: State::Text, sequence: Vec::new() }
    }

    /// Ends whatever colours the text has left on.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[0m")?;
        self.out.flush()
    }

    fn take(&mut self, byte: u8, clean: &mut Vec<u8>) {
        self.state = match self.state {
            State::Text => match byte {
                0x1b => State::Escape,
                0xc2 => State::Lead,
                b'\n' | b'\r' | b'\t' | 0x20..=0x7e | 0x80.. => {
                    clean.push(byte);
                    State::Text
                }
                0..0x20 | 0x7f => State::Text,
            },
            State::Lead => {
                // U+0080 to U+009F are controls too.
                self.state = State::Text;
                match byte {
                    0xa0.. => clean.extend([0xc2, byte]),
                    0x80..0xa0 => {}
                    // No character after all.
                    0..0x80 => self.take(byte, clean),
                }
                return;
            }
            State::Escape => match byte {
                b'[' => {
                    self.sequence.clear();
                    State::Control
                }
                b']' | b'P' | b'X' | b'^' | b'_' => State::Message,
                0x20..=0x2f => State::OneMore,
                0x1b => State::Escape,
                b'\n' => {
                    clean.push(byte);
                    State::Text
                }
                _ => State::Text,
            },
            State::Control => return self.take_parameter(byte, clean),
            State::Message => match byte {
                0x07 => State::Text,
                0x1b => State::MessageEscape,
                // Whoever forgets the end shall not silence the rest.
                b'\n' => {
                    clean.push(byte);
                    State::Text
                }
                _ => State::Message,
            },
            State::MessageEscape => match byte {
                b'\\' => State::Text,
                0x1b => State::MessageEscape,
                _ => State::Message,
            },
            State::OneMore => State::Text,
        };
    }

    fn take_parameter(&mut self, byte: u8, clean: &mut Vec<u8>) {
        self.state = match byte {
            b'0'..=b'9' | b';' | b':' if self.sequence.len() < SEQUENCE_MAX => {
                self.sequence.push(byte);
                State::Control
            }
            b'm' if self.sequence.len() < SEQUENCE_MAX => {
                clean.extend(b"\x1b[");
                clean.append(&mut self.sequence);
                clean.push(b'm');
                State::Text
            }
            0x40..=0x7e => State::Text,
            b'\n' => {
                clean.push(byte);
                State::Text
            }
            0x1b => State::Escape,
            // Something else than a colour: its end is awaited, and it can be none any more.
            _ => {
                self.sequence.resize(SEQUENCE_MAX, b'0');
                State::Control
            }
        };
    }
}

impl<W: Write> Write for TerminalSanitizer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut clean = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            self.take(byte, &mut clean);
        }
        self.out.write_all(&clean)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
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
        check(
            "\u{1b}[31mred\u{1b}[0m \u{1b}[1;38:2:1:2:3mrgb\u{1b}[m",
            "\u{1b}[31mred\u{1b}[0m \u{1b}[1;38:2:1:2:3mrgb\u{1b}[m",
        );
    }

    #[test]
    fn whatever_else_a_terminal_would_obey_is_dropped() {
        check("a\u{1b}[2J\u{1b}[1;1Hb\u{1b}[?25lc", "abc");
        check("\u{1b}]0;title\u{7}x\u{1b}]52;c;aGk=\u{1b}\\y\u{1b}Pq\u{1b}\\z", "xyz");
        check("\u{1b}(0a\u{1b}cb\u{8}\u{7}\0c\u{7f}", "abc");
        check("\u{9b}2Ja\u{85}b", "2Jab");
        assert_eq!(cleaned(&[b"\xc2\x07\xc2\x08a\xc2\x1b[2Jb\xc2\nc\xc2\x7f"]), b"ab\nc");
        check("\u{1b}[>4;2mx\u{1b}[?1my", "xy");
        check(&format!("\u{1b}[{}mx", "1;".repeat(64)), "x");
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
