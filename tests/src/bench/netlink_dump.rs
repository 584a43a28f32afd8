//! nf_tables as bytes: finds the addresses in any program's tables, in any form.
//!
//! Attributes are aligned to four bytes, and so is each field of a key, a value or a rule's
//! constants. An IPv4 address is therefore one aligned word in a map element, in a comparison and
//! in the payload of an iptables target, so that no rule needs to be parsed.
//!
//! Sources: `include/uapi/linux/netlink.h`, `include/uapi/linux/netfilter/nfnetlink.h` and
//! `include/uapi/linux/netfilter/nf_tables.h`.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with,
    sockopt,
};

/// `NFNLGRP_NFTABLES` as a bit of `nl_groups`.
const GROUP: u32 = 1 << 6;
/// The size of the receive buffer: room for all notifications of the largest measured transaction.
const RECEIVE_BUFFER: usize = 512 << 20;
/// The receive size. The kernel sends at most 32 KiB of a dump at once.
const DATAGRAM: usize = 128 << 10;
/// Length of `struct nlmsghdr`, and of `struct nfgenmsg` after it.
const HEADERS: [usize; 2] = [16, 4];
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
/// `NLMSG_ERROR` and `NLMSG_DONE`.
const ENDS: [u16; 2] = [2, 3];
/// `NFNL_SUBSYS_NFTABLES`, the upper byte of a message's type.
const SUBSYSTEM: u16 = 10 << 8;
/// `NFT_MSG_GETRULE`.
const GET_RULE: u16 = SUBSYSTEM | 7;
/// `NFT_MSG_NEWRULE`.
const NEW_RULE: u16 = SUBSYSTEM | 6;
/// `NFT_MSG_NEWSETELEM`.
const NEW_ELEMENTS: u16 = SUBSYSTEM | 12;
/// `NFT_MSG_GETSETELEM`.
const GET_ELEMENTS: u16 = SUBSYSTEM | 13;
/// `NFT_MSG_NEWGEN`, the last notification of each transaction.
const NEW_GENERATION: u16 = SUBSYSTEM | 15;
/// `NFPROTO_IPV4`.
const IPV4: u8 = 2;
/// The name of the table, in each message.
const TABLE: u16 = 1;
/// `NFTA_SET_ELEM_LIST_SET`.
const SET: u16 = 2;

/// The part of a table to list.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Listed {
    /// The elements of this set or map.
    Elements(&'static str),
    /// The rules of all chains.
    Rules,
}

/// A message of a dump or a notification.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message<'a> {
    kind: u16,
    payload: &'a [u8],
}

/// A netlink socket in one network namespace.
#[derive(Debug)]
pub(crate) struct NetlinkSocket {
    descriptor: OwnedFd,
    datagram: Vec<u8>,
    sequence: u32,
}

/// The result of waiting for a datagram.
#[derive(Debug)]
pub(super) enum Received<'a> {
    /// Messages.
    Datagram(Messages<'a>),
    /// Nothing arrived within the time.
    Nothing,
    /// Messages were lost: more arrived than the socket could hold.
    Overrun,
}

/// The messages of one datagram.
#[derive(Debug)]
pub(super) struct Messages<'a>(&'a [u8]);

// === impl NetlinkSocket ===

impl NetlinkSocket {
    /// Opens a socket for requests in the network namespace of this thread.
    pub(crate) fn open() -> io::Result<NetlinkSocket> {
        NetlinkSocket::open_in_groups(0)
    }

    /// Opens a socket that receives a notification of every transaction in the network namespace of
    /// this thread.
    pub(super) fn join() -> io::Result<NetlinkSocket> {
        NetlinkSocket::open_in_groups(GROUP)
    }

    fn open_in_groups(groups: u32) -> io::Result<NetlinkSocket> {
        let flags = SocketFlags::CLOEXEC;
        let family = AddressFamily::NETLINK;
        let descriptor = socket_with(family, SocketType::RAW, flags, Some(NETFILTER))?;
        // Without CAP_NET_ADMIN in the initial user namespace, the machine's limit applies.
        let _ = sockopt::set_socket_recv_buffer_size_force(&descriptor, RECEIVE_BUFFER)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&descriptor, RECEIVE_BUFFER));
        bind(&descriptor, &SocketAddrNetlink::new(0, groups))?;
        Ok(NetlinkSocket {
            descriptor,
            datagram: vec![0; DATAGRAM],
            sequence: 0,
        })
    }

    /// Waits for the next datagram.
    pub(super) fn receive(&mut self, wait: Duration) -> io::Result<Received<'_>> {
        let wait = Timespec::try_from(wait).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut ready = [PollFd::new(&self.descriptor, PollFlags::IN)];
        match poll(&mut ready, Some(&wait)) {
            Err(Errno::INTR) | Ok(0) => return Ok(Received::Nothing),
            Err(errno) => return Err(errno.into()),
            Ok(_) => {}
        }
        match recv(&self.descriptor, &mut self.datagram, RecvFlags::DONTWAIT) {
            Err(Errno::INTR | Errno::AGAIN) => Ok(Received::Nothing),
            Err(Errno::NOBUFS) => Ok(Received::Overrun),
            Err(errno) => Err(errno.into()),
            Ok((_, length)) => Ok(Received::Datagram(Messages(&self.datagram[..length]))),
        }
    }

    /// Calls `each` with every word in the content of `table` of family `ip`. A table or set that
    /// does not exist is empty; concurrent changes may be included or not.
    pub(crate) fn dump(
        &mut self,
        table: &str,
        listed: Listed,
        mut each: impl FnMut(u32),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = dump_request(table, listed, self.sequence);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.descriptor, &request, SendFlags::empty(), &kernel)?;
        loop {
            // A dump that takes this long means that the kernel hangs.
            match self.receive(Duration::from_secs(60))? {
                Received::Nothing => return Err(io::ErrorKind::TimedOut.into()),
                Received::Overrun => {}
                Received::Datagram(messages) => {
                    for message in messages {
                        match message.is_end() {
                            true => return Ok(()),
                            false => message.words().for_each(&mut each),
                        }
                    }
                }
            }
        }
    }
}

fn dump_request(table: &str, listed: Listed, sequence: u32) -> Vec<u8> {
    let mut attributes = Vec::new();
    string(&mut attributes, TABLE, table);
    let kind = match listed {
        Listed::Elements(set) => {
            string(&mut attributes, SET, set);
            GET_ELEMENTS
        }
        Listed::Rules => GET_RULE,
    };
    let length = HEADERS.iter().sum::<usize>() + attributes.len();
    let length = u32::try_from(length).expect("names are short");
    let mut request = Vec::new();
    request.extend(length.to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(DUMP.to_ne_bytes());
    request.extend(sequence.to_ne_bytes());
    request.extend(0u32.to_ne_bytes());
    request.extend([IPV4, 0, 0, 0]);
    request.extend(attributes);
    request
}

fn string(attributes: &mut Vec<u8>, kind: u16, value: &str) {
    let length = u16::try_from(value.len() + 5).expect("names are short");
    attributes.extend(length.to_ne_bytes());
    attributes.extend(kind.to_ne_bytes());
    attributes.extend(value.as_bytes());
    attributes.push(0);
    attributes.resize(attributes.len().next_multiple_of(4), 0);
}

// === impl Messages ===

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let length = u32::from_ne_bytes(self.0.get(..4)?.try_into().ok()?);
        let length = usize::try_from(length).ok()?;
        let message = Message {
            kind: u16::from_ne_bytes(self.0.get(4..6)?.try_into().ok()?),
            payload: self.0.get(HEADERS[0]..length)?,
        };
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(message)
    }
}

// === impl Message ===

impl<'a> Message<'a> {
    /// Whether the notification ends a transaction.
    pub(super) fn ends_transaction(self) -> bool {
        self.kind == NEW_GENERATION
    }

    /// Whether the message reports added rules or elements.
    pub(super) fn adds(self) -> bool {
        matches!(self.kind, NEW_RULE | NEW_ELEMENTS)
    }

    /// Returns its aligned words in network byte order, all possible addresses among them.
    pub(super) fn words(self) -> impl Iterator<Item = u32> + 'a {
        let (words, _) = self.payload.as_chunks::<4>();
        words.iter().map(|word| u32::from_be_bytes(*word))
    }

    fn is_end(self) -> bool {
        ENDS.contains(&self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_back_as_one_message() {
        let request = dump_request("signpost", Listed::Elements("services"), 7);
        let messages: Vec<Message<'_>> = Messages(&request).collect();
        assert_eq!(messages.len(), 1);
        assert_eq!(messages[0].kind, GET_ELEMENTS);
        assert!(!messages[0].adds() && !messages[0].is_end());
        let text = u32::from_be_bytes(*b"serv");
        assert!(messages[0].words().any(|word| word == text));
    }

    #[test]
    fn half_a_message_is_none() {
        let request = dump_request("signpost", Listed::Rules, 1);
        assert_eq!(Messages(&request[..request.len() - 1]).count(), 0);
    }
}
