//! The socket that virtual servers are listed and changed through.

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
const FAMILY: &str = "IPVS";
/// The kernel sends at most 32 KiB of a dump at once; an error carries the message it is about.
const DATAGRAM: usize = 128 << 10;

/// A socket for the virtual servers of one range of marks, in the network namespace it was opened
/// in. What it lists may change between two datagrams of a list, and the kernel does not say so: then
/// a virtual server may be missing from it.
#[derive(Debug)]
pub struct IpvsSocket {
    channel: GenericChannel,
    range: MarkRange,
}

/// Whether the kernel has a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedulerSupport {
    /// It does.
    Present,
    /// It does not, and can load no module that has it.
    Missing,
}

// === impl IpvsSocket ===

impl IpvsSocket {
    /// Opens a socket in the network namespace of this thread. Needs `CAP_NET_ADMIN` there for all
    /// that it does. Loads nothing.
    pub fn open(range: MarkRange) -> Result<IpvsSocket, OpenError> {
        let channel = GenericChannel {
            channel: Channel::open(Subsystem::Generic, DATAGRAM)?,
            sequence: 0,
        };
        Ok(IpvsSocket { channel, range })
    }

    /// The virtual servers that there are. Where IPVS is not loaded there are none, and it stays so.
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

    /// What is behind a virtual server; nothing behind one that is not there.
    pub fn observe_destinations(
        &mut self,
        key: VirtualServerKey,
    ) -> Result<Destinations, QueryError> {
        let mut all = self.observe_destinations_of([key])?;
        Ok(all.pop().map_or_else(Destinations::new, |(_, found)| found))
    }

    /// As [`IpvsSocket::observe_destinations`], of many.
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

    /// The timeouts of the network namespace; `None` where IPVS is not loaded, and it stays so.
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

    /// Changes the timeouts of the network namespace, for the virtual servers of all programs. What the
    /// kernel cannot count, with some 24 days and more, it refuses.
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

    /// Carries out `operations` in order, many a send, and reads the kernel's answer to each. Ends
    /// after the send in which it refuses one: of a send all are tried, of later ones none. Loads IPVS
    /// where the kernel can.
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

    /// Whether virtual servers of `family` may have `scheduler`: makes one that no packet is for, with
    /// the last mark of the range, and removes it. The kernel loads the scheduler's module for that
    /// where it has it.
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
        let has_errno = |error: &CommitError, wanted| match error {
            CommitError::Refused { refused, .. } => refused
                .iter()
                .all(|refused| Errno::from_io_error(&refused.source) == Some(wanted)),
            _ => false,
        };
        // One may be left from a check that was cut short.
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

    /// Sends `count` messages, numbered from `first` on, and gives those that are refused to `refuse`.
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
                // Each is answered once, in order.
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
