//! The desired state as the rules of its mode, without a kernel.

use backend::{Backend as _, Rendered};
use dataplane::{Dataplane, Family};
use modes::{RulesByMode, detached};
use xtables::Variant;

/// The iptables variant to render for. Only the node itself can tell which of the two it uses. In
/// this one, every rule of a Service has a comment.
pub const RENDERED_VARIANT: Variant = Variant::NfTables;

/// Renders one family of `dataplane`, in its mode.
pub fn render(family: Family, dataplane: &Dataplane) -> RulesByMode {
    let mode = dataplane.config().mode;
    let backend = detached(mode, family, RENDERED_VARIANT);
    RulesByMode::only(mode, backend.render(dataplane, &Rendered::default()))
}
