//! The fill of the kernel's conntrack table.

use std::time::Duration;

use crds::node_proxy::ConntrackFill;
use runtime::CancellationToken;
use tokio::sync::watch;
use tracing::warn;

use super::{ConntrackState, update};

/// The assumed maximum rate of new connections per second. At this rate the room above [`FILLING`]
/// percent of the smallest table lasts for about [`SOON`].
const FASTEST: u32 = 6_500;
/// The time between two reads of a table that is nearly full. A read takes two small files.
const SOON: Duration = Duration::from_secs(2);
/// The time between two reads of a table with plenty of room: floods can be faster than assumed,
/// and limits can be lowered.
const LATEST: Duration = Duration::from_secs(60);
/// The fill in percent from which new connections are about to be dropped.
const FILLING: u64 = 90;
/// The fill in percent below which they no longer are. The two differ, so that a table that stays
/// near one of them does not change its condition with every read.
const ROOMY: u64 = 80;

/// The fill of the table in levels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pressure {
    /// It has never been read.
    #[default]
    NotRead,
    /// It was read before, and can no longer be read.
    Unknown,
    /// There is room.
    Roomy,
    /// New connections are about to be dropped.
    Filling,
}

/// Reads the entries and the limit of this network namespace. Returns `None` if the kernel does not
/// provide them (no module, or a user namespace without the permission).
pub fn observe_fill() -> Option<ConntrackFill> {
    let read = |name: &str| -> Option<u32> {
        let text = std::fs::read_to_string(format!("/proc/sys/net/netfilter/{name}")).ok()?;
        text.trim().parse().ok()
    };
    Some(ConntrackFill {
        entries: read("nf_conntrack_count")?,
        max: read("nf_conntrack_max")?,
    })
}

/// Reads the fill periodically, until `stop` is cancelled.
pub(super) async fn watch(state: watch::Sender<ConntrackState>, stop: CancellationToken) {
    let mut pressure = Pressure::default();
    loop {
        let fill = observe_fill();
        let now = pressure.after(fill);
        if now == Pressure::Filling && pressure != now {
            let ConntrackFill { entries, max } = fill.unwrap_or_default();
            warn!(
                entries,
                max,
                "the connection tracking table is nearly full: the kernel drops \
                                 new connections once it is full"
            );
        }
        pressure = now;
        update(&state, |state| state.pressure = pressure);
        // Cancel safe: neither arm holds anything.
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause(fill)) => {}
        }
    }
}

/// Returns when to read a table again that holds `fill`.
fn pause(fill: Option<ConntrackFill>) -> Duration {
    let Some(ConntrackFill { entries, max }) = fill else {
        return SOON;
    };
    let filling = u64::from(max) * FILLING / 100;
    let room = filling.saturating_sub(entries.into());
    Duration::from_secs(room / u64::from(FASTEST)).clamp(SOON, LATEST)
}

// === impl Pressure ===

impl Pressure {
    /// Returns the new level for a table that holds `fill`.
    fn after(self, fill: Option<ConntrackFill>) -> Pressure {
        let Some(ConntrackFill { entries, max }) = fill else {
            return match self {
                Pressure::NotRead => Pressure::NotRead,
                Pressure::Unknown | Pressure::Roomy | Pressure::Filling => Pressure::Unknown,
            };
        };
        let from = match self {
            Pressure::Filling => ROOMY,
            Pressure::Roomy | Pressure::Unknown | Pressure::NotRead => FILLING,
        };
        // A limit of 0 means no limit.
        if max > 0 && u64::from(entries) * 100 >= u64::from(max) * from {
            Pressure::Filling
        } else {
            Pressure::Roomy
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Failure story T46: kubernetes#71261. The condition is True before connections are dropped,
    /// and does not change with every read.
    #[test]
    fn t46_pressure_is_reported_before_drops_and_does_not_flap() {
        let mut pressure = Pressure::default();
        let mut said = Vec::new();
        for entries in [0, 899, 900, 880, 899, 950, 800, 799, 899, 900, 1000] {
            pressure = pressure.after(Some(ConntrackFill { entries, max: 1000 }));
            said.push(match pressure {
                Pressure::Filling => entries,
                _ => 0,
            });
        }
        assert_eq!(said, [0, 0, 900, 880, 899, 950, 800, 0, 0, 900, 1000]);
        let unlimited = ConntrackFill { entries: 5, max: 0 };
        assert_eq!(pressure.after(Some(unlimited)), Pressure::Roomy);
        let full = ConntrackFill {
            entries: u32::MAX,
            max: u32::MAX,
        };
        assert_eq!(pressure.after(Some(full)), Pressure::Filling);
    }

    /// At the maximum rate, the next read finds a table that has only just started filling.
    #[test]
    fn it_is_looked_again_before_the_table_can_fill() {
        let pause = |entries, max| pause(Some(ConntrackFill { entries, max })).as_secs();
        assert_eq!(pause(0, 131_072), 18);
        assert_eq!(pause(100_000, 131_072), 2);
        assert_eq!(pause(131_072, 131_072), 2);
        assert_eq!(pause(0, 16_384), 2);
        assert_eq!(pause(0, u32::MAX), 60);
    }

    #[test]
    fn what_can_no_longer_be_read_is_not_what_it_was() {
        let unheard = Pressure::default();
        assert_eq!(unheard.after(None), Pressure::NotRead);
        let full = ConntrackFill {
            entries: 1000,
            max: 1000,
        };
        let unknown = unheard.after(Some(full)).after(None);
        assert_eq!(unknown, Pressure::Unknown);
        assert_eq!(unknown.after(None), Pressure::Unknown);
        assert_eq!(unknown.after(Some(full)), Pressure::Filling);
    }
}
