//! The virtual servers as they were left in the kernel.
//!
//! IPVS announces no change. The list of virtual servers takes a tenth of the time of a full read,
//! most of which goes to their destinations, so it is compared more often.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dataplane::Family;
use netlink::QueryError;
use netlink::ipvs::{
    CommitError, Destinations, IpvsSocket, Operation, VirtualServer, VirtualServerKey,
    VirtualServers,
};

use super::known_destinations::KnownDestinations;
use super::read_ahead::ReadAhead;

/// The share of a processor for long reads that nothing has asked for: one fiftieth.
const SHARE: u32 = 50;
/// The longest time between two of them: the default of `syncPeriod`.
const LONGEST: Duration = Duration::from_secs(30);
/// The time after which everything is read although checks have not read all destinations ahead: there
/// are very many, or checks are rare.
const OVERDUE: Duration = Duration::from_mins(3);

type Servers = BTreeMap<VirtualServerKey, VirtualServer>;

/// A socket that remembers the virtual servers of its range.
#[derive(Debug)]
pub(super) struct ServerSocket {
    socket: IpvsSocket,
    /// As of the last read of the family and the commits since. None of a family whose last commit
    /// failed, since that may have taken effect in part.
    known: BTreeMap<Family, Servers>,
    destinations: KnownDestinations,
    read_ahead: ReadAhead,
}

/// When a read of many virtual servers with their destinations ended, and how long it took.
#[derive(Debug, Clone, Copy)]
pub(super) struct LongRead {
    ended: Instant,
    took: Duration,
}

// === impl ServerSocket ===

impl ServerSocket {
    pub(super) fn new(socket: IpvsSocket) -> ServerSocket {
        ServerSocket {
            socket,
            known: BTreeMap::new(),
            destinations: KnownDestinations::default(),
            read_ahead: ReadAhead::default(),
        }
    }

    /// Returns the socket for what concerns no virtual server.
    pub(super) fn socket(&mut self) -> &mut IpvsSocket {
        &mut self.socket
    }

    /// Reads the virtual servers of all families. Only those of `family` count as known: another
    /// family still has to see what other programs have changed of its own.
    pub(super) fn observe(&mut self, family: Family) -> Result<VirtualServers, QueryError> {
        let found = self.socket.observe_virtual_servers()?;
        self.destinations.forget_changes(family);
        self.known.insert(family, of(family, &found.own));
        Ok(found)
    }

    /// Reads the virtual servers of all families to compare them with those that are known.
    pub(super) fn observe_beside_known(&mut self) -> Result<VirtualServers, QueryError> {
        self.socket.observe_virtual_servers()
    }

    /// Whether those of `family` in `found` are the known ones.
    pub(super) fn are_known(&self, family: Family, found: &Servers) -> bool {
        self.known.get(&family) == Some(&of(family, found))
    }

    /// Whether another program has changed destinations of this family, as far as the last list shows.
    pub(super) fn observe_changed_destinations(&mut self, family: Family) -> bool {
        self.destinations.observe_changed(family)
    }

    /// Reads some of the destinations of this family, so that the next read of everything need not.
    /// Returns whether it need read none.
    pub(super) fn observe_ahead(&mut self, family: Family) -> Result<bool, QueryError> {
        let known = self.known.get(&family).into_iter().flatten();
        let keys = known.map(|(key, _)| *key);
        let socket = &mut self.socket;
        self.read_ahead
            .observe_some(keys, |some| socket.observe_destinations_of(some))
    }

    /// Forgets what [`ServerSocket::observe_ahead`] has read, as when another program has changed it.
    pub(super) fn forget_read_ahead(&mut self, family: Family) {
        drop(self.read_ahead.take(family));
    }

    /// Returns the destinations of these virtual servers of a family. Reads what was not read ahead.
    pub(super) fn observe_destinations(
        &mut self,
        family: Family,
        servers: impl Iterator<Item = VirtualServerKey>,
    ) -> Result<Vec<(VirtualServerKey, Destinations)>, QueryError> {
        let mut ahead = self.read_ahead.take(family);
        let (mut found, mut unread) = (Vec::new(), Vec::new());
        for key in servers {
            match ahead.remove(&key) {
                Some(destinations) => found.push((key, destinations)),
                None => unread.push(key),
            }
        }
        found.extend(self.socket.observe_destinations_of(unread)?);
        Ok(found)
    }

    /// The same as [`IpvsSocket::commit`].
    pub(super) fn commit(&mut self, operations: &[Operation]) -> Result<(), CommitError> {
        let result = self.socket.commit(operations);
        for operation in operations {
            let key = operation.key();
            self.destinations.forget(&key);
            self.read_ahead.forget(&key);
            if result.is_err() {
                self.known.remove(&key.family);
            } else if let Some(known) = self.known.get_mut(&key.family) {
                follow(known, operation);
            }
        }
        result
    }
}

fn of(family: Family, servers: &Servers) -> Servers {
    let own = servers.iter().filter(|(key, _)| key.family == family);
    own.map(|(key, server)| (*key, server.clone())).collect()
}

/// Applies `operation`, which the kernel has accepted.
fn follow(known: &mut Servers, operation: &Operation) {
    match operation {
        Operation::AddVirtualServer { key, server }
        | Operation::SetVirtualServer { key, server } => drop(known.insert(*key, server.clone())),
        Operation::RemoveVirtualServer { key } => drop(known.remove(key)),
        Operation::AddDestination { .. }
        | Operation::SetDestination { .. }
        | Operation::RemoveDestination { .. } => {}
    }
}

// === impl LongRead ===

/// Whether such a read is due, after the `last` one if there was any.
pub(super) fn is_due(last: Option<LongRead>) -> bool {
    last.is_none_or(|last| last.is_due_again(Instant::now()))
}

impl LongRead {
    /// A read that began then and has just ended.
    pub(super) fn since(began: Instant) -> LongRead {
        LongRead {
            ended: Instant::now(),
            took: began.elapsed(),
        }
    }

    /// The same read after others of the same kind, which took so long together.
    pub(super) fn after(self, others: Duration) -> LongRead {
        LongRead {
            took: self.took.saturating_add(others),
            ..self
        }
    }

    /// Whether another one must not wait any longer.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.ended) >= OVERDUE
    }

    /// Whether another one is due, so that all of them take [`SHARE`] of a processor.
    fn is_due_again(&self, now: Instant) -> bool {
        let pause = self.took.saturating_mul(SHARE).min(LONGEST);
        now.saturating_duration_since(self.ended) >= pause
    }
}

#[cfg(test)]
mod tests {
    use netlink::ipvs::{SchedulerName, VirtualServerFlags};

    use super::*;
    use crate::layout::MARKS;

    #[test]
    fn what_the_kernel_accepts_is_known_until_it_is_removed() {
        let key = VirtualServerKey {
            family: Family::Ipv4,
            mark: MARKS.mark(1).expect("a mark"),
        };
        let named = |name| VirtualServer {
            scheduler: SchedulerName::new(name).expect("a name"),
            flags: VirtualServerFlags::default(),
        };
        let mut known = Servers::new();
        let server = named("rr");
        follow(&mut known, &Operation::AddVirtualServer { key, server });
        let server = named("lc");
        follow(&mut known, &Operation::SetVirtualServer { key, server });
        assert_eq!(known, Servers::from([(key, named("lc"))]));
        follow(&mut known, &Operation::RemoveVirtualServer { key });
        assert_eq!(known, Servers::new());
    }

    #[test]
    fn long_reads_take_a_fiftieth_of_a_processor() {
        let ended = Instant::now();
        let after = |took, seconds| {
            let took = Duration::from_millis(took);
            LongRead { ended, took }.is_due_again(ended + Duration::from_secs(seconds))
        };
        assert!(!after(100, 4) && after(100, 5));
        assert!(!after(1_000, 29) && after(1_000, 30));

        // Checks have read for longer before.
        let took = Duration::from_millis(10);
        let last = LongRead { ended, took }.after(Duration::from_millis(90));
        let after = |seconds| ended + Duration::from_secs(seconds);
        assert!(!last.is_due_again(after(4)) && last.is_due_again(after(5)));
        assert!(!last.is_overdue(after(179)) && last.is_overdue(after(180)));
    }
}
