//! Matches and targets in the kernel modules' format: a name, a revision and a payload, the same in
//! both variants.
//!
//! Each uses the revision that iptables has written since 1.8.0 and that kernels have supported
//! since 4.18. Layouts: include/uapi/linux/netfilter/xt_*.h, nf_nat.h,
//! netfilter_ipv4/ipt_REJECT.h, netfilter_ipv6/ip6t_REJECT.h.

use std::net::IpAddr;

use crate::{Family, Match, PacketEnd, Protocol, Recent, States, Target};

/// A match or target of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extension {
    /// `xt_match.name` or `xt_target.name`.
    pub(crate) name: &'static str,
    /// The revision of the module's payload layout.
    pub(crate) revision: u8,
    /// The payload, without padding to the next multiple of eight.
    pub(crate) payload: Vec<u8>,
}

/// `XT_ADDRTYPE_LOCAL`.
const LOCAL: u16 = 1 << 2;
/// `XT_CONNTRACK_STATE`, of `xt_conntrack_mtinfo3.match_flags`.
const CONNTRACK_STATE: u16 = 1;
/// `XT_CONNTRACK_STATUS`, of the same, and of `invert_flags`.
const CONNTRACK_STATUS: u16 = 1 << 6;
/// `IPS_CONFIRMED`.
const CONFIRMED: u16 = 1 << 3;
/// `XT_RECENT_CHECK | XT_RECENT_REAP`.
const RECENT_CHECK_AND_REAP: u8 = 1 | 1 << 5;
/// `XT_RECENT_SET`.
const RECENT_SET: u8 = 1 << 1;
/// Offset of `xt_recent_mtinfo_v1.name`.
const RECENT_NAME: usize = 10;
/// `XT_RECENT_NAME_LEN`.
const RECENT_NAME_LENGTH: usize = 200;
/// `XT_MAX_COMMENT_LEN`.
const COMMENT_LENGTH: usize = 256;
/// End of `xt_statistic_info.u.random`. The bytes behind it belong to the nth mode and to the
/// kernel.
const STATISTIC_RANDOM_END: usize = 8;
/// End of `xt_statistic_info.u.nth`. The bytes behind it belong to the kernel.
const STATISTIC_NTH_END: usize = 16;
/// `XT_STATISTIC_MODE_NTH`.
const STATISTIC_NTH: u16 = 1;
/// `XT_SCTP_DEST_PORTS`.
const SCTP_DESTINATION_PORTS: u32 = 2;
/// `xt_sctp_info.flag_info` without any chunk: four times type 255.
const SCTP_NO_CHUNKS: [u8; 12] = [255, 0, 0, 255, 0, 0, 255, 0, 0, 255, 0, 0];
/// `NF_NAT_RANGE_MAP_IPS | NF_NAT_RANGE_PROTO_SPECIFIED`.
const NAT_ADDRESS_AND_PORT: u32 = 1 | 1 << 1;
/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`.
const NAT_RANDOM_FULLY: u32 = 1 << 4;
/// `IPT_ICMP_PORT_UNREACHABLE`.
const ICMP_PORT_UNREACHABLE: u32 = 3;
/// `IP6T_ICMP6_PORT_UNREACH`.
const ICMPV6_PORT_UNREACHABLE: u32 = 4;

/// The offset of a field, and its bytes.
type Field<'a> = (usize, &'a [u8]);

/// The extension for `asked` in a rule for `protocol`. Without a protocol, a match of ports is
/// written as a TCP match, which the kernel refuses.
pub(crate) fn encode_match(asked: &Match, protocol: Option<Protocol>) -> Extension {
    match asked {
        Match::DestinationPorts { first, last } => {
            destination_ports(*first, *last, protocol.unwrap_or(Protocol::Tcp))
        }
        // struct xt_addrtype_info_v1.
        Match::LocalAddress(which) => {
            let at = match which {
                PacketEnd::Source => 0,
                PacketEnd::Destination => 2,
            };
            Extension::new("addrtype", 1, laid_out(8, &[(at, &LOCAL.to_ne_bytes())]))
        }
        // struct xt_conntrack_mtinfo3.
        Match::ConnectionState(States(states)) => {
            let fields: [Field<'_>; 2] = [
                (146, &CONNTRACK_STATE.to_ne_bytes()),
                (150, &states.to_ne_bytes()),
            ];
            Extension::new("conntrack", 3, laid_out(164, &fields))
        }
        Match::UnconfirmedConnection => {
            let fields: [Field<'_>; 3] = [
                (146, &CONNTRACK_STATUS.to_ne_bytes()),
                (148, &CONNTRACK_STATUS.to_ne_bytes()),
                (152, &CONFIRMED.to_ne_bytes()),
            ];
            Extension::new("conntrack", 3, laid_out(164, &fields))
        }
        // struct xt_mark_mtinfo1.
        Match::Mark { value, mask } => {
            let fields: [Field<'_>; 2] = [(0, &value.to_ne_bytes()), (4, &mask.to_ne_bytes())];
            Extension::new("mark", 1, laid_out(12, &fields))
        }
        // struct xt_recent_mtinfo_v1, with XT_RECENT_SOURCE, which is 0.
        Match::Recent { list, what } => {
            let (seconds, set) = match what {
                Recent::Check { seconds } => (*seconds, RECENT_CHECK_AND_REAP),
                Recent::Set => (0, RECENT_SET),
            };
            let fields: [Field<'_>; 4] = [
                (0, &seconds.to_ne_bytes()),
                (8, &[set]),
                (RECENT_NAME, terminated(list, RECENT_NAME_LENGTH)),
                (212, &[255; 16]),
            ];
            Extension::new("recent", 1, laid_out(228, &fields))
        }
        // struct xt_statistic_info, with XT_STATISTIC_MODE_RANDOM, which is 0.
        Match::Random { probability } => {
            let payload = laid_out(24, &[(4, &probability.to_ne_bytes())]);
            Extension::new("statistic", 0, payload)
        }
        // The same struct. The kernel counts from `count` up to `every` and matches there.
        Match::Nth { every } => {
            let last = every.saturating_sub(1).to_ne_bytes();
            let fields: [Field<'_>; 3] =
                [(0, &STATISTIC_NTH.to_ne_bytes()), (4, &last), (12, &last)];
            Extension::new("statistic", 0, laid_out(24, &fields))
        }
    }
}

fn destination_ports(first: u16, last: u16, protocol: Protocol) -> Extension {
    let (first, last) = (first.to_ne_bytes(), last.to_ne_bytes());
    let any = u16::MAX.to_ne_bytes();
    match protocol {
        // struct xt_tcp.
        Protocol::Tcp => {
            let payload = laid_out(12, &[(2, &any), (4, &first), (6, &last)]);
            Extension::new("tcp", 0, payload)
        }
        // struct xt_udp.
        Protocol::Udp => {
            let payload = laid_out(10, &[(2, &any), (4, &first), (6, &last)]);
            Extension::new("udp", 0, payload)
        }
        // struct xt_sctp_info.
        Protocol::Sctp => {
            let fields: [Field<'_>; 4] = [
                (0, &first),
                (2, &last),
                (268, &SCTP_NO_CHUNKS),
                (284, &SCTP_DESTINATION_PORTS.to_ne_bytes()),
            ];
            Extension::new("sctp", 0, laid_out(292, &fields))
        }
    }
}

/// Decodes a match if it is one that Signpost writes. Ignores the parts of a payload that the
/// kernel keeps for itself (pointers).
pub(crate) fn decode_match(
    name: &str,
    revision: u8,
    payload: &[u8],
    protocol: Option<Protocol>,
) -> Option<Match> {
    let asked = match name {
        "tcp" | "udp" => ports(u16_at(payload, 4)?, u16_at(payload, 6)?)?,
        "sctp" => ports(u16_at(payload, 0)?, u16_at(payload, 2)?)?,
        "addrtype" => Match::LocalAddress(match u16_at(payload, 0)? {
            0 => PacketEnd::Destination,
            _ => PacketEnd::Source,
        }),
        "conntrack" if u16_at(payload, 146)? == CONNTRACK_STATUS => Match::UnconfirmedConnection,
        "conntrack" => Match::ConnectionState(States(u16_at(payload, 150)?)),
        "mark" => Match::Mark {
            value: u32_at(payload, 0)?,
            mask: u32_at(payload, 4)?,
        },
        "recent" => Match::Recent {
            list: text_at(payload, RECENT_NAME, RECENT_NAME_LENGTH)?.into(),
            what: match u32_at(payload, 0)? {
                0 => Recent::Set,
                seconds => Recent::Check { seconds },
            },
        },
        "statistic" if u16_at(payload, 0)? == STATISTIC_NTH => Match::Nth {
            every: u32_at(payload, 4)?.checked_add(1)?,
        },
        "statistic" => Match::Random {
            probability: u32_at(payload, 4).filter(|share| *share <= Match::CERTAIN)?,
        },
        _ => return None,
    };
    encode_match(&asked, protocol)
        .is(name, revision, &settled(name, payload))
        .then_some(asked)
}

fn ports(first: u16, last: u16) -> Option<Match> {
    (first <= last).then_some(Match::DestinationPorts { first, last })
}

/// `payload` with its meaningless bytes cleared: what iptables leaves behind the end of a name, and
/// what the kernel and iptables keep behind a probability.
fn settled(name: &str, payload: &[u8]) -> Vec<u8> {
    let mut settled = payload.to_vec();
    let meaningless = match name {
        "recent" => {
            let end = RECENT_NAME + RECENT_NAME_LENGTH;
            let field = settled.get_mut(RECENT_NAME..end).unwrap_or_default();
            let length = field.iter().position(|byte| *byte == 0);
            &mut field[length.unwrap_or(0)..]
        }
        "statistic" => {
            let end = match u16_at(payload, 0) {
                Some(STATISTIC_NTH) => STATISTIC_NTH_END,
                _ => STATISTIC_RANDOM_END,
            };
            settled.get_mut(end..).unwrap_or_default()
        }
        _ => &mut [],
    };
    meaningless.fill(0);
    settled
}

/// The comment as legacy tables store it: a match that always matches. Text beyond the kernel's
/// limit is cut off.
pub(crate) fn encode_comment(comment: &str) -> Extension {
    let payload = laid_out(COMMENT_LENGTH, &[(0, terminated(comment, COMMENT_LENGTH))]);
    Extension::new("comment", 0, payload)
}

/// The text of a comment match.
pub(crate) fn decode_comment(name: &str, revision: u8, payload: &[u8]) -> Option<String> {
    let is_comment = name == "comment" && revision == 0 && payload.len() == COMMENT_LENGTH;
    let text = is_comment.then(|| text_at(payload, 0, COMMENT_LENGTH))?;
    text.map(str::to_owned)
}

/// The extension for `target`; `None` for verdicts and chains.
pub(crate) fn encode_target(target: &Target, family: Family) -> Option<Extension> {
    Some(match target {
        Target::Accept | Target::Drop | Target::Return | Target::Jump(_) | Target::Goto(_) => {
            return None;
        }
        // struct nf_nat_range2.
        Target::DestinationNat { address, port } => {
            let (ipv4, ipv6);
            let address: &[u8] = match address {
                IpAddr::V4(address) => {
                    ipv4 = address.octets();
                    &ipv4
                }
                IpAddr::V6(address) => {
                    ipv6 = address.octets();
                    &ipv6
                }
            };
            let port = port.to_be_bytes();
            let fields: [Field<'_>; 5] = [
                (0, &NAT_ADDRESS_AND_PORT.to_ne_bytes()),
                (4, address),
                (20, address),
                (36, &port),
                (38, &port),
            ];
            Extension::new("DNAT", 2, laid_out(44, &fields))
        }
        Target::Masquerade => {
            let random = NAT_RANDOM_FULLY.to_ne_bytes();
            let payload = match family {
                // struct nf_nat_ipv4_multi_range_compat, with one range.
                Family::Ipv4 => laid_out(20, &[(0, &1u32.to_ne_bytes()), (4, &random)]),
                // struct nf_nat_range.
                Family::Ipv6 => laid_out(40, &[(0, &random)]),
            };
            Extension::new("MASQUERADE", 0, payload)
        }
        // struct xt_mark_tginfo2.
        Target::Mark { value, mask } => {
            let fields: [Field<'_>; 2] = [(0, &value.to_ne_bytes()), (4, &mask.to_ne_bytes())];
            Extension::new("MARK", 2, laid_out(8, &fields))
        }
        // struct ipt_reject_info, struct ip6t_reject_info.
        Target::Reject => {
            let with = match family {
                Family::Ipv4 => ICMP_PORT_UNREACHABLE,
                Family::Ipv6 => ICMPV6_PORT_UNREACHABLE,
            };
            Extension::new("REJECT", 0, with.to_ne_bytes().to_vec())
        }
    })
}

/// Decodes a target if it is one that Signpost writes.
pub(crate) fn decode_target(
    name: &str,
    revision: u8,
    payload: &[u8],
    family: Family,
) -> Option<Target> {
    let target = match name {
        "DNAT" => Target::DestinationNat {
            address: match family {
                Family::Ipv4 => IpAddr::from(array_at::<4>(payload, 4)?),
                Family::Ipv6 => IpAddr::from(array_at::<16>(payload, 4)?),
            },
            port: u16::from_be_bytes(array_at(payload, 36)?),
        },
        "MASQUERADE" => Target::Masquerade,
        "MARK" => Target::Mark {
            value: u32_at(payload, 0)?,
            mask: u32_at(payload, 4)?,
        },
        "REJECT" => Target::Reject,
        _ => return None,
    };
    encode_target(&target, family)?
        .is(name, revision, payload)
        .then_some(target)
}

// === impl Extension ===

impl Extension {
    fn new(name: &'static str, revision: u8, payload: Vec<u8>) -> Extension {
        Extension {
            name,
            revision,
            payload,
        }
    }

    /// Whether an extension read from the kernel equals this one. The payload that was read may be
    /// padded to a multiple of eight (`XT_ALIGN`).
    fn is(&self, name: &str, revision: u8, payload: &[u8]) -> bool {
        let length = self.payload.len();
        self.name == name
            && self.revision == revision
            && payload.starts_with(&self.payload)
            && (payload.len() == length || payload.len() == length.next_multiple_of(8))
    }
}

/// `length` zero bytes with `fields` filled in.
fn laid_out(length: usize, fields: &[Field<'_>]) -> Vec<u8> {
    let mut payload = vec![0; length];
    for (at, bytes) in fields {
        payload[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    payload
}

/// The longest prefix of `text` that leaves room for a terminating zero in `room` bytes.
fn terminated(text: &str, room: usize) -> &[u8] {
    &text.as_bytes()[..text.len().min(room - 1)]
}

fn array_at<const N: usize>(payload: &[u8], at: usize) -> Option<[u8; N]> {
    payload.get(at..at + N)?.try_into().ok()
}

fn u16_at(payload: &[u8], at: usize) -> Option<u16> {
    array_at(payload, at).map(u16::from_ne_bytes)
}

fn u32_at(payload: &[u8], at: usize) -> Option<u32> {
    array_at(payload, at).map(u32::from_ne_bytes)
}

/// The text in a field of `room` bytes, up to its terminating zero.
fn text_at(payload: &[u8], at: usize, room: usize) -> Option<&str> {
    let field = payload.get(at..at + room)?;
    let length = field.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&field[..length]).ok()
}

#[cfg(test)]
mod tests;
