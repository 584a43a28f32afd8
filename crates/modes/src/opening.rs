//! What modes share while both families of a network namespace are opened.

use std::path::Path;
use std::sync::{Arc, Mutex};

use netlink::{ForeignGenerations, OpenError, Socket, SocketPort};

use super::{IptablesFigures, Variants};

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
    pub(super) own: Vec<SocketPort>,
}

// === impl Opening ===

impl<'a> Opening<'a> {
    pub(super) fn new(variants: Variants, sysctls: &'a Path) -> Opening<'a> {
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
}
