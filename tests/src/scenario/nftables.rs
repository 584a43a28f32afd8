//! The form of nftables rules in scenarios.

use backend_nftables::Table;

use super::{Dump, Form};

/// Prints the non-empty sets, but neither the chains nor the maps from numbers to chains: the parts
/// that a scenario changes.
pub fn nftables_form() -> Form<Table> {
    Form {
        dump: Dump::Nftables,
        print: print_elements,
    }
}

fn print_elements(table: &Table) -> String {
    let text = table.to_string();
    let mut printed: Vec<&str> = Vec::new();
    let mut set = None;
    for line in text.lines() {
        if !line.starts_with(' ') {
            let is_reported = line.starts_with("set ") && !line.ends_with(": verdict }");
            set = is_reported.then_some(line);
        } else if let Some(header) = set {
            if !printed.contains(&header) {
                printed.push(header);
            }
            printed.push(line);
        }
    }
    printed.join("\n")
}
