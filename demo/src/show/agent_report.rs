//! Extracts the interesting parts of the agent's reports. Pure.

use crds::NodeProxyStatus;
use dataplane::Family;

/// The maximum length of a displayed condition message.
const MESSAGE: usize = 96;

/// Whether the node is Ready.
pub(super) fn is_ready(status: &NodeProxyStatus) -> bool {
    let mut conditions = status.conditions.iter();
    conditions
        .any(|condition| condition.type_ == crds::condition::READY && condition.status == "True")
}

/// Returns the lines of /debug/syncs, each cut before its timings.
pub(super) fn without_phases(syncs: &str) -> Vec<&str> {
    let cut = |sync| str::split_once(sync, " (observe").map_or(sync, |(sync, _)| sync);
    syncs.lines().map(cut).collect()
}

/// Returns the newest of these lines of /debug/syncs with a write, for each family.
pub(super) fn newest_writes(syncs: &str) -> Vec<&str> {
    let syncs = without_phases(syncs);
    let newest = |family: Family| {
        let of_family = format!("{family} sync ");
        let mut syncs = syncs.iter().rev();
        syncs.find(|sync| sync.starts_with(&of_family) && sync.contains(", wrote "))
    };
    Family::ALL
        .into_iter()
        .filter_map(newest)
        .copied()
        .collect()
}

/// Returns the status in a few lines of its own format.
pub(super) fn interesting_part(status: &NodeProxyStatus) -> String {
    let counts = status.counts;
    let mut lines = vec![format!(
        "counts: {{services: {}, endpoints: {}, elements: {}}}",
        counts.services, counts.endpoints, counts.elements
    )];
    if let Some(latency) = &status.sync_latency {
        let phases = [
            ("decode", latency.decode),
            ("compile", latency.compile),
            ("commit", latency.commit),
            ("total", latency.total),
        ];
        let phases = phases.map(|(name, of)| format!("{name}: {}", of.p99_microseconds));
        lines.push(format!("syncLatency, p99: {{{}}}", phases.join(", ")));
    }
    lines.push("conditions:".to_owned());
    for condition in &status.conditions {
        let message = match condition.message.char_indices().nth(MESSAGE) {
            Some((end, _)) => format!("{}…", &condition.message[..end]),
            None => condition.message.clone(),
        };
        let (name, reason) = (&condition.type_, &condition.reason);
        let line = format!("- {name}: {} ({reason}) {message}", condition.status);
        lines.push(line.trim_end().to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::newest_writes;

    #[test]
    fn the_newest_write_of_each_family_is_shown_without_its_phases() {
        let syncs = "\
IPv4 sync 1 (Startup): committed, wrote 9 elements and 3 objects, took 5ms (observe 1ms)
IPv4 sync 2 (Changed): committed, wrote 2 elements and 0 objects, took 1ms (observe 0ns)
IPv4 sync 3 (Timer): unchanged, took 1ms (observe 1ms)
IPv6 sync 1 (Startup): committed, wrote 7 elements and 3 objects, took 4ms (observe 1ms)
";
        assert_eq!(
            newest_writes(syncs),
            [
                "IPv4 sync 2 (Changed): committed, wrote 2 elements and 0 objects, took 1ms",
                "IPv6 sync 1 (Startup): committed, wrote 7 elements and 3 objects, took 4ms",
            ]
        );
    }
}
