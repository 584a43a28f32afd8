//! The kernel's counters of connections that it could not track.

/// The kernel's counters of this network namespace, one line per CPU. A kernel without
/// `CONFIG_NF_CONNTRACK_PROCFS` has no such file.
const FILE: &str = "/proc/net/stat/nf_conntrack";

/// Connections and packets lost since the network namespace was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Statistics {
    /// New connections that were not inserted because another entry was in their place.
    pub(super) insert_failed: u64,
    /// Packets dropped because the table was full, or memory was short.
    pub(super) dropped: u64,
    /// Connections removed to make room for new ones.
    pub(super) early_dropped: u64,
}

/// Reads the counters; `None` if the kernel does not provide them.
pub(super) fn observe() -> Option<Statistics> {
    parse(&std::fs::read_to_string(FILE).ok()?)
}

/// Finds columns by name, because kernels add columns.
fn parse(text: &str) -> Option<Statistics> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next()?.split_whitespace().collect();
    let rows: Vec<Vec<u64>> = lines
        .map(|line| {
            let numbers = line.split_whitespace();
            let numbers: Result<_, _> = numbers.map(|n| u64::from_str_radix(n, 16)).collect();
            numbers.ok()
        })
        .collect::<Option<_>>()?;
    let sum = |name: &str| -> Option<u64> {
        let column = names.iter().position(|known| *known == name)?;
        let numbers: Option<Vec<u64>> = rows.iter().map(|row| row.get(column).copied()).collect();
        Some(numbers?.into_iter().sum())
    };
    Some(Statistics {
        insert_failed: sum("insert_failed")?,
        dropped: sum("drop")?,
        early_dropped: sum("early_drop")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_over_processors_and_found_by_name() {
        let text = "entries  clashres insert insert_failed drop early_drop icmp_error\n\
                    0000000a 00000000 00000000 0000000f 00000001 00000000 00000000\n\
                    0000000a 00000000 00000000 00000001 00000002 00000003 00000000\n";
        let expected = Statistics {
            insert_failed: 16,
            dropped: 3,
            early_dropped: 3,
        };
        assert_eq!(parse(text), Some(expected));
    }

    #[test]
    fn what_is_not_the_file_says_nothing() {
        for text in [
            "",
            "entries drop\n1 2\n",
            "insert_failed drop early_drop\nx y z\n",
            "insert_failed drop early_drop\n1\n",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
