//! The formats of answers.

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Plain text.
    Text,
    /// Plain text with more columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// Parses the format of an answer that has no table, to which wide would add columns.
pub(super) fn without_wide() -> impl TypedValueParser<Value = Format> {
    let formats = [Format::Text, Format::Json, Format::Yaml];
    let names = formats.iter().filter_map(ValueEnum::to_possible_value);
    PossibleValuesParser::new(names).try_map(|name| Format::from_str(&name, false))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Arguments;

    #[test]
    fn wide_is_a_format_of_tables_only() {
        let parse = |words: &str| {
            let words = format!("kubectl-signpost {words}");
            Arguments::try_parse_from(words.split(' ')).map(drop)
        };
        for table in ["status", "nodes", "migrate plan"] {
            parse(&format!("{table} -o wide")).expect(table);
        }
        for other in ["version", "config effective n1"] {
            parse(&format!("{other} -o wide")).expect_err(other);
            for format in ["text", "json", "yaml"] {
                parse(&format!("{other} -o {format}")).expect(other);
            }
        }
    }
}
