//! How far the clock of the API server is ahead of the operator's.
//!
//! An operator that starts knows from the API server alone since when nodes have had their
//! configuration. It reads those times by its own clock. One that runs goes by them, too: whether a
//! change follows another within its deadline.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// How far the clock of the API server is ahead of the operator's, to about a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockOffset(SignedDuration);

/// A time that the API server wrote down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerTime {
    /// The time as it is written.
    written: Timestamp,
    /// The same by the operator's clock, once it is corrected.
    own: Timestamp,
}

/// Clocks of the machines of a cluster differ by less, and the API server answers sooner.
const USUAL_SECONDS: i64 = 10;

// === impl ClockOffset ===

impl ClockOffset {
    /// Measures the offset by the `metadata` of a Lease that the API server has written on request, in
    /// its answer at `now`. `None` if they do not name the time of that write.
    ///
    /// Each renewal changes the time of renewal, so that its writer alone has that field. Others may
    /// have written the rest by another clock.
    pub(crate) fn of_write(metadata: &ObjectMeta, now: Timestamp) -> Option<Self> {
        let mut entries = metadata.managed_fields.iter().flatten();
        let renewal = entries.find(|entry| {
            let fields = entry.fields_v1.as_ref();
            fields.is_some_and(|fields| fields.0.pointer("/f:spec/f:renewTime").is_some())
        })?;
        let written = renewal.time.as_ref()?;
        Some(Self(written.0.duration_since(now)))
    }

    /// How far the clock of the API server is ahead.
    #[cfg(test)]
    pub(crate) const fn ahead(ahead: SignedDuration) -> Self {
        Self(ahead)
    }

    /// Whether the offset differs from `other` by more than two measurements of one offset do.
    pub(crate) fn differs_from(self, other: Self) -> bool {
        (self.0 - other.0).as_secs().abs() > USUAL_SECONDS
    }

    /// Returns the time of the operator's clock when that of the API server was `time`.
    fn own_time(self, time: Timestamp) -> Timestamp {
        time.checked_sub(self.0).unwrap_or(time)
    }

    /// Returns the offset in seconds, if it is larger than those of synchronised clocks, or of a slow
    /// answer.
    pub(crate) fn unusual(self) -> Option<i64> {
        let seconds = self.0.as_secs();
        (seconds.abs() > USUAL_SECONDS).then_some(seconds)
    }
}

// === impl ServerTime ===

impl ServerTime {
    /// A time as the API server has written it.
    pub(crate) const fn new(written: Timestamp) -> Self {
        Self {
            written,
            own: written,
        }
    }

    /// Returns the time with that of the operator's clock. `known` is what was read before in its
    /// place: if it is the same, it stays as it was read, because the API server's clock may have
    /// been corrected since it was written.
    pub(crate) fn correct(self, offset: ClockOffset, known: Option<Self>) -> Self {
        let same = known.filter(|known| known.written == self.written);
        same.unwrap_or_else(|| Self {
            own: offset.own_time(self.written),
            ..self
        })
    }

    /// The time by the operator's clock.
    pub(crate) const fn own(self) -> Timestamp {
        self.own
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
        let renewal = json!({"f:spec": {"f:holderIdentity": {}, "f:renewTime": {}}});
        let note = json!({"f:metadata": {"f:annotations": {"f:note": {}}}});
        // A user wrote a note while the clock was five hours ahead.
        let written = metadata(&json!([
            {"manager": "kubectl-annotate", "time": "2027-01-15T13:00:00Z", "fieldsV1": note},
            {"manager": "signpost-operator", "time": "2027-01-15T10:00:00Z", "fieldsV1": renewal},
            {"manager": "kubelet"},
        ]));
        let offset = ClockOffset::of_write(&written, now).expect("it names a time");
        assert_eq!(offset.unusual(), Some(7200));
        let time: Timestamp = "2027-01-15T09:30:00Z".parse().expect("a time");
        let own: Timestamp = "2027-01-15T07:30:00Z".parse().expect("a time");
        let read = ServerTime::new(time).correct(offset, None);
        assert_eq!(read.own(), own);

        // The clock is corrected. What was read remains, and what is written later is read as it is.
        let corrected = ClockOffset::default();
        assert!(corrected.differs_from(offset));
        let again = ServerTime::new(time).correct(corrected, Some(read));
        assert_eq!(again.own(), own);
        assert_eq!(
            ServerTime::new(now).correct(corrected, Some(read)).own(),
            now
        );
    }

    #[test]
    fn nothing_is_known_without_a_time_and_seconds_are_usual() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(ClockOffset::of_write(&ObjectMeta::default(), now), None);
        let foreign = metadata(&json!([{"manager": "kubectl", "time": "2027-01-15T05:00:00Z"}]));
        assert_eq!(ClockOffset::of_write(&foreign, now), None);
        let seconds = ClockOffset::ahead(SignedDuration::from_secs(-9));
        assert_eq!(seconds.unusual(), None);
        assert!(!seconds.differs_from(ClockOffset::default()));
    }
}
