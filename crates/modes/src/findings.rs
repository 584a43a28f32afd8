//! What a node reports about the mode in use. Pure.

use std::collections::BTreeMap;

use backend_iptables::PREFIX;
use crds::condition::reason;
use crds::condition::{self, Finding, Status};
use crds::node_proxy::{IptablesStatus, IptablesVariant};
use crds::profile::mode::Mode as ProfileMode;
use crds::unsupported::UnsupportedField;
use dataplane::{Config, Family, Mode};
use xtables::Variant;

use super::profile_mode::to_profile;
use super::{ModeState, VariantScan};

/// Returns the mode in force. If the families differ, as they do while one cannot switch, returns
/// the mode of the first.
pub fn mode(modes: &BTreeMap<Family, ModeState>) -> Option<ProfileMode> {
    let mut carriers = modes.values().filter_map(|family| family.active_mode);
    carriers.next().map(to_profile)
}

/// Returns the status of iptables while iptables is active in any family.
pub fn iptables(modes: &BTreeMap<Family, ModeState>) -> Option<IptablesStatus> {
    let variant = used_variant(modes)?;
    let waits = modes.values().map(|family| family.longest_lock_wait);
    Some(IptablesStatus {
        variant: match variant {
            Variant::NfTables => IptablesVariant::NfTables,
            Variant::Legacy => IptablesVariant::Legacy,
        },
        longest_lock_wait: waits.max().unwrap_or_default().into(),
    })
}

/// Returns whether other programs use both variants of iptables; `None` if no scan has run, as in
/// other modes.
pub fn split(scan: &VariantScan, modes: &BTreeMap<Family, ModeState>) -> Option<Finding> {
    let (status, reason, message) = match scan {
        VariantScan::None => return None,
        VariantScan::Seen(found) => {
            let choice = found.choose();
            let used = used_variant(modes).unwrap_or(choice.variant);
            match choice.split {
                Some(split) => (
                    Status::True,
                    reason::BOTH_VARIANTS_IN_USE,
                    format!("{split}; the chains {PREFIX}* are in variant {used}"),
                ),
                None => (
                    Status::False,
                    reason::ONE_VARIANT_IN_USE,
                    format!("the chains {PREFIX}* are in variant {used}"),
                ),
            }
        }
        VariantScan::Refused(error) => {
            let used = used_variant(modes).map_or_else(
                || "no variant is used yet".to_owned(),
                |used| format!("the chains {PREFIX}* are in variant {used}"),
            );
            let message = format!("{used}; {error}");
            (Status::Unknown, reason::VARIANTS_UNREADABLE, message)
        }
    };
    Some(Finding::new(
        condition::IPTABLES_SPLIT,
        status,
        reason,
        message,
    ))
}

/// Returns the variant of iptables in which Signpost has its chains, or would have them; `None` if none
/// is in use and no scan has run, as in other modes.
pub fn variant(scan: &VariantScan, modes: &BTreeMap<Family, ModeState>) -> Option<Variant> {
    let chosen = match scan {
        VariantScan::Seen(found) => Some(found.choose().variant),
        VariantScan::None | VariantScan::Refused(_) => None,
    };
    used_variant(modes).or(chosen)
}

/// Reports that this node cannot use the desired mode.
pub fn replaced(desired: Mode, modes: &BTreeMap<Family, ModeState>) -> Option<UnsupportedField> {
    let (family, (instead, error)) = modes
        .iter()
        .find_map(|(family, state)| Some((family, state.replacement(desired)?)))?;
    Some(UnsupportedField {
        field: "mode".to_owned(),
        reason: reason::MODE_NOT_HONOURED,
        message: format!(
            "mode {desired} cannot be used on this node: {instead} is used for {family} instead: {error}"
        ),
    })
}

/// Reports the rules of each mode that are still in the kernel and no longer updated.
pub fn left_behind(modes: &BTreeMap<Family, ModeState>) -> impl Iterator<Item = UnsupportedField> {
    modes.iter().flat_map(|(family, state)| {
        state.outgoing.iter().filter_map(move |outgoing| {
            let error = state.unusable.get(outgoing)?;
            Some(UnsupportedField {
                field: "mode".to_owned(),
                reason: reason::MODE_NOT_HONOURED,
                message: format!(
                    "rules of mode {outgoing} are still in the kernel for {family}, and still \
                     forward to former endpoints of Services that have none any more: {error}"
                ),
            })
        })
    })
}

/// Describes the modes that serve until another one is complete, and that the kernel does not let
/// follow changes meanwhile.
pub fn stalled(modes: &BTreeMap<Family, ModeState>) -> Option<String> {
    let stalled = modes.iter().flat_map(|(family, state)| {
        state.stalled.iter().map(move |(mode, error)| {
            format!(
                "changes do not reach the rules of mode {mode}, which serve {family} until the \
                 next mode is complete: {error}"
            )
        })
    });
    let all: Vec<String> = stalled.collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Reports how this node limits the active mode, and what limits both families once.
pub fn limitations(modes: &BTreeMap<Family, ModeState>) -> Option<UnsupportedField> {
    let mut limitations: Vec<&str> = Vec::new();
    for limitation in modes.values().flat_map(|state| &state.limitations) {
        if !limitations.contains(&limitation.as_str()) {
            limitations.push(limitation);
        }
    }
    (!limitations.is_empty()).then(|| UnsupportedField {
        field: "mode".to_owned(),
        reason: reason::FIELD_NOT_HONOURED,
        message: limitations.join("; "),
    })
}

/// Reports that the profile selects a scheduler that its mode does not have.
pub fn scheduler(config: &Config) -> Option<UnsupportedField> {
    let (mode, asked) = (config.mode, config.scheduler);
    let used = asked.replacement_in(mode)?;
    Some(UnsupportedField {
        field: "loadBalancer.scheduler".to_owned(),
        reason: reason::FIELD_NOT_HONOURED,
        message: format!("mode {mode} does not have scheduler {asked}: {used} is used instead"),
    })
}

fn used_variant(modes: &BTreeMap<Family, ModeState>) -> Option<Variant> {
    let mut used = modes.values();
    used.find_map(|family| {
        family
            .variant
            .filter(|_| family.active_mode == Some(Mode::Iptables))
    })
}
