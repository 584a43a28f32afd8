//! The socket that lists and changes virtual servers.

use super::decode::{self, DESTINATIONS, Listed, SERVERS, TIMEOUTS};
use super::encode;
use super::error::{CommitError, RefusedOperation};
use super::{
    Destinations, MarkRange, Operation, SchedulerName, Timeouts, VirtualServer, VirtualServerFlags,
    VirtualServerKey, VirtualServers,
};
use crate::channel::Channel;
use crate::descriptor::{OpenError, Subsystem};
use crate::generic::{FamilyId, GenericChannel, QueryError, Search};
use crate::wire::{ERROR, Messages};
use address::Family;

use rustix::io::Errno;

/// `IPVS_GENL_NAME`.
pub(super) const FAMILY: &str = "IPVS";
/// The kernel sends at most 32 KiB of a dump at once; an error includes the message that caused it.
pub(super) const DATAGRAM: usize = 128 << 10;

/// A socket for the virtual servers of one range of marks, in the network namespace in which it was
/// opened. Virtual servers may change between two datagrams of a dump without a sign from the
/// kernel; then the list may lack one.
#[derive(Debug)]
pub struct IpvsSocket {
    channel: GenericChannel,
    range: MarkRange,
}

/// Whether the kernel supports a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedulerSupport {
    /// The kernel has it.
    Present,
    /// The kernel does not have it and cannot load a module for it.
    Missing,
}

// === impl IpvsSocket ===

impl IpvsSocket {
    /// Opens a socket in the network namespace of this thread. All its requests need
    /// `CAP_NET_ADMIN` there. Loads no module.
    pub fn open(range: MarkRange) -> Result<IpvsSocket, OpenError> {
        let channel = GenericChannel {
            channel: Channel::open(Subsystem::Generic, DATAGRAM)?,
            sequence: 0,
        };
        Ok(IpvsSocket { channel, range })
    }

    /// Lists the virtual servers. Without IPVS loaded there are none, and this does not load it.
    pub fn observe_virtual_servers(&mut self) -> Result<VirtualServers, QueryError> {
        let mut servers = VirtualServers::default();
        let Some(family) = self.channel.find_family(FAMILY, Search::Loaded)? else {
            return Ok(servers);
        };
        let range = self.range;
        let listed = self.channel.dump(
            SERVERS,
            family.0,
            |sequence| encode::list_services(family, sequence),
            |message| decode::virtual_server(message, range),
        )?;
        for listed in listed {
            match listed {
                Listed::Own(key, server) => {
                    servers.own.insert(key, server);
                }
                Listed::Foreign(foreign) => servers.foreign.push(foreign),
            }
        }
        Ok(servers)
    }

    /// Lists the destinations of a virtual server; none if it does not exist.
    pub fn observe_destinations(
        &mut self,
        key: VirtualServerKey,
    ) -> Result<Destinations, QueryError> {
        let mut all = self.observe_destinations_of([key])?;
        Ok(all.pop().map_or_else(Destinations::new, |(_, found)| found))
    }

    /// Like [`IpvsSocket::observe_destinations`], for many virtual servers.
    pub fn observe_destinations_of(
        &mut self,
        keys: impl IntoIterator<Item = VirtualServerKey>,
    ) -> Result<Vec<(VirtualServerKey, Destinations)>, QueryError> {
        let Some(family) = self.channel.find_family(FAMILY, Search::Loaded)? else {
            return Ok(keys
                .into_iter()
                .map(|key| (key, Destinations::new()))
                .collect());
        };
        let mut list = |key: VirtualServerKey| {
            let listed = self.channel.dump(
                DESTINATIONS,
                family.0,
                |sequence| encode::list_destinations(key, family, sequence),
                |message| decode::destination(message, key.family),
            )?;
            Ok((key, listed.into_iter().collect()))
        };
        keys.into_iter().map(&mut list).collect()
    }

    /// Reads the timeouts of the network namespace; `None` without IPVS loaded, and this does not
    /// load it.
    pub fn observe_timeouts(&mut self) -> Result<Option<Timeouts>, QueryError> {
        let Some(family) = self.channel.find_family(FAMILY, Search::Loaded)? else {
            return Ok(None);
        };
        let encode = |sequence| encode::get_timeouts(family, sequence);
        let timeouts = self
            .channel
            .ask(TIMEOUTS, family.0, encode, decode::timeouts)?;
        Ok(Some(timeouts))
    }

    /// Changes the timeouts of the network namespace, for the virtual servers of all programs. The
    /// kernel refuses values that it cannot represent: some 24 days and more.
    pub fn commit_timeouts(&mut self, timeouts: Timeouts) -> Result<(), CommitError> {
        let family = self.find()?;
        let sequence = self.channel.next_sequence();
        let request = encode::set_timeouts(timeouts, family, sequence);
        let mut outcome = Ok(());
        self.exchange(&request, sequence, 1, |_, source| {
            let what = TIMEOUTS;
            outcome = Err(CommitError::RefusedSetting { what, source });
        })?;
        outcome
    }

    /// Performs `operations` in order, many in each send, and reads the kernel's reply to each.
    /// Stops after the send in which the kernel refuses one: it has tried all operations of that
    /// send and none of later ones. Loads IPVS if the kernel can.
    pub fn commit(&mut self, operations: &[Operation]) -> Result<(), CommitError> {
        let is_foreign =
            |operation: &&Operation| !self.range.contains(operation.key().mark.value());
        if let Some(operation) = operations.iter().find(is_foreign) {
            return Err(CommitError::Unreserved(Box::new(operation.clone())));
        }
        if operations.is_empty() {
            return Ok(());
        }
        let family = self.find()?;
        let mut answered = 0;
        while answered < operations.len() {
            let first = self.channel.next_sequence();
            let (bytes, count) = encode::batch(&operations[answered..], family, first);
            let mut refused = Vec::new();
            self.exchange(&bytes, first, count, |number, source| {
                let index = answered + number;
                refused.push(RefusedOperation {
                    index,
                    operation: operations[index].clone(),
                    source,
                });
            })?;
            answered += count;
            if !refused.is_empty() {
                return Err(CommitError::Refused { refused, answered });
            }
        }
        Ok(())
    }

    /// Checks whether virtual servers of `family` can use `scheduler`: creates a virtual server
    /// that no packet matches, with the last mark of the range, and removes it. The kernel loads
    /// the scheduler's module if it has one.
    pub fn check_scheduler(
        &mut self,
        family: Family,
        scheduler: &SchedulerName,
    ) -> Result<SchedulerSupport, CommitError> {
        let key = VirtualServerKey {
            family,
            mark: self.range.last(),
        };
        let server = VirtualServer {
            scheduler: scheduler.clone(),
            flags: VirtualServerFlags::default(),
        };
        let has_errno = |error: &CommitError, desired| match error {
            CommitError::Refused { refused, .. } => refused
                .iter()
                .all(|refused| Errno::from_io_error(&refused.source) == Some(desired)),
            _ => false,
        };
        // An interrupted check may have left one.
        match self.commit(&[Operation::RemoveVirtualServer { key }]) {
            Err(error) if !has_errno(&error, Errno::SRCH) => return Err(error),
            _ => {}
        }
        match self.commit(&[Operation::AddVirtualServer { key, server }]) {
            Err(error) if has_errno(&error, Errno::NOENT) => Ok(SchedulerSupport::Missing),
            Err(error) => Err(error),
            Ok(()) => {
                self.commit(&[Operation::RemoveVirtualServer { key }])?;
                Ok(SchedulerSupport::Present)
            }
        }
    }

    fn find(&mut self) -> Result<FamilyId, CommitError> {
        let found = self.channel.find_family(FAMILY, Search::Loadable);
        found
            .map_err(CommitError::Find)?
            .ok_or(CommitError::Missing)
    }

    /// Sends `count` messages with sequence numbers from `first` on, and calls `refuse` for each
    /// that the kernel refuses.
    fn exchange(
        &mut self,
        bytes: &[u8],
        first: u32,
        count: usize,
        mut refuse: impl FnMut(usize, std::io::Error),
    ) -> Result<(), CommitError> {
        let failed = |step| move |source| CommitError::Socket { step, source };
        let channel = &mut self.channel;
        let count = u32::try_from(count).expect("a batch is far below 4 billion messages");
        channel.sequence = first.wrapping_add(count - 1);
        channel.channel.send(bytes).map_err(failed("send to"))?;
        let mut next = 0;
        while next < count {
            let datagram = channel.channel.receive().map_err(failed("receive from"))?;
            for message in Messages::parse(datagram).filter(|m| m.kind == ERROR) {
                let number = message.sequence.wrapping_sub(first);
                // The kernel answers each message once, in order.
                if number != next || next == count {
                    continue;
                }
                next += 1;
                if message.errno() != 0 {
                    let source = std::io::Error::from_raw_os_error(message.errno());
                    let index = usize::try_from(number).expect("a batch fits in memory");
                    refuse(index, source);
                }
            }
        }
        Ok(())
    }
}
