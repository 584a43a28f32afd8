//! The desired state as the rules of its mechanism, without a kernel.

use backend::{Backend as _, Rendered};
use dataplane::{Dataplane, Family};
use modes::{RulesByMechanism, detached};
use xtables::Variant;

/// The iptables variant to render for. Only the node itself can tell which of the two it uses. In
/// this one, every rule of a Service has a comment.
pub const RENDERED_VARIANT: Variant = Variant::NfTables;

/// Renders one family of `dataplane`, in its mechanism.
pub fn render(family: Family, dataplane: &Dataplane) -> RulesByMechanism {
    let mechanism = dataplane.config().mechanism;
    let backend = detached(mechanism, family, RENDERED_VARIANT);
    RulesByMechanism::only(mechanism, backend.render(dataplane, &Rendered::default()))
}
