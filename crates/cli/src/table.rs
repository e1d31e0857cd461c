//! Aligned, coloured columns of text.

use std::io::{self, Write};

use clap::builder::styling::Style;
use unicode_width::UnicodeWidthStr;

/// Between two columns.
const GAP: &str = "  ";

/// Which side of its column a cell keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// The text of one cell and how it looks.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A cell with a look of its own.
    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style }
    }

    /// A cell that looks like the text around it.
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Self::styled(text, Style::new())
    }
}

/// Columns that are as wide as their widest cell.
#[derive(Debug)]
pub(crate) struct Table {
    aligns: Vec<Align>,
    lines: Vec<Line>,
}

#[derive(Debug)]
enum Line {
    Cells(Vec<Cell>),
    /// Over all columns.
    Title(Cell),
}

impl Table {
    /// Columns with headings.
    pub(crate) fn with_headings(columns: &[(&str, Align)]) -> Self {
        let mut table = Self::without_headings(&columns.iter().map(|&(_, align)| align).collect::<Vec<_>>());
        table.push(columns.iter().map(|&(heading, _)| Cell::styled(heading, Style::new().bold())).collect());
        table
    }

    /// Columns that explain themselves.
    pub(crate) fn without_headings(aligns: &[Align]) -> Self {
        Self { aligns: aligns.to_vec(), lines: Vec::new() }
    }

    /// Adds a line, one cell for each column.
    pub(crate) fn push(&mut self, cells: Vec<Cell>) {
        assert_eq!(cells.len(), self.aligns.len(), "a line has a cell for each column");
        self.lines.push(Line::Cells(cells));
    }

    /// Adds a line that says what the next ones are about, below a blank one.
    pub(crate) fn push_title(&mut self, title: Cell) {
        self.lines.push(Line::Title(title));
    }

    /// Writes every line behind an indent.
    pub(crate) fn write(&self, indent: &str, out: &mut dyn Write) -> io::Result<()> {
        let widths: Vec<usize> = (0..self.aligns.len())
            .map(|column| self.rows().map(|line| width(&line[column])).max().unwrap_or(0))
            .collect();
        for line in &self.lines {
            let line = match line {
                Line::Cells(line) => line,
                Line::Title(Cell { text, style }) => {
                    writeln!(out, "\n{indent}{style}{text}{style:#}")?;
                    continue;
                }
            };
            write!(out, "{indent}")?;
            for (column, cell) in line.iter().enumerate() {
                let (gap, last) = (if column == 0 { "" } else { GAP }, column + 1 == line.len());
                let padding = " ".repeat(widths[column] - width(cell));
                let Cell { text, style } = cell;
                match self.aligns[column] {
                    Align::Right => write!(out, "{gap}{padding}{style}{text}{style:#}")?,
                    Align::Left if last => write!(out, "{gap}{style}{text}{style:#}")?,
                    Align::Left => write!(out, "{gap}{style}{text}{style:#}{padding}")?,
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn rows(&self) -> impl Iterator<Item = &[Cell]> {
        self.lines.iter().filter_map(|line| match line {
            Line::Cells(cells) => Some(cells.as_slice()),
            Line::Title(_) => None,
        })
    }
}

fn width(cell: &Cell) -> usize {
    cell.text.width()
}

/// The text and as many blanks as it takes to fill so many columns of a terminal: letters of some scripts take two.
pub(crate) fn padded(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(text.width())))
}

#[cfg(test)]
mod tests {
    use clap::builder::styling::AnsiColor;

    use super::*;

    fn written(table: &Table) -> String {
        let mut out = Vec::new();
        table.write("  ", &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_align_right_and_words_left_without_trailing_spaces() {
        let mut table = Table::without_headings(&[Align::Left, Align::Right, Align::Left]);
        table.push(vec![Cell::plain("a"), Cell::plain("1.5 µs"), Cell::plain("x")]);
        table.push(vec![Cell::plain("long"), Cell::plain("2"), Cell::plain("longer")]);
        assert_eq!(written(&table), "  a     1.5 µs  x\n  long       2  longer\n");
    }

    #[test]
    fn wide_letters_take_two_columns_and_marks_none() {
        let mut table = Table::without_headings(&[Align::Left, Align::Right, Align::Left]);
        for (name, phase) in [("訓練", "走"), ("🚀 run", "2"), ("re\u{301}sume\u{301}", "12"), ("plain", "3")] {
            table.push(vec![Cell::plain(name), Cell::plain(phase), Cell::plain("|")]);
        }
        let columns: Vec<usize> = written(&table).lines().map(|line| line.split('|').next().unwrap().width()).collect();
        assert_eq!(columns, [14; 4], "{}", written(&table));
        assert_eq!([padded("訓", 4), padded("ab", 4), padded("🚀🚀🚀", 4)], ["訓  ", "ab  ", "🚀🚀🚀"]);
    }

    #[test]
    fn colours_do_not_count_as_width() {
        let mut table = Table::with_headings(&[("n", Align::Right)]);
        table.push(vec![Cell::styled("10", AnsiColor::Green.on_default())]);
        assert_eq!(written(&table), "   \u{1b}[1mn\u{1b}[0m\n  \u{1b}[32m10\u{1b}[0m\n");
    }
}
