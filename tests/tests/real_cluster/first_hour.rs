//! The page that shows a new user what commands print, `docs/first-hour.md`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::plugin::Ran;

/// Checks that `ran` printed each line that the page shows below `command`. Numbers may differ: of
/// nodes, addresses, ports and times.
pub(crate) fn expect_as_documented(ran: &Ran, command: &str) -> Result<()> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/first-hour.md");
    let page = fs::read_to_string(page).context("failed to read the page")?;
    let prompt = format!("$ kubectl signpost {command}\n");
    let (_, shown) = page
        .split_once(&prompt)
        .with_context(|| format!("the page does not run {command}"))?;
    let shown = shown
        .lines()
        .take_while(|line| !line.starts_with(['$', '`']));
    let printed: Vec<String> = [&ran.text, &ran.errors]
        .into_iter()
        .flat_map(|text| text.lines().map(without_numbers))
        .collect();
    let mut count = 0;
    for line in shown {
        let line = without_numbers(line);
        ensure!(
            printed.contains(&line),
            "docs/first-hour.md shows for {command}\n{line}\nwhich is not in\n{}",
            printed.join("\n")
        );
        count += 1;
    }
    ensure!(count > 0, "the page shows nothing of {command}");
    Ok(())
}

/// Replaces each number by one letter.
fn without_numbers(line: &str) -> String {
    let mut text = String::new();
    for letter in line.chars() {
        match letter.is_ascii_digit() {
            true if text.ends_with('N') => {}
            true => text.push('N'),
            false => text.push(letter),
        }
    }
    text
}
