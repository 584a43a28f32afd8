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

/// Returns the lines of /debug/rounds, each cut before its timings.
pub(super) fn without_phases(rounds: &str) -> Vec<&str> {
    let cut = |round| str::split_once(round, " (observe").map_or(round, |(round, _)| round);
    rounds.lines().map(cut).collect()
}

/// Returns the newest of these lines of /debug/rounds with a write, for each family.
pub(super) fn newest_writes(rounds: &str) -> Vec<&str> {
    let rounds = without_phases(rounds);
    let newest = |family: Family| {
        let of_family = format!("{family} round ");
        let mut rounds = rounds.iter().rev();
        rounds.find(|round| round.starts_with(&of_family) && round.contains(", wrote "))
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
        let rounds = "\
IPv4 round 1 (Startup): committed, wrote 9 elements and 3 objects, took 5ms (observe 1ms)
IPv4 round 2 (Changed): committed, wrote 2 elements and 0 objects, took 1ms (observe 0ns)
IPv4 round 3 (Timer): unchanged, took 1ms (observe 1ms)
IPv6 round 1 (Startup): committed, wrote 7 elements and 3 objects, took 4ms (observe 1ms)
";
        assert_eq!(
            newest_writes(rounds),
            [
                "IPv4 round 2 (Changed): committed, wrote 2 elements and 0 objects, took 1ms",
                "IPv6 round 1 (Startup): committed, wrote 7 elements and 3 objects, took 4ms",
            ]
        );
    }
}
