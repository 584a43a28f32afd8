//! The history of a profile's configurations as text. Pure.

use crds::profile::history::Revision;
use jiff::Timestamp;

use crate::config::difference;
use crate::nodes::age;
use crate::output::Paint;
use crate::table::Table;

/// Renders one line for each entry of `history`, with the fields in which it differs from the
/// previous one.
pub(super) fn render(history: &[Revision], now: Timestamp, paint: Paint) -> String {
    if history.is_empty() {
        return "no configuration yet\n".to_owned();
    }
    let mut table = Table::new(&["GENERATION", "AGE", "PHASE", "HASH", "CHANGES"]);
    for (index, revision) in history.iter().enumerate() {
        let changes = match history.get(index + 1) {
            Some(before) => {
                let fields = difference::fields(&before.spec, &revision.spec);
                let fields: Vec<String> = fields.iter().map(ToString::to_string).collect();
                fields.join(", ")
            }
            None => "(the oldest in the history)".to_owned(),
        };
        table.push(vec![
            revision.generation.to_string().into(),
            age(revision.since.0, now).into(),
            format!("{:?}", revision.phase).into(),
            revision.config_hash.clone().into(),
            changes.into(),
        ]);
    }
    table.render(paint)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_line_says_what_it_changed() {
        let revision = |generation: i64, phase: &str, mode: &str| {
            json!({
                "generation": generation, "configHash": format!("{generation:x}"), "phase": phase,
                "since": "2026-01-01T00:00:00Z", "spec": {"mode": mode},
            })
        };
        let history = json!([
            revision(3, "RolledBack", "iptables"),
            revision(1, "Settled", "nftables")
        ]);
        let history: Vec<Revision> = serde_json::from_value(history).expect("a history");
        let now = "2026-01-01T01:00:00Z".parse().expect("a time");
        assert_eq!(
            render(&history, now, Paint::Plain),
            "GENERATION   AGE   PHASE        HASH   CHANGES\n\
             3            60m   RolledBack   3      mode: \"nftables\" -> \"iptables\"\n\
             1            60m   Settled      1      (the oldest in the history)\n"
        );
        assert_eq!(render(&[], now, Paint::Plain), "no configuration yet\n");
    }
}
