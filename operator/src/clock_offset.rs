//! How far the clock of the API server is ahead of the operator's.
//!
//! An operator that starts knows from the API server alone since when nodes have had their
//! configuration. It reads those times by its own clock.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// How far the clock of the API server is ahead of the operator's, to about a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockOffset(SignedDuration);

/// Clocks of the machines of a cluster differ by less, and the API server answers sooner.
const USUAL_SECONDS: i64 = 10;

// === impl ClockOffset ===

impl ClockOffset {
    /// Measures the offset by the `metadata` of an object that the API server has written on request,
    /// in its answer at `now`. `None` if they name no time.
    pub(crate) fn of_write(metadata: &ObjectMeta, now: Timestamp) -> Option<Self> {
        let entries = metadata.managed_fields.iter().flatten();
        let written = entries.filter_map(|entry| entry.time.as_ref()).max()?;
        Some(Self(written.0.duration_since(now)))
    }

    /// How far the clock of the API server is ahead.
    #[cfg(test)]
    pub(crate) const fn ahead(ahead: SignedDuration) -> Self {
        Self(ahead)
    }

    /// Returns the time of the operator's clock when that of the API server was `time`.
    pub(crate) fn own_time(self, time: Timestamp) -> Timestamp {
        time.checked_sub(self.0).unwrap_or(time)
    }

    /// Returns the offset in seconds, if it is larger than those of synchronised clocks, or of a slow
    /// answer.
    pub(crate) fn unusual(self) -> Option<i64> {
        let seconds = self.0.as_secs();
        (seconds.abs() > USUAL_SECONDS).then_some(seconds)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn metadata(fields: &Value) -> ObjectMeta {
        serde_json::from_value(json!({"managedFields": fields})).expect("metadata")
    }

    #[test]
    fn the_last_write_shows_how_far_the_api_servers_clock_is_ahead() {
        let now: Timestamp = "2027-01-15T08:00:00Z".parse().expect("a time");
        let written = metadata(&json!([
            {"manager": "kubectl", "time": "2027-01-15T05:00:00Z"},
            {"manager": "signpost-operator", "time": "2027-01-15T10:00:00Z"},
            {"manager": "kubelet"},
        ]));
        let offset = ClockOffset::of_write(&written, now).expect("it names a time");
        assert_eq!(offset.unusual(), Some(7200));
        let time: Timestamp = "2027-01-15T09:30:00Z".parse().expect("a time");
        let own: Timestamp = "2027-01-15T07:30:00Z".parse().expect("a time");
        assert_eq!(offset.own_time(time), own);
    }

    #[test]
    fn nothing_is_known_without_a_time_and_seconds_are_usual() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(ClockOffset::of_write(&ObjectMeta::default(), now), None);
        assert_eq!(ClockOffset::default().unusual(), None);
        assert_eq!(ClockOffset::default().own_time(now), now);
    }
}
