//! How the table and the virtual servers of mode ipvs print in scenarios.

use backend_ipvs::Rules;

use super::{Dump, Form};

/// The sets that have elements, the virtual servers, and nothing of the chains: what a story changes.
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
