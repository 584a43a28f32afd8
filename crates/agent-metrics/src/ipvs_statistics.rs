//! IPVS's count of connections.

/// IPVS's counters of this network namespace, one line for each processor. With sysctl
/// `run_estimation` 0, which mode ipvs sets, the kernel adds them up nowhere else: virtual servers
/// and `/proc/net/ip_vs_stats` then show 0.
const FILE: &str = "/proc/net/ip_vs_stats_percpu";

/// Reads how many connections IPVS has sent to an endpoint since the network namespace was created:
/// of both families, and of virtual servers of every program. `None` if the kernel does not say.
pub(super) fn observe() -> Option<u64> {
    parse(&std::fs::read_to_string(FILE).ok()?)
}

/// Two lines are headings, and each further one begins with the number of a processor and the number
/// of connections, both hexadecimal. The last one has `~` for the number, and the sums of the
/// estimation.
fn parse(text: &str) -> Option<u64> {
    let processors = text.lines().skip(2).filter_map(|line| {
        let mut words = line.split_whitespace();
        let number = words.next()?;
        u32::from_str_radix(number, 16).ok()?;
        Some(
            words
                .next()
                .and_then(|count| u64::from_str_radix(count, 16).ok()),
        )
    });
    let counts: Vec<u64> = processors.collect::<Option<_>>()?;
    (!counts.is_empty()).then(|| counts.into_iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.1 writes it.
    const TEXT: &str = "       Total Incoming Outgoing         Incoming         Outgoing
CPU    Conns  Packets  Packets            Bytes            Bytes
  0       1F       20        0              A0B                0
  A        1        2        0               C0                0
  ~        0        0        0                0                0

     Conns/s   Pkts/s   Pkts/s          Bytes/s          Bytes/s
  ~        0        0        0                0                0
";

    #[test]
    fn the_connections_of_each_processor_are_added_and_the_estimate_is_not() {
        assert_eq!(parse(TEXT), Some(0x20));
    }

    #[test]
    fn what_is_not_the_file_says_nothing() {
        for text in ["", "a\nb\n", "a\nb\n  0\n", "a\nb\n  0  none\n"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
