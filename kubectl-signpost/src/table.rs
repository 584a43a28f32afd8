//! Tables as text.

use crate::output::{Paint, Tone};

/// Rows with a header, each column as wide as its widest cell.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

/// One cell.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

const GAP: usize = 3;

// === impl Table ===

impl Table {
    pub(crate) fn new(header: &[&'static str]) -> Table {
        Table {
            header: header.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row with as many cells as the header.
    pub(crate) fn push(&mut self, row: Vec<Cell>) {
        self.rows.push(row);
    }

    /// Renders one line for each row, without trailing spaces.
    pub(crate) fn render(&self, paint: Paint) -> String {
        let width_of = |(column, title): (usize, &&str)| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let widths = cells.map(|cell| cell.text.chars().count());
            widths.chain([title.len()]).max().unwrap_or_default()
        };
        let widths: Vec<usize> = self.header.iter().enumerate().map(width_of).collect();
        let header: Vec<Cell> = self.header.iter().copied().map(Cell::from).collect();
        let mut text = String::new();
        for row in [&header].into_iter().chain(&self.rows) {
            let mut owed = 0;
            for (cell, width) in row.iter().zip(&widths) {
                // Padding is written only before the next text, so that no line ends with spaces.
                if !cell.text.is_empty() {
                    text.push_str(&" ".repeat(owed));
                    owed = 0;
                    text.push_str(&paint.apply(cell.tone, &cell.text));
                }
                owed += width - cell.text.chars().count() + GAP;
            }
            text.push('\n');
        }
        text
    }
}

// === impl Cell ===

impl Cell {
    pub(crate) fn toned(tone: Tone, text: impl Into<String>) -> Cell {
        Cell {
            text: text.into(),
            tone,
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::toned(Tone::Plain, text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::toned(Tone::Plain, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_no_line_ends_in_spaces() {
        let mut table = Table::new(&["NAME", "MODE", "WHY"]);
        table.push(vec!["n1".into(), "nftables".into(), "".into()]);
        table.push(vec!["a-long-name".into(), "".into(), "µs".into()]);
        let expected = "NAME          MODE       WHY\n\
                        n1            nftables\n\
                        a-long-name              µs\n";
        assert_eq!(table.render(Paint::Plain), expected);
    }
}
