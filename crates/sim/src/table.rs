//! CSV files with a header, read into typed values or refused with the place of the mistake.

use std::fs;
use std::path::Path;
use std::str::FromStr;

use thiserror::Error;

/// Longer values are cut in messages: one line has to stay one line.
const SHOWN_CHARS: usize = 40;

/// What is wrong with a table, and where.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TableError {
    /// The file could not be read at all.
    #[error("{file}: {source}")]
    Read {
        /// Path as given.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Bytes that are no CSV.
    #[error("{file}:{line}: {reason}; expected CSV with a header")]
    Csv {
        /// Path as given.
        file: String,
        /// Counted from one.
        line: u64,
        /// What the reader stumbled over.
        reason: String,
    },
    /// The header lacks a column.
    #[error("{file}:1: no column {column}; expected tables with the columns {}", accepted.join(","))]
    Column {
        /// Path as given.
        file: String,
        /// The missing one.
        column: &'static str,
        /// All that are needed.
        accepted: &'static [&'static str],
    },
    /// A value that is not what its column holds.
    #[error("{file}:{line}: {column} {value}; expected {accepted}")]
    Value {
        /// Path as given.
        file: String,
        /// Counted from one.
        line: u64,
        /// Which column.
        column: &'static str,
        /// The value read, quoted, cut if long.
        value: String,
        /// What would be accepted.
        accepted: String,
    },
    /// A header without rows.
    #[error("{file}: no rows below the header; expected one row or more")]
    Empty {
        /// Path as given.
        file: String,
    },
}

/// A table in memory, with its columns in the order they were asked for.
pub(crate) struct Table {
    file: String,
    columns: &'static [&'static str],
    positions: Vec<usize>,
    header: csv::ByteRecord,
    rows: Vec<(u64, csv::ByteRecord)>,
}

/// One row of a [`Table`].
#[derive(Clone, Copy)]
pub(crate) struct Row<'table> {
    table: &'table Table,
    line: u64,
    record: &'table csv::ByteRecord,
}

/// A value of a column that a table may have.
pub(crate) struct Cell<'table> {
    row: Row<'table>,
    column: &'static str,
    bytes: &'table [u8],
}

impl Cell<'_> {
    /// The value, if it can be read.
    pub(crate) fn parse<T>(&self, accepted: &str, read: impl Fn(&str) -> Option<T>) -> Result<T, TableError> {
        let value = str::from_utf8(self.bytes).ok().and_then(|text| read(text.trim()));
        value.ok_or_else(|| self.row.refuse_value(self.column, self.bytes, accepted))
    }
}

impl Table {
    pub(crate) fn read(path: &Path, columns: &'static [&'static str]) -> Result<Self, TableError> {
        let file = path.display().to_string();
        match fs::read(path) {
            Ok(bytes) => Self::parse(&file, &bytes, columns),
            Err(source) => Err(TableError::Read { file, source }),
        }
    }

    /// Columns may come in any order and among others; `file` is only for messages.
    pub(crate) fn parse(file: &str, bytes: &[u8], columns: &'static [&'static str]) -> Result<Self, TableError> {
        let broken = |error: &csv::Error| TableError::Csv {
            file: file.to_owned(),
            line: error.position().map_or(1, csv::Position::line),
            reason: reason(error),
        };
        let mut reader = csv::ReaderBuilder::new().from_reader(bytes);
        let header = reader.byte_headers().map_err(|error| broken(&error))?.clone();
        let mut positions = Vec::with_capacity(columns.len());
        for &column in columns {
            let position = header.iter().position(|name| name == column.as_bytes());
            let missing = || TableError::Column { file: file.to_owned(), column, accepted: columns };
            positions.push(position.ok_or_else(missing)?);
        }
        let numbered = |record: csv::ByteRecord| (line_of(&record, bytes), record);
        let rows = reader.byte_records().map(|record| record.map(numbered));
        let rows = rows.collect::<Result<Vec<_>, _>>().map_err(|error| broken(&error))?;
        if rows.is_empty() {
            return Err(TableError::Empty { file: file.to_owned() });
        }
        Ok(Self { file: file.to_owned(), columns, positions, header, rows })
    }

    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|(line, record)| Row { table: self, line: *line, record })
    }
}

impl<'table> Row<'table> {
    /// A value of a column that was not asked for; nothing if there is no such column, or it is empty here.
    pub(crate) fn optional(&self, column: &'static str) -> Option<Cell<'table>> {
        let position = self.table.header.iter().position(|name| name == column.as_bytes())?;
        let bytes = self.record.get(position).filter(|bytes| !bytes.trim_ascii().is_empty())?;
        Some(Cell { row: *self, column, bytes })
    }
}

impl Row<'_> {
    /// The value of the `column`-th column asked for, if it parses and `accept` holds.
    pub(crate) fn get<T: FromStr>(
        &self,
        column: usize,
        accepted: &str,
        accept: impl Fn(&T) -> bool,
    ) -> Result<T, TableError> {
        let text = str::from_utf8(self.bytes(column)).ok();
        let value = text.and_then(|text| text.trim().parse().ok());
        value.filter(accept).ok_or_else(|| self.refuse(column, accepted))
    }

    /// The value as text; bytes that are not UTF-8 are refused.
    pub(crate) fn text(&self, column: usize) -> Result<&str, TableError> {
        str::from_utf8(self.bytes(column)).map(str::trim).map_err(|_| self.refuse(column, "UTF-8 text"))
    }

    /// The error that says what this column of this row should have held.
    pub(crate) fn refuse(&self, column: usize, accepted: &str) -> TableError {
        self.refuse_value(self.table.columns[column], self.bytes(column), accepted)
    }

    fn refuse_value(&self, column: &'static str, bytes: &[u8], accepted: &str) -> TableError {
        TableError::Value {
            file: self.table.file.clone(),
            line: self.line,
            column,
            value: shown(&String::from_utf8_lossy(bytes)),
            accepted: accepted.to_owned(),
        }
    }

    fn bytes(&self, column: usize) -> &[u8] {
        self.record.get(self.table.positions[column]).unwrap_or_default()
    }
}

/// The reader counts blank lines before a record as a part of it; people do not.
fn line_of(record: &csv::ByteRecord, bytes: &[u8]) -> u64 {
    let Some(position) = record.position() else { return 0 };
    let rest = usize::try_from(position.byte()).ok().and_then(|start| bytes.get(start..)).unwrap_or_default();
    let blank = rest.iter().take_while(|byte| b"\r\n".contains(byte));
    position.line() + blank.filter(|&&byte| byte == b'\n').count() as u64
}

/// A finite number of the sign that measurements have.
pub(crate) fn is_measure(value: &f64) -> bool {
    value.is_finite() && *value >= 0.0
}

/// Quoted and escaped, so that no value breaks the line it is shown in.
pub(crate) fn shown(value: &str) -> String {
    let mut head: String = value.chars().take(SHOWN_CHARS).collect();
    if head.len() < value.len() {
        head.push('…');
    }
    format!("{head:?}")
}

fn reason(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} values under {expected_len} columns")
        }
        // Not exhaustive, and nothing else can come from bytes in memory.
        _ => error.to_string().replace('\n', " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[&str] = &["name", "time"];

    fn error(bytes: &[u8]) -> String {
        match Table::parse("jobs.csv", bytes, COLUMNS) {
            Err(error) => error.to_string(),
            Ok(table) => {
                let values = table.rows().map(|row| row.get::<u32>(1, "whole seconds", |_| true));
                values.filter_map(Result::err).map(|error| error.to_string()).collect::<Vec<_>>().join("\n")
            }
        }
    }

    #[test]
    fn every_mistake_is_one_line_that_names_its_place() {
        assert_eq!(error(b""), "jobs.csv:1: no column name; expected tables with the columns name,time");
        assert_eq!(error(b"time,name\n"), "jobs.csv: no rows below the header; expected one row or more");
        assert_eq!(error(b"name,time\na,1,2\n"), "jobs.csv:2: 3 values under 2 columns; expected CSV with a header");
        assert_eq!(error(b"time,name\n1,a\n\nx,b\n"), "jobs.csv:4: time \"x\"; expected whole seconds");
        let long = format!("name,time\na,\"{}\n{}\"\n", "é".repeat(30), "x".repeat(30));
        let expected = format!("jobs.csv:2: time \"{}\\nxxxxxxxxx…\"; expected whole seconds", "é".repeat(30));
        assert_eq!(error(long.as_bytes()), expected);
    }

    #[test]
    fn columns_come_in_any_order() {
        let table = Table::parse("jobs.csv", b"extra,time,name\n0,7,a\n", COLUMNS).unwrap();
        let row = table.rows().next().unwrap();
        assert_eq!((row.text(0).unwrap(), row.get::<u32>(1, "", |_| true).unwrap(), row.line), ("a", 7, 2));
    }
}
