//! Whether the kernel can do what is asked of it in a family. As with kube-proxy, which does not even start
//! a proxier for it, a family that the kernel lacks does not count: the node is served in the other.

use backend::Recovery;
use dataplane::{Dataplane, Family};
use reconciler::FamilyStatus;

/// What is known of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Support {
    /// Nothing says otherwise.
    #[default]
    Assumed,
    /// It lacks what this family needs.
    Lacking,
}

/// What `family` says of it. One that was programmed before and may no longer be is late, not lacking.
pub(crate) fn support(family: &FamilyStatus) -> Support {
    let failing = family.failing.as_ref();
    let is_halted = failing.is_some_and(|failing| failing.recovery == Recovery::Halt);
    match is_halted && family.programmed_since.is_none() {
        true => Support::Lacking,
        false => Support::Assumed,
    }
}

/// Those of `families` that the node goes without: the kernel lacks them, and has programmed the other one.
pub(crate) fn done_without(families: &[FamilyStatus]) -> impl Iterator<Item = &FamilyStatus> {
    let is_served = families
        .iter()
        .any(|family| family.programmed_since.is_some());
    let lacking = move |family: &&FamilyStatus| is_served && support(family) == Support::Lacking;
    families.iter().filter(lacking)
}

/// Whether the node itself is in `family`: without an address, no client reaches anything through it.
pub(crate) fn has_address(dataplane: &Dataplane, family: Family) -> bool {
    let node = dataplane.node();
    match family {
        Family::Ipv4 => node.ipv4.is_some(),
        Family::Ipv6 => node.ipv6.is_some(),
    }
}
