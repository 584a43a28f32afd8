//! Opening both families of a network namespace in all modes.

use std::path::Path;

use backend::{AnyBackend, ChangeListener};
use netlink::{Interruption, OpenError};
use nftables_model::NotificationListener;
use reconciler::FamilyReconciler;

use super::list::{Entry, LIST};
use super::opening::Opening;
use super::{IptablesFigures, Variants};

/// Both families of one network namespace, in all modes.
#[derive(Debug)]
pub struct Families {
    /// IPv4 and IPv6.
    pub reconcilers: [FamilyReconciler<AnyBackend>; 2],
    /// The figures about the iptables tables of each.
    pub iptables: [IptablesFigures; 2],
}

/// Opens every mode.
fn open_all(opening: &mut Opening<'_>) -> Result<[FamilyReconciler<AnyBackend>; 2], OpenError> {
    let mut open = |entry: &Entry| {
        let families = (entry.open)(opening)?;
        Ok::<_, OpenError>(families.map(|backend| (entry.mode, backend)))
    };
    let [first, others @ ..] = &LIST;
    let [first_ipv4, first_ipv6] = open(first)?;
    let (mut ipv4, mut ipv6) = (Vec::new(), Vec::new());
    for other in others {
        let [other_ipv4, other_ipv6] = open(other)?;
        ipv4.push(other_ipv4);
        ipv6.push(other_ipv6);
    }
    Ok([
        FamilyReconciler::with_modes(first_ipv4, ipv4),
        FamilyReconciler::with_modes(first_ipv6, ipv6),
    ])
}

/// Opens both families of this thread's network namespace in all modes, and the nf_tables
/// listener. `variants` sends an iptables listener whenever it opens the iptables tables. Mode ipvs
/// writes its settings below `sysctls`.
pub fn open(
    variants: Variants,
    sysctls: &Path,
) -> Result<(Families, impl ChangeListener + use<>, Interruption), OpenError> {
    let mut opening = Opening::new(variants, sysctls);
    let reconcilers = open_all(&mut opening)?;
    let announced = LIST.iter().flat_map(|entry| entry.announced).copied();
    let Opening {
        own,
        foreign_generations,
        iptables,
        ..
    } = opening;
    let listener = NotificationListener::open(announced.collect(), own, foreign_generations)?;
    let interruption = listener.interruption();
    let families = Families {
        reconcilers,
        iptables,
    };
    Ok((families, listener, interruption))
}

/// Opens both families without a listener, to remove Signpost's rules.
pub fn open_without_listener(variants: Variants) -> Result<Families, OpenError> {
    let mut opening = Opening::new(variants, Path::new(""));
    let reconcilers = open_all(&mut opening)?;
    Ok(Families {
        reconcilers,
        iptables: opening.iptables,
    })
}
