//! The form of mode ipvs in scenarios: its table and its virtual servers.

use backend_ipvs::Rules;

use super::{Dump, Form};

/// Prints the non-empty sets and the virtual servers but no chains: the parts that a scenario
/// changes.
pub fn ipvs_form() -> Form<Rules> {
    Form {
        dump: Dump::Ipvs,
        print: print_story,
    }
}

fn print_story(rules: &Rules) -> String {
    let text = rules.to_string();
    let mut printed: Vec<&str> = Vec::new();
    let mut above = None;
    for line in text.lines() {
        if !line.starts_with(' ') {
            above = (!line.starts_with("chain ")).then_some(line);
        } else if let Some(header) = above {
            if !printed.contains(&header) {
                printed.push(header);
            }
            printed.push(line);
        }
    }
    printed.join("\n")
}
