//! Mode ipvs of one node: which addresses its virtual servers and Signpost's map of marks contain.
//!
//! IPVS sends no notifications, so the virtual servers of both families must be polled, in
//! `/proc/net/ip_vs`, which the kernel writes faster than a dump over netlink.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use netlink::Socket;

use super::Contender;
use super::netlink_dump::{Listed, NetlinkSocket};
use crate::network::Namespace;

/// The file of the calling thread's network namespace.
const FILE: &str = "/proc/thread-self/net/ip_vs";
/// The map from Service addresses to the marks of virtual servers, which Signpost has.
const MARKS: (&str, &str) = ("signpost-ipvs", "services");
/// The size of one read.
const PART: usize = 1 << 20;

/// The virtual servers of one node.
#[derive(Debug)]
pub(super) struct VirtualServerTable {
    node: Namespace,
    /// `None` before the kernel has the file.
    file: Option<File>,
    marks: Option<Marks>,
    /// As of the last look, sorted.
    addresses: Vec<u32>,
}

/// Signpost's map of marks. It changes with the generation of nf_tables.
#[derive(Debug)]
struct Marks {
    socket: Socket,
    dump: NetlinkSocket,
    generation: Option<u32>,
    addresses: Vec<u32>,
}

// === impl VirtualServerTable ===

impl VirtualServerTable {
    /// Opens the virtual servers on `node`, and `contender`'s map of marks if it has one.
    pub(super) fn open(node: &Namespace, contender: Contender) -> Result<VirtualServerTable> {
        let marks = match contender {
            Contender::KubeProxy => None,
            Contender::Signpost => Some(node.enter(Marks::open)??),
        };
        Ok(VirtualServerTable {
            node: node.clone(),
            file: None,
            marks,
            addresses: Vec::new(),
        })
    }

    /// Whether an address came or went since the last call.
    pub(super) fn has_changed(&mut self) -> Result<bool> {
        if self.file.is_none() {
            self.file = match self.node.enter(|| File::open(FILE))? {
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                opened => Some(opened.context("failed to open the virtual servers")?),
            };
        }
        let mut addresses = match &self.file {
            None => Vec::new(),
            Some(file) => parse(&read(file)?),
        };
        if let Some(marks) = &mut self.marks {
            addresses.extend(marks.observe()?);
        }
        addresses.sort_unstable();
        let changed = addresses != self.addresses;
        self.addresses = addresses;
        Ok(changed)
    }

    /// Returns every address of the last look, with duplicates.
    pub(super) fn addresses(&self) -> &[u32] {
        &self.addresses
    }

    /// Returns which of these addresses the last look found.
    pub(super) fn among(&self, among: &BTreeSet<Ipv4Addr>) -> BTreeSet<Ipv4Addr> {
        let is_there = |address: &&Ipv4Addr| {
            let address = u32::from(**address);
            self.addresses.binary_search(&address).is_ok()
        };
        among.iter().filter(is_there).copied().collect()
    }
}

// === impl Marks ===

impl Marks {
    fn open() -> Result<Marks> {
        Ok(Marks {
            socket: Socket::open()?,
            dump: NetlinkSocket::open()?,
            generation: None,
            addresses: Vec::new(),
        })
    }

    fn observe(&mut self) -> Result<&[u32]> {
        let generation = Some(self.socket.observe_generation()?);
        if generation != self.generation {
            self.addresses.clear();
            let (table, map) = MARKS;
            let addresses = &mut self.addresses;
            self.dump
                .dump(table, Listed::Elements(map), |word| addresses.push(word))
                .context("failed to list the map of marks")?;
            self.generation = generation;
        }
        Ok(&self.addresses)
    }
}

/// Reads the whole file from its beginning.
fn read(file: &File) -> Result<Vec<u8>> {
    let (mut text, mut length) = (vec![0; PART], 0);
    loop {
        let at = u64::try_from(length)?;
        match file.read_at(&mut text[length..], at)? {
            0 => break,
            count => length += count,
        }
        if length == text.len() {
            text.resize(length + PART, 0);
        }
    }
    text.truncate(length);
    Ok(text)
}

/// Returns the IPv4 addresses of virtual servers and destinations (`ip_vs_info_seq_show` in
/// net/netfilter/ipvs/ip_vs_ctl.c): eight hexadecimal digits before a colon. Marks have no colon.
fn parse(text: &[u8]) -> Vec<u32> {
    let words = text.split(u8::is_ascii_whitespace);
    let addresses = words.filter_map(|word| {
        let (address, port) = word.split_at_checked(8)?;
        if port.first() != Some(&b':') {
            return None;
        }
        u32::from_str_radix(std::str::from_utf8(address).ok()?, 16).ok()
    });
    addresses.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_marks_are_not() {
        let text = b"IP Virtual Server version 1.2.1 (size=4096)\n\
            Prot LocalAddress:Port Scheduler Flags\n\
            \x20 -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n\
            TCP  0A600107:0050 rr \n\
            \x20 -> 0A800003:1F90      Masq    1      0          0         \n\
            FWM  53400001 rr \n\
            TCP  [fd00:0096:0000:0000:0000:0000:0000:0001]:0050 rr \n";
        let expected = [[10, 96, 1, 7], [10, 128, 0, 3]].map(u32::from_be_bytes);
        assert_eq!(parse(text), expected);
    }
}
