//! Which changes must not wait.

use dataplane::Dataplane;

use crate::Urgency;

/// Urgent if some frontend of `before` still exists in `after` and has lost an endpoint: packets go
/// to that endpoint until the change is programmed. The removal of a whole frontend is not urgent,
/// because its clients get no answer either way. The cost is proportional to the difference.
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
