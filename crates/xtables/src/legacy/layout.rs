//! Sizes and field offsets of the kernel's structures.
//!
//! Source: include/uapi/linux/netfilter_ipv4/ip_tables.h, netfilter_ipv6/ip6_tables.h and
//! netfilter/x_tables.h, as compiled where a u64 is aligned to eight bytes: on every architecture
//! of Linux except 32-bit x86.

use crate::Family;

/// The alignment of entries, matches and targets.
pub(super) const ALIGNMENT: usize = 8;
/// The number of hooks (`NF_INET_NUMHOOKS`).
pub(super) const HOOKS: usize = 5;
/// The length of a table name (`XT_TABLE_MAXNAMELEN`), at the start of every argument.
pub(super) const TABLE_NAME: usize = 32;
/// The length of an interface name (`IFNAMSIZ`).
pub(super) const INTERFACE_NAME: usize = 16;
/// The longest name that iptables gives a chain: `XT_EXTENSION_MAXNAMELEN` without the terminating
/// zero.
pub(super) const CHAIN_NAME: usize = 28;

/// `sizeof(struct ipt_getinfo)`: name, valid hooks, entry points, underflows, entries, size.
pub(super) const INFO: usize = 84;
/// Offset of the entries in `struct ipt_get_entries`: name, size, padding.
pub(super) const GET_ENTRIES: usize = 40;
/// Offset of the entries in `struct ipt_replace`: name, valid hooks, entries, size, entry points,
/// underflows, number of old counters, pointer to them.
pub(super) const REPLACE: usize = 96;
/// `ipt_replace.num_counters`.
pub(super) const REPLACE_COUNTERS_NUMBER: usize = 84;
/// `ipt_replace.counters`.
pub(super) const REPLACE_COUNTERS: usize = 88;
/// The smallest length of entries that is too long: with the `struct xt_table_info` that the kernel
/// puts before them, they reach `XT_MAX_TABLE_SIZE` (net/netfilter/x_tables.c).
pub(super) const TABLE_END: u32 = 512 * 1024 * 1024 - 64;
/// Offset of the counters in `struct xt_counters_info`: name, number, padding.
pub(super) const ADD_COUNTERS: usize = 40;
/// `sizeof(struct xt_counters)`: packets, bytes.
pub(super) const COUNTERS: usize = 16;

/// `sizeof(struct xt_entry_match)`, and of `xt_entry_target`: size, name, revision.
pub(super) const EXTENSION: usize = 32;
/// Offset of the name in both.
pub(super) const EXTENSION_NAME: usize = 2;
/// Offset of the revision in both.
pub(super) const EXTENSION_REVISION: usize = 31;
/// `sizeof(struct xt_standard_target)`, whose name is empty, followed by the verdict.
pub(super) const STANDARD_TARGET: usize = 40;
/// `sizeof(struct xt_error_target)`, the target of the first entry of each named chain.
pub(super) const ERROR_TARGET: usize = 64;
/// `XT_ERROR_TARGET`.
pub(super) const ERROR: &[u8] = b"ERROR";

/// `-NF_DROP - 1`.
pub(super) const VERDICT_DROP: i32 = -1;
/// `-NF_ACCEPT - 1`.
pub(super) const VERDICT_ACCEPT: i32 = -2;
/// `XT_RETURN`.
pub(super) const VERDICT_RETURN: i32 = -5;

/// `IPT_INV_VIA_IN`.
pub(super) const INVERTED_INPUT: u8 = 0x01;
/// `IPT_INV_SRCIP`.
pub(super) const INVERTED_SOURCE: u8 = 0x08;
/// `IPT_INV_DSTIP`.
pub(super) const INVERTED_DESTINATION: u8 = 0x10;
/// `XT_INV_PROTO`.
pub(super) const INVERTED_PROTOCOL: u8 = 0x40;

/// `struct ipt_entry` or `ip6t_entry`. It begins with the source, the destination, their masks, and
/// the names of the interfaces and their masks.
#[derive(Debug)]
pub(super) struct Layout {
    /// The length of an address.
    pub(super) address: usize,
    /// Offset of the protocol.
    pub(super) protocol: usize,
    /// Offset of the flags.
    pub(super) flags: usize,
    /// Offset of the inversion flags.
    pub(super) inverted: usize,
    /// Offset of the target's offset, which the offset of the next entry follows.
    pub(super) target_offset: usize,
    /// The length of the entry without matches and target.
    pub(super) length: usize,
    /// The flag of an entry that matches one protocol.
    pub(super) flag_protocol: u8,
    /// The flag of a goto: packets do not return from its target.
    pub(super) flag_goto: u8,
}

static IPV4: Layout = Layout {
    address: 4,
    protocol: 80,
    flags: 82,
    inverted: 83,
    target_offset: 88,
    length: 112,
    flag_protocol: 0,
    flag_goto: 0x02,
};

static IPV6: Layout = Layout {
    address: 16,
    protocol: 128,
    flags: 131,
    inverted: 132,
    target_offset: 140,
    length: 168,
    flag_protocol: 0x01,
    flag_goto: 0x04,
};

// === impl Layout ===

impl Layout {
    pub(super) fn of(family: Family) -> &'static Layout {
        match family {
            Family::Ipv4 => &IPV4,
            Family::Ipv6 => &IPV6,
        }
    }

    pub(super) fn source(&self) -> usize {
        0
    }

    pub(super) fn destination(&self) -> usize {
        self.address
    }

    pub(super) fn source_mask(&self) -> usize {
        2 * self.address
    }

    pub(super) fn destination_mask(&self) -> usize {
        3 * self.address
    }

    pub(super) fn input(&self) -> usize {
        4 * self.address
    }

    pub(super) fn output(&self) -> usize {
        self.input() + INTERFACE_NAME
    }

    pub(super) fn input_mask(&self) -> usize {
        self.output() + INTERFACE_NAME
    }

    pub(super) fn output_mask(&self) -> usize {
        self.input_mask() + INTERFACE_NAME
    }

    pub(super) fn next_offset(&self) -> usize {
        self.target_offset + 2
    }

    /// Offset of the counters, packets first. They end the fields.
    pub(super) fn counters(&self) -> usize {
        self.length - COUNTERS
    }
}

/// Rounds `length` up to the next multiple of the alignment.
pub(super) fn aligned(length: usize) -> usize {
    length.next_multiple_of(ALIGNMENT)
}

pub(super) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*bytes))
}

pub(super) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

pub(super) fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*bytes))
}

pub(super) fn read_i32(bytes: &[u8], at: usize) -> Option<i32> {
    read_u32(bytes, at).map(u32::cast_signed)
}

/// Writes `value` at `at`. The caller makes sure that there is room.
pub(super) fn write(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// The bytes before the first NUL.
pub(super) fn until_nul(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}
