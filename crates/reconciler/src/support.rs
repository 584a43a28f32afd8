//! Whether the kernel supports what Signpost needs, per family. A family that the kernel does not
//! support is ignored, and the node is served in the other one. kube-proxy does not even start a
//! proxier for such a family.

use backend::Recovery;

use crate::FamilyStatus;

/// Whether the kernel supports a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Support {
    /// No error has shown otherwise.
    #[default]
    Assumed,
    /// The kernel lacks what this family needs.
    Lacking,
}

/// Derives the support from the status of `family`. A family that was programmed before and now
/// fails is late, not unsupported.
pub fn support(family: &FamilyStatus) -> Support {
    let failing = family.failing.as_ref();
    let is_halted = failing.is_some_and(|failing| failing.recovery == Recovery::Halt);
    match is_halted && family.programmed_since.is_none() {
        true => Support::Lacking,
        false => Support::Assumed,
    }
}

/// Returns the families that the node does without: the kernel does not support them, and another
/// family is programmed.
pub fn done_without(families: &[FamilyStatus]) -> impl Iterator<Item = &FamilyStatus> {
    let is_served = families
        .iter()
        .any(|family| family.programmed_since.is_some());
    let lacking = move |family: &&FamilyStatus| is_served && support(family) == Support::Lacking;
    families.iter().filter(lacking)
}
