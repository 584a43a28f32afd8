//! The conditions of the conntrack table. Pure.

use crds::condition::reason::{self, Reason};
use crds::condition::{self, Finding, Status};

use super::{ConntrackState, Limits, Pressure};

/// Returns the conditions of the table; none before anything is known.
pub fn findings(state: &ConntrackState) -> Vec<Finding> {
    let pressure = match state.pressure {
        Pressure::NotRead => None,
        // Without a finding, the condition would keep its status.
        Pressure::Unknown => Some((Status::Unknown, reason::TABLE_UNREADABLE, "")),
        Pressure::Roomy => Some((Status::False, reason::TABLE_ROOMY, "")),
        // Without figures: each new message would be another write to the API.
        Pressure::Filling => {
            let message = "the table is nearly full: see status.conntrack";
            Some((Status::True, reason::TABLE_FILLING, message))
        }
    };
    let limits = match &state.limits {
        Limits::Awaited => None,
        Limits::Set => Some((Status::True, reason::LIMITS_SET, String::new())),
        Limits::NotSet(failed) => Some((Status::False, reason::LIMITS_NOT_SET, failed.join("; "))),
    };
    let pressure = pressure.map(|(status, reason, message)| {
        let kind = condition::CONNTRACK_PRESSURE;
        Finding::new(kind, status, reason, message.to_owned())
    });
    let limits = limits.map(|(status, reason, message)| {
        Finding::new(condition::CONNTRACK_CONFIGURED, status, reason, message)
    });
    pressure.into_iter().chain(limits).collect()
}

/// Returns why stale connections in the table degrade the node, if they do.
pub fn degradation(state: &ConntrackState) -> Option<(Reason, String)> {
    let (family, error) = state.uncleaned.first_key_value()?;
    Some((reason::STALE_FLOWS_LEFT, format!("{family}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    use dataplane::Family;

    fn said(state: &ConntrackState) -> Vec<String> {
        let findings = findings(state).into_iter();
        let texts = findings.map(|f| format!("{} {} {}", f.kind, f.status, f.reason.name));
        texts.collect()
    }

    #[test]
    fn nothing_is_reported_before_anything_is_known() {
        assert_eq!(said(&ConntrackState::default()), [""; 0]);
        assert_eq!(degradation(&ConntrackState::default()), None);
    }

    /// A condition without a finding would stay True for ever.
    #[test]
    fn pressure_that_can_no_longer_be_reported_is_unknown() {
        let state = ConntrackState {
            pressure: Pressure::Unknown,
            ..ConntrackState::default()
        };
        assert_eq!(said(&state), ["ConntrackPressure Unknown TableUnreadable"]);
    }

    #[test]
    fn what_could_not_be_written_is_named() {
        let failed = "unable to set /proc/sys/a to 86400: Read-only file system (os error 30)";
        let state = ConntrackState {
            pressure: Pressure::Filling,
            limits: Limits::NotSet(vec![failed.to_owned()]),
            uncleaned: [(Family::Ipv4, "not permitted".to_owned())].into(),
        };
        assert_eq!(
            said(&state),
            [
                "ConntrackPressure True TableFilling",
                "ConntrackConfigured False LimitsNotSet",
            ]
        );
        assert_eq!(findings(&state)[1].message, failed);
        let (reason, message) = degradation(&state).expect("something is left");
        assert_eq!(
            (reason.name, message.as_str()),
            ("StaleFlowsLeft", "IPv4: not permitted")
        );
    }
}
