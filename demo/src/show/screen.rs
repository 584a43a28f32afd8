//! The output of the demo.

use std::fmt::Display;
use std::io::Write;

use anyhow::Result;

use super::interruption::Interruption;

/// The total width of all bars in a row.
const BARS: u64 = 24;
/// The width of a row's label.
const ROW: usize = 40;
/// The width of one bar and its number.
const COLUMN: usize = 18;

/// The style of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Plain text, for files and pipes.
    Plain,
    /// With terminal colours.
    Coloured,
}

/// Writes the output line by line. Every call fails after an interruption.
#[expect(
    missing_debug_implementations,
    reason = "what it writes to need not print"
)]
pub struct Screen<'a> {
    out: &'a mut dyn Write,
    style: Style,
    interruption: Interruption,
}

/// The escape sequences that are used.
#[derive(Clone, Copy)]
enum Colour {
    Bold,
    Dim,
    Green,
    Red,
}

// === impl Screen ===

impl<'a> Screen<'a> {
    /// Writes to `out` until `interruption`.
    pub fn new(out: &'a mut dyn Write, style: Style, interruption: Interruption) -> Screen<'a> {
        Screen {
            out,
            style,
            interruption,
        }
    }

    pub(super) fn interruption(&self) -> &Interruption {
        &self.interruption
    }

    /// Writes the title of the next section.
    pub(super) fn title(&mut self, text: &str) -> Result<()> {
        let title = self.coloured(Colour::Bold, text);
        self.write(&format!("\n{title}"))
    }

    pub(super) fn line(&mut self, text: impl Display) -> Result<()> {
        self.write(&format!("   {text}"))
    }

    /// Writes a success.
    pub(super) fn success(&mut self, text: impl Display) -> Result<()> {
        let text = self.coloured(Colour::Green, &text.to_string());
        self.write(&format!("   {text}"))
    }

    /// Writes a failure.
    pub(super) fn failure(&mut self, text: impl Display) -> Result<()> {
        let text = self.coloured(Colour::Red, &text.to_string());
        self.write(&format!("   {text}"))
    }

    /// Quotes the output of another program, set off from the demo's own lines.
    pub(super) fn quote(&mut self, text: &str) -> Result<()> {
        for line in text.trim_end().lines() {
            let line = self.coloured(Colour::Dim, line);
            self.write(&format!("     {line}"))?;
        }
        Ok(())
    }

    /// Writes the column headings for [`Screen::bars`].
    pub(super) fn columns(&mut self, names: &[&str]) -> Result<()> {
        let columns: String = names
            .iter()
            .map(|name| format!("{name:<COLUMN$}"))
            .collect();
        self.line(format!("{:<ROW$}{}", "", columns.trim_end()))
    }

    /// Writes a row with a bar for each count, proportional to its share.
    pub(super) fn bars(&mut self, name: &str, counts: &[u64]) -> Result<()> {
        let total: u64 = counts.iter().sum();
        let mut row = format!("{name:<ROW$}");
        for count in counts {
            let length = (count * BARS + total / 2).checked_div(total).unwrap_or(0);
            let bar: String = (0..length).map(|_| '▇').collect();
            let padding = COLUMN.saturating_sub(bar.chars().count() + 1 + count.to_string().len());
            row.push_str(&self.coloured(Colour::Green, &bar));
            row.push_str(&format!(" {count}{:padding$}", ""));
        }
        self.line(row.trim_end())
    }

    fn coloured(&self, colour: Colour, text: &str) -> String {
        let code = match (self.style, colour) {
            (Style::Plain, _) => return text.to_owned(),
            (Style::Coloured, Colour::Bold) => 1,
            (Style::Coloured, Colour::Dim) => 2,
            (Style::Coloured, Colour::Green) => 32,
            (Style::Coloured, Colour::Red) => 31,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    fn write(&mut self, line: &str) -> Result<()> {
        self.interruption.check()?;
        writeln!(self.out, "{line}")?;
        // Flush each line, so that it appears when the event happens.
        self.out.flush()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Interruption, Screen, Style};

    fn print(style: Style, draw: impl FnOnce(&mut Screen<'_>)) -> String {
        let mut printed = Vec::new();
        draw(&mut Screen::new(
            &mut printed,
            style,
            Interruption::default(),
        ));
        String::from_utf8(printed).expect("text")
    }

    #[test]
    fn a_bar_is_as_long_as_its_share() {
        let row = print(Style::Plain, |screen| {
            screen
                .bars("a path", &[30, 10, 0])
                .expect("a vector takes everything");
        });
        assert_eq!(row.matches('▇').count(), 24, "{row}");
        assert!(row.contains(&format!("{} 30", "▇".repeat(18))), "{row}");
        assert!(row.trim_end().ends_with(" 0"), "{row}");
    }

    #[test]
    fn nothing_at_all_has_no_bars() {
        let row = print(Style::Plain, |screen| {
            screen
                .bars("a path", &[0, 0])
                .expect("a vector takes everything");
        });
        assert!(!row.contains('▇'), "{row}");
    }

    #[test]
    fn colour_is_for_terminals() {
        let say = |screen: &mut Screen<'_>| screen.success("done").expect("a vector takes it");
        assert_eq!(print(Style::Plain, say), "   done\n");
        assert_eq!(print(Style::Coloured, say), "   \u{1b}[32mdone\u{1b}[0m\n");
    }

    #[test]
    fn who_interrupts_reads_no_further_line() {
        let (mut printed, interruption) = (Vec::new(), Interruption::default());
        let mut screen = Screen::new(&mut printed, Style::Plain, interruption.clone());
        interruption.raise();
        assert!(screen.line("one more").is_err());
        assert!(printed.is_empty());
    }
}
