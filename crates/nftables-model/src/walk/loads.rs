//! Evaluates the expressions that load data of a packet, draw a number or compute a hash.

use dataplane::Origin;
use netlink::nf_tables::{
    ADDRESS_TYPE_LOCAL, CtKey, Expression, FibField, MetaKey, PayloadBase, jhash, reciprocal_scale,
};

use super::{CT_STATE_NEW, CT_STATUS_DNAT, Hashes, Walk, octets};

/// `IP_CT_DIR_ORIGINAL`.
const ORIGINAL: u8 = 0;

impl Walk<'_> {
    /// Loads the data that `expression` requests, if any; returns `false` if the packet has none.
    pub(super) fn load_from_packet(&mut self, expression: &Expression) -> bool {
        match expression {
            Expression::Payload {
                base,
                offset,
                length,
                to,
            } => {
                let bytes = match (base, offset, length) {
                    (PayloadBase::Network, 12, 4) | (PayloadBase::Network, 8, 16) => {
                        octets(self.packet.source)
                    }
                    (PayloadBase::Network, 16, 4) | (PayloadBase::Network, 24, 16) => {
                        octets(self.destination())
                    }
                    (PayloadBase::Transport, 2, 2) => self.port().get().to_be_bytes().to_vec(),
                    _ => return false,
                };
                self.load(*to, &bytes);
            }
            Expression::Meta { key, to } => match key {
                MetaKey::Mark => self.load(*to, &self.mark.to_ne_bytes()),
                MetaKey::TransportProtocol => self.load(*to, &[self.packet.protocol.number()]),
                MetaKey::InputInterfaceName => {
                    let mut name = match &self.packet.origin {
                        Origin::Pod { interface }
                        | Origin::PodElsewhere { interface }
                        | Origin::Outside { interface } => interface.as_bytes().to_vec(),
                        // No interface: the kernel compares an empty name.
                        Origin::Node | Origin::Loopback => Vec::new(),
                    };
                    name.resize(16, 0);
                    self.load(*to, &name);
                }
            },
            Expression::Ct { key, to, .. } => {
                let packet = self.packet;
                let value = match key {
                    CtKey::State => CT_STATE_NEW.to_ne_bytes().to_vec(),
                    CtKey::Status if self.has_dnat => CT_STATUS_DNAT.to_ne_bytes().to_vec(),
                    CtKey::Status => vec![0; 4],
                    CtKey::Ipv4Source | CtKey::Ipv6Source => octets(packet.source),
                    CtKey::Ipv4Destination | CtKey::Ipv6Destination => octets(packet.destination),
                    CtKey::Direction => vec![ORIGINAL],
                    CtKey::Labels => self.labels.to_vec(),
                    CtKey::DestinationPort => packet.port.get().to_be_bytes().to_vec(),
                };
                self.load(*to, &value);
            }
            Expression::Hash {
                modulus,
                offset,
                to,
                ..
            } if self.hashes == Hashes::Drawn && self.redirected.is_none() => {
                let number = self.draw(*modulus) + offset;
                self.load(*to, &number.to_ne_bytes());
            }
            Expression::Hash {
                from,
                length,
                modulus,
                seed,
                offset,
                to,
            } => {
                let length = usize::try_from(*length).unwrap_or(usize::MAX);
                let hash = jhash(self.at(*from, length), *seed);
                let number = offset + reciprocal_scale(hash, *modulus);
                self.load(*to, &number.to_ne_bytes());
            }
            Expression::Numgen {
                modulus,
                offset,
                to,
                ..
            } => {
                let number = self.draw(*modulus) + offset;
                self.load(*to, &number.to_ne_bytes());
            }
            Expression::FibType { field, to } => {
                let address = match field {
                    FibField::Source => self.packet.source,
                    FibField::Destination => self.destination(),
                };
                let kind = if self.is_local(address) {
                    ADDRESS_TYPE_LOCAL
                } else {
                    0
                };
                self.load(*to, &kind.to_ne_bytes());
            }
            // Neither changes the packet's way: a flowtable takes later ones.
            Expression::Counter | Expression::Offload { .. } => {}
            _ => return false,
        }
        true
    }
}
