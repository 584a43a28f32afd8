//! Opening both families of a network namespace in all modes.

use std::path::Path;
use std::sync::{Arc, Mutex};

use backend::{AnyBackend, ChangeListener};
use netlink::{ForeignGenerations, Interruption, OpenError, Socket, SocketPort};
use nftables_model::NotificationListener;
use reconciler::FamilyReconciler;

use super::list::{Entry, LIST};
use super::{IptablesFigures, Variants};

/// Both families of one network namespace, in all modes.
#[derive(Debug)]
pub struct Families {
    /// IPv4 and IPv6.
    pub reconcilers: [FamilyReconciler<AnyBackend>; 2],
    /// The figures about the iptables tables of each.
    pub iptables: [IptablesFigures; 2],
}

/// What the modes of a network namespace share when they are opened.
pub(super) struct Opening<'a> {
    /// Where a mode writes its kernel settings.
    pub(super) sysctls: &'a Path,
    /// The variants of iptables.
    pub(super) variants: Arc<Variants>,
    /// The transactions of other programs, as the listener reports them.
    pub(super) foreign_generations: Arc<Mutex<ForeignGenerations>>,
    /// The figures about the iptables tables of each family.
    pub(super) iptables: [IptablesFigures; 2],
    /// The ports of the sockets that program announced tables.
    own: Vec<SocketPort>,
}

// === impl Opening ===

impl<'a> Opening<'a> {
    fn new(variants: Variants, sysctls: &'a Path) -> Opening<'a> {
        Opening {
            sysctls,
            variants: Arc::new(variants),
            foreign_generations: Arc::default(),
            iptables: Default::default(),
            own: Vec::new(),
        }
    }

    /// Opens a socket for tables whose changes by other programs are reported: changes through this
    /// socket are not.
    pub(super) fn open_socket(&mut self) -> Result<Socket, OpenError> {
        let socket = Socket::open()?;
        self.own.push(socket.port());
        Ok(socket)
    }

    /// Opens every mode.
    fn open(&mut self) -> Result<[FamilyReconciler<AnyBackend>; 2], OpenError> {
        let mut open = |entry: &Entry| {
            let families = (entry.open)(self)?;
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
}

/// Opens both families of this thread's network namespace in all modes, and the nf_tables
/// listener. `variants` sends an iptables listener whenever it opens the iptables tables. Mode ipvs
/// writes its settings below `sysctls`.
pub fn open(
    variants: Variants,
    sysctls: &Path,
) -> Result<(Families, impl ChangeListener + use<>, Interruption), OpenError> {
    let mut opening = Opening::new(variants, sysctls);
    let reconcilers = opening.open()?;
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
    let reconcilers = opening.open()?;
    Ok(Families {
        reconcilers,
        iptables: opening.iptables,
    })
}
