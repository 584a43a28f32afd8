//! Formats and colours.

use std::env;
use std::io::{self, IsTerminal};

use anyhow::Context;
use serde::Serialize;

use crate::arguments::{Color, Format};

/// Whether text is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paint {
    /// Text with the colour escape sequences of a terminal.
    Colours,
    /// Plain text.
    Plain,
}

/// The meaning of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Neutral.
    Plain,
    /// No problem.
    Good,
    /// In progress, or needs attention.
    Notable,
    /// A problem.
    Bad,
}

/// Serializes `value` in a machine-readable format; `None` for the formats for humans.
pub(crate) fn serialize(value: &impl Serialize, format: Format) -> anyhow::Result<Option<String>> {
    match format {
        Format::Text | Format::Wide => Ok(None),
        Format::Json => {
            let text = serde_json::to_string_pretty(value).context("failed to write JSON")?;
            Ok(Some(text + "\n"))
        }
        Format::Yaml => {
            let text = serde_saphyr::to_string(value).context("failed to write YAML")?;
            Ok(Some(text))
        }
    }
}

/// Renders `1 node` or `2 nodes`.
pub(crate) fn counted(count: impl TryInto<u64>, noun: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

// === impl Paint ===

impl Paint {
    /// Chooses by the `--color` option, `NO_COLOR` and whether standard output is a terminal.
    pub(crate) fn of_standard_output(color: Color) -> Paint {
        let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        match color {
            Color::Always => Paint::Colours,
            Color::Auto if !refused && io::stdout().is_terminal() => Paint::Colours,
            Color::Auto | Color::Never => Paint::Plain,
        }
    }

    /// Returns `text` in the colour of `tone`.
    pub(crate) fn apply(self, tone: Tone, text: &str) -> String {
        let code = match (self, tone) {
            (Paint::Plain, _) | (_, Tone::Plain) => return text.to_owned(),
            (_, Tone::Good) => "32",
            (_, Tone::Notable) => "33",
            (_, Tone::Bad) => "31",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_colours_have_escape_sequences() {
        assert_eq!(Paint::Plain.apply(Tone::Bad, "x"), "x");
        assert_eq!(Paint::Colours.apply(Tone::Bad, "x"), "\u{1b}[31mx\u{1b}[0m");
        assert_eq!(Paint::Colours.apply(Tone::Plain, "x"), "x");
    }
}
