//! Which changes may not wait.

use dataplane::Dataplane;

use crate::Urgency;

/// Urgent when some frontend of `before` still exists in `after` and has lost an endpoint: packets
/// are sent there until the change arrives. A frontend that is gone as a whole is not urgent:
/// whoever still addresses it gets nothing either way. Costs what differs.
pub(crate) fn urgency(before: &Dataplane, after: &Dataplane) -> Urgency {
    let differences = before.frontends().differences(after.frontends());
    let urgent = differences.into_iter().any(|difference| {
        let (Some(before), Some(after)) = (difference.before, difference.after) else {
            return false;
        };
        let ((_, before), (_, after)) = (before.winner(), after.winner());
        before.loses_endpoint(after)
    });
    if urgent {
        Urgency::Urgent
    } else {
        Urgency::Ordinary
    }
}
