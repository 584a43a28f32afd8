//! Golden sections, which contain expected output.

use std::borrow::Cow;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::Script;

/// Whether golden sections are compared or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Compare them.
    Never,
    /// Write those that differ.
    Differing,
}

/// The golden sections of one file.
#[derive(Debug)]
pub struct Goldens {
    path: PathBuf,
    update: Update,
    /// The sections to write, in the order of the comparisons.
    written: Vec<(String, String)>,
}

// === impl Update ===

impl Update {
    /// Reads the setting from the environment: `UPDATE=1` means write. Fails if `CI` is set too:
    /// golden sections that update themselves test nothing.
    pub fn from_environment() -> Result<Update> {
        let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
        match (is_set("UPDATE"), is_set("CI")) {
            (false, _) => Ok(Update::Never),
            (true, false) => Ok(Update::Differing),
            (true, true) => bail!("UPDATE writes goldens, and CI must not"),
        }
    }
}

// === impl Goldens ===

impl Goldens {
    /// Creates the golden sections of the file at `path`.
    pub fn new(path: &Path, update: Update) -> Goldens {
        Goldens {
            path: path.to_owned(),
            update,
            written: Vec::new(),
        }
    }

    /// The name of the file.
    pub fn file_name(&self) -> Cow<'_, str> {
        self.path.file_name().unwrap_or_default().to_string_lossy()
    }

    /// Compares `actual` with the section `name`; returns the difference, or `None` if it is equal
    /// or will be written.
    pub fn compare(&mut self, script: &Script, name: &str, actual: &str) -> Option<String> {
        let actual = actual.trim_end();
        let written = self.written.iter().find(|(section, _)| section == name);
        let golden = match (written, script.sections.get(name)) {
            (Some((_, text)), _) => text,
            (None, Some(section)) => section.text.trim_end(),
            (None, None) => "",
        };
        if golden == actual {
            return None;
        }
        // A section that is compared twice must be equal both times.
        if written.is_some() || self.update == Update::Never {
            return Some(difference(golden, actual));
        }
        self.written.push((name.to_owned(), actual.to_owned()));
        None
    }

    /// Writes the sections that differed to the file.
    pub fn commit(self, script: &Script) -> Result<()> {
        if self.written.is_empty() {
            return Ok(());
        }
        let failed = || format!("failed to update {}", self.path.display());
        let text = fs::read_to_string(&self.path).with_context(failed)?;
        let updated = replace_sections(&text, script, &self.written);
        fs::write(&self.path, updated).with_context(failed)
    }
}

/// Returns `text` with these sections in place of those of the same names, or appended.
fn replace_sections(text: &str, script: &Script, sections: &[(String, String)]) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    let mut places: Vec<(usize, usize, &str, &str)> = Vec::new();
    for (name, content) in sections {
        match script.sections.get(name) {
            Some(section) => {
                let (first, last) = (*section.lines.start() - 1, *section.lines.end());
                places.push((first, last, name, content));
            }
            None => places.push((usize::MAX, usize::MAX, name, content)),
        }
    }
    // Replace from the end, so that the positions of earlier sections stay valid.
    places.sort_by(|a, b| b.cmp(a));
    let mut added = String::new();
    for (first, last, name, content) in places {
        if first == usize::MAX {
            added.insert_str(0, &format!("\n-- {name} --\n{content}\n"));
        } else {
            let followed = last < lines.len();
            let separator = followed.then_some("");
            lines.splice(first..last, content.lines().chain(separator));
        }
    }
    format!("{}\n{added}", lines.join("\n").trim_end())
}

/// Returns the lines between the common prefix and the common suffix of both texts.
fn difference(golden: &str, actual: &str) -> String {
    let (golden, actual): (Vec<_>, Vec<_>) = (golden.lines().collect(), actual.lines().collect());
    let start = golden.iter().zip(&actual);
    let start = start.take_while(|(g, a)| g == a).count();
    let (golden, actual) = (&golden[start..], &actual[start..]);
    let end = golden.iter().rev().zip(actual.iter().rev());
    let end = end.take_while(|(g, a)| g == a).count();
    let mut text = format!("differs from line {} on (UPDATE=1 writes it)", start + 1);
    for (sign, lines) in [('-', golden), ('+', actual)] {
        for line in &lines[..lines.len() - end] {
            text.push_str(&format!("\n    {sign} {line}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Script, difference, replace_sections};

    #[test]
    fn a_section_is_replaced_where_it_stands_and_a_new_one_is_added() {
        let text = "expect dataplane\n\n-- a --\n1\n2\n\n-- b --\n3\n";
        let script = Script::parse(text).expect("the text above is a scenario");
        let write = |name: &str, content: &str| (name.to_owned(), content.to_owned());
        let updated = replace_sections(text, &script, &[write("a", "one")]);
        assert_eq!(updated, "expect dataplane\n\n-- a --\none\n\n-- b --\n3\n");
        let all = [write("b", "three"), write("c", "four"), write("a", "one")];
        let updated = replace_sections(text, &script, &all);
        assert_eq!(
            updated,
            "expect dataplane\n\n-- a --\none\n\n-- b --\nthree\n\n-- c --\nfour\n"
        );
        let again = Script::parse(&updated).expect("what was written parses");
        assert_eq!(again.sections["c"].text, "four\n");
    }

    #[test]
    fn a_difference_is_what_lies_between_the_lines_that_agree() {
        assert_eq!(
            difference("a\nb\nz", "a\nc\nd\nz"),
            "differs from line 2 on (UPDATE=1 writes it)\n    - b\n    + c\n    + d"
        );
        assert_eq!(
            difference("a\na", "a"),
            "differs from line 2 on (UPDATE=1 writes it)\n    - a"
        );
    }
}
