//! The form of iptables rules in scenarios.

use backend_iptables::Rules;

use super::{Dump, Form};

/// Chains that every packet passes, the same in every scenario.
const PASSED_BY_ALL: [&str; 7] = [
    "SIGNPOST-INPUT",
    "SIGNPOST-FORWARD",
    "SIGNPOST-OUTPUT",
    "SIGNPOST-ARRIVING",
    "SIGNPOST-LEAVING",
    "SIGNPOST-POSTROUTING",
    "SIGNPOST-MASQUERADE",
];

/// Prints the rules that a scenario changes in the format of `iptables-save`, without the comments,
/// which one variant of the kernel does not receive.
pub fn iptables_form() -> Form<Rules> {
    Form {
        dump: Dump::Iptables,
        print: print_story,
    }
}

fn print_story(rules: &Rules) -> String {
    let text = rules.to_string();
    let mut printed: Vec<String> = Vec::new();
    let mut table = None;
    for line in text.lines() {
        if line.starts_with('*') {
            table = Some(line);
        }
        let rule = line
            .strip_prefix("-A ")
            .and_then(|rule| rule.split_once(' '));
        let is_of_story =
            |chain: &str| chain.starts_with("SIGNPOST-") && !PASSED_BY_ALL.contains(&chain);
        if rule.is_some_and(|(chain, _)| is_of_story(chain)) {
            printed.extend(table.take().map(str::to_owned));
            printed.push(without_spared_comment(line));
        }
    }
    printed.join("\n")
}

fn without_spared_comment(line: &str) -> String {
    let is_spared =
        |comment: &str| comment.contains(" -> ") || comment.ends_with(" has no such port");
    let commented = line.split_once(" -m comment --comment \"");
    let commented = commented.and_then(|(before, after)| Some((before, after.split_once('"')?)));
    match commented {
        Some((before, (comment, after))) if is_spared(comment) => format!("{before}{after}"),
        _ => line.to_owned(),
    }
}
