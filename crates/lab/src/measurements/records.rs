use std::io::{self, BufRead, Read};
use std::ops::Range;

use thiserror::Error;

/// Longer lines are not rows of measurements; reading on would only fill the memory.
const LINE_MAX: u64 = 65_536;

/// Rows of comma-separated fields, one a line; blank lines are skipped.
///
/// Quoted fields end on their own line. That keeps line numbers exact and memory bounded whatever the input, which
/// the csv crate does not: it counts lines short after CRLF and blank lines, and an open quote swallows the file.
pub(super) struct Records<R> {
    reader: R,
    line: Vec<u8>,
    line_number: u64,
    fields: Vec<Range<usize>>,
}

/// Why a line has no fields.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The file cannot be read on.
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    /// Nothing that is a row is so long.
    #[error("the line is longer than {LINE_MAX} bytes; expected shorter ones")]
    LineTooLong,
    /// A quote that does not close.
    #[error("a quoted field does not close on its line; expected one followed by a comma or the line's end")]
    OpenQuote,
}

impl<R: BufRead> Records<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, line: Vec::new(), line_number: 0, fields: Vec::new() }
    }

    /// Goes to the next line that is not blank; false at the end.
    pub(super) fn advance(&mut self) -> Result<bool, RecordError> {
        loop {
            self.line.clear();
            let limited = &mut self.reader.by_ref().take(LINE_MAX + 1);
            if limited.read_until(b'\n', &mut self.line)? == 0 {
                return Ok(false);
            }
            self.line_number += 1;
            if self.line.len() as u64 > LINE_MAX {
                return Err(RecordError::LineTooLong);
            }
            if self.line_number == 1 && self.line.starts_with(b"\xef\xbb\xbf") {
                self.line.drain(..3);
            }
            let blank = self.line.trim_ascii().is_empty();
            self.line.truncate(self.line.trim_ascii_end().len());
            if !blank {
                split(&self.line, &mut self.fields)?;
                return Ok(true);
            }
        }
    }

    /// The current line, counted from 1.
    pub(super) fn line_number(&self) -> u64 {
        self.line_number
    }

    /// The text of the current line.
    pub(super) fn line(&self) -> &[u8] {
        &self.line
    }

    /// How many fields the current line has.
    pub(super) fn len(&self) -> usize {
        self.fields.len()
    }

    /// A field of the current line, without quotes and surrounding spaces.
    pub(super) fn field(&self, idx: usize) -> &[u8] {
        self.line[self.fields[idx].clone()].trim_ascii()
    }
}

fn split(line: &[u8], fields: &mut Vec<Range<usize>>) -> Result<(), RecordError> {
    fields.clear();
    let mut start = 0;
    loop {
        let rest = &line[start..];
        let (field, end) = if rest.first() == Some(&b'"') {
            let close = start + closing_quote(rest).ok_or(RecordError::OpenQuote)?;
            (start + 1..close, close + 1)
        } else {
            let end = start + rest.iter().position(|&byte| byte == b',').unwrap_or(rest.len());
            (start..end, end)
        };
        fields.push(field);
        match line.get(end) {
            None => return Ok(()),
            Some(b',') => start = end + 1,
            Some(_) => return Err(RecordError::OpenQuote),
        }
    }
}

/// Index of the quote that closes the one at index 0; a doubled quote stands for itself.
fn closing_quote(field: &[u8]) -> Option<usize> {
    let mut idx = 1;
    while idx < field.len() {
        match (field[idx], field.get(idx + 1)) {
            (b'"', Some(b'"')) => idx += 2,
            (b'"', _) => return Some(idx),
            (_, _) => idx += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Vec<(u64, Vec<String>)> {
        let mut records = Records::new(text.as_bytes());
        let mut all = Vec::new();
        while records.advance().unwrap() {
            let row = (0..records.len()).map(|idx| String::from_utf8(records.field(idx).to_vec()).unwrap());
            all.push((records.line_number(), row.collect()));
        }
        all
    }

    fn row(line: u64, fields: &[&str]) -> (u64, Vec<String>) {
        (line, fields.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn line_numbers_count_blank_lines_and_carriage_returns_once() {
        let read = fields("\u{feff}a,b\r\n\r\n \r\n1,2\r\n3,4");
        assert_eq!(read, [row(1, &["a", "b"]), row(4, &["1", "2"]), row(5, &["3", "4"])]);
    }

    #[test]
    fn quotes_hide_commas_and_spaces_do_not_count() {
        assert_eq!(fields("\"a,b\", c ,\"d\"\"e\",\n"), [row(1, &["a,b", "c", "d\"\"e", ""])]);
    }

    #[test]
    fn an_open_quote_is_refused_on_its_own_line() {
        for text in ["\"a", "\"a\nb\"", "\"a\"b,c", "x,\"\"\""] {
            assert!(matches!(Records::new(text.as_bytes()).advance(), Err(RecordError::OpenQuote)), "{text}");
        }
    }

    #[test]
    fn an_endless_line_is_refused_before_it_fills_the_memory() {
        let mut records = Records::new(io::BufReader::new(io::repeat(0)));
        assert!(matches!(records.advance(), Err(RecordError::LineTooLong)));
    }
}
