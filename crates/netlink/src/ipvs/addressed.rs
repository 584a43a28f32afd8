//! The socket that lists and removes virtual servers that their packets' destination selects.

use super::decode::{self, DESTINATIONS, Listed, SERVERS};
use super::socket::{DATAGRAM, FAMILY};
use super::{AddressedServer, Connections, ForeignVirtualServer, MarkRange, encode};
use crate::channel::Channel;
use crate::descriptor::{OpenError, Subsystem};
use crate::generic::{ChangeError, FamilyId, GenericChannel, QueryError, Search};

use address::Family;
use rustix::io::Errno;

/// A range that virtual servers selected by address are not in.
const NO_MARKS: MarkRange = MarkRange::new(2, 1).expect("the low bit is 0");

/// A socket for the virtual servers that their packets' destination selects, in the network
/// namespace in which it was opened. Signpost has none: it removes those of another program, one
/// by one, and the caller knows whose each is. Without IPVS loaded there are none, and no request
/// loads it.
#[derive(Debug)]
pub struct AddressedServerSocket {
    channel: GenericChannel,
    /// Looked up once: a search lists all families, and there is one request for each virtual server.
    family: Option<FamilyId>,
}

// === impl AddressedServerSocket ===

impl AddressedServerSocket {
    /// Opens a socket in the network namespace of this thread. All its requests need
    /// `CAP_NET_ADMIN` there.
    pub fn open() -> Result<AddressedServerSocket, OpenError> {
        let channel = GenericChannel {
            channel: Channel::open(Subsystem::Generic, DATAGRAM)?,
            sequence: 0,
        };
        Ok(AddressedServerSocket {
            channel,
            family: None,
        })
    }

    /// Lists the virtual servers.
    pub fn observe(&mut self) -> Result<Vec<AddressedServer>, QueryError> {
        let counted = self.observe_counted()?.into_iter();
        Ok(counted.map(|(server, _)| server).collect())
    }

    /// Lists the virtual servers, each with the number of connections that it has had, including
    /// those that have ended: 0 where the kernel does not count, with sysctl `run_estimation` 0.
    pub fn observe_counted(&mut self) -> Result<Vec<(AddressedServer, u64)>, QueryError> {
        let Some(family) = self.find()? else {
            return Ok(Vec::new());
        };
        let listed = self.channel.dump(
            SERVERS,
            family.0,
            |sequence| encode::list_services(family, sequence),
            |message| {
                let server = decode::virtual_server(message, NO_MARKS)?;
                Ok((server, decode::connections_ever(message)))
            },
        )?;
        let addressed = listed
            .into_iter()
            .filter_map(|(listed, ever)| match listed {
                Listed::Foreign(ForeignVirtualServer::Addressed(server)) => Some((server, ever)),
                Listed::Own(..) | Listed::Foreign(ForeignVirtualServer::Mark { .. }) => None,
            });
        Ok(addressed.collect())
    }

    /// Counts the connections of a virtual server; none if it does not exist.
    pub fn observe_connections(
        &mut self,
        server: AddressedServer,
    ) -> Result<Connections, QueryError> {
        let mut sum = Connections::default();
        let Some(family) = self.find()? else {
            return Ok(sum);
        };
        let listed = self.channel.dump(
            DESTINATIONS,
            family.0,
            |sequence| encode::list_destinations_of_addressed(server, family, sequence),
            |message| decode::destination(message, Family::of(server.address.ip())),
        )?;
        for (_, (_, connections)) in listed {
            sum.active = sum.active.saturating_add(connections.active);
            sum.inactive = sum.inactive.saturating_add(connections.inactive);
        }
        Ok(sum)
    }

    /// Removes a virtual server and its destinations. Its connections end. Succeeds if it does not
    /// exist.
    pub fn commit_removal(&mut self, server: AddressedServer) -> Result<(), ChangeError> {
        let change = || format!("remove virtual server {server}");
        let family = self.find().map_err(|error| match error {
            QueryError::Socket { step, source } => ChangeError::Socket { step, source },
            other => ChangeError::Refused {
                change: change(),
                source: std::io::Error::other(other),
            },
        })?;
        let Some(family) = family else {
            return Ok(());
        };
        self.channel.change(change, &[Errno::SRCH], |sequence| {
            encode::remove_addressed(server, family, sequence)
        })
    }

    fn find(&mut self) -> Result<Option<FamilyId>, QueryError> {
        if self.family.is_none() {
            self.family = self.channel.find_family(FAMILY, Search::Loaded)?;
        }
        Ok(self.family)
    }
}
