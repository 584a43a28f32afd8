//! Maglev's lookup table: maps each hash of a client to an endpoint, so that similar sets of
//! endpoints have similar tables.
//!
//! Each endpoint has a separate preference order of the slots, computed from its address and port.
//! In turn, each endpoint takes its next preferred slot that is free (Eisenbud and others, "Maglev:
//! A Fast and Reliable Software Network Load Balancer", NSDI 2016, section 3.4). So the shares of
//! any two endpoints differ by at most one slot, and the removal of an endpoint moves its own slots
//! and few others.

use std::net::IpAddr;

use crate::{Scheduler, Target};

/// Table sizes, each with the most endpoints that it is used for: at least 16 slots for each
/// endpoint, up to a limit. They are prime, so that every step visits the whole table.
const SIZES: [(usize, usize); 4] = [(16, 1_021), (128, 4_093), (1_024, 16_381), (16_384, 65_521)];
/// The table size for even more endpoints.
const LARGEST: usize = 131_071;

impl Scheduler {
    /// The number of slots among which the choice of `endpoints` is made.
    pub fn slots(self, endpoints: usize) -> usize {
        match (self, endpoints) {
            (Scheduler::Maglev, 1..) => {
                let size = SIZES.into_iter().find(|(most, _)| endpoints <= *most);
                size.map_or(LARGEST, |(_, size)| size)
            }
            _ => endpoints,
        }
    }
}

/// The endpoint in each slot. Depends only on the set of endpoints.
pub fn maglev(endpoints: &[Target]) -> Vec<Target> {
    let mut endpoints = endpoints.to_vec();
    endpoints.sort();
    endpoints.dedup();
    let size = Scheduler::Maglev.slots(endpoints.len());
    let mut orders: Vec<Order> = endpoints.iter().map(|to| Order::of(to, size)).collect();
    let mut table: Vec<Option<Target>> = vec![None; size];
    let turns = (0..orders.len()).cycle().take(size);
    for turn in turns {
        while table[orders[turn].next].is_some() {
            orders[turn].step(size);
        }
        table[orders[turn].next] = Some(endpoints[turn]);
    }
    table.into_iter().flatten().collect()
}

/// The preference order of one endpoint.
struct Order {
    next: usize,
    step: usize,
}

impl Order {
    fn of(to: &Target, size: usize) -> Order {
        let below = |seed, most: usize| {
            let most = u64::try_from(most).unwrap_or(u64::MAX).max(1);
            usize::try_from(hash(to, seed) % most).unwrap_or_default()
        };
        Order {
            next: below(0, size),
            step: below(1, size.saturating_sub(1)) + 1,
        }
    }

    fn step(&mut self, size: usize) {
        self.next = (self.next + self.step) % size;
    }
}

/// FNV-1a with the final steps of MurmurHash3, so that every bit counts. Every node and every
/// version must compute the same value.
pub(crate) fn hash(to: &Target, seed: u64) -> u64 {
    let begin = seed ^ BASIS;
    let address = match to.address {
        IpAddr::V4(address) => fnv(begin, &address.octets()),
        IpAddr::V6(address) => fnv(begin, &address.octets()),
    };
    let hash = fnv(address, &to.port.get().to_be_bytes());
    let hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

/// A seed of [`hash`] that differs by `name`.
pub(crate) fn seed_of(name: &str) -> u64 {
    fnv(BASIS, name.as_bytes())
}

/// The first value of FNV-1a.
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a of `bytes`, continued from `hash`.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(hash, step)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Port;

    /// `count` endpoints starting at `first`, IPv6 if `first` is odd.
    fn endpoints(first: u16, count: u16) -> Vec<Target> {
        let address = |number: u16| match first % 2 {
            0 => IpAddr::from([10, 0, number.to_be_bytes()[0], number.to_be_bytes()[1]]),
            _ => IpAddr::from([0xfd00, 0x10, 0, 1, 0, 0, 0, number]),
        };
        let port = Port::new(8080).expect("not 0");
        let numbers = first..first + count;
        numbers
            .map(|number| Target {
                address: address(number),
                port,
            })
            .collect()
    }

    #[test]
    fn shares_differ_by_one_slot_at_the_most() {
        for count in [1, 2, 3, 7, 16, 17, 128, 300] {
            let mut shares: BTreeMap<Target, usize> = BTreeMap::new();
            for target in maglev(&endpoints(4, count)) {
                *shares.entry(target).or_default() += 1;
            }
            assert_eq!(shares.len(), usize::from(count));
            let (least, most) = (shares.values().min(), shares.values().max());
            let (least, most) = (least.expect("one"), most.expect("one"));
            assert!(most - least <= 1, "{least} to {most} of {count}");
        }
        assert_eq!(maglev(&[]), []);
    }

    #[test]
    fn the_order_of_endpoints_and_their_history_do_not_matter() {
        let mut reversed = endpoints(5, 9);
        reversed.reverse();
        assert_eq!(maglev(&endpoints(5, 9)), maglev(&reversed));
    }

    /// Failure story T67. Removes every endpoint once; in reverse, this adds every endpoint once.
    #[test]
    fn t67_an_endpoint_that_leaves_moves_few_slots_but_its_own() {
        for (first, count) in [(0, 2), (0, 3), (1, 5), (2, 10), (3, 16), (6, 40), (8, 128)] {
            let all = endpoints(first, count);
            let before = maglev(&all);
            for gone in &all {
                let left: Vec<Target> = all.iter().filter(|to| *to != gone).copied().collect();
                let after = maglev(&left);
                if before.len() != after.len() {
                    continue;
                }
                let slots = before.iter().zip(&after);
                let moved = slots
                    .filter(|(old, new)| *old != gone && old != new)
                    .count();
                assert!(
                    moved * 100 <= before.len() * 8,
                    "{moved} of {} slots of others move as one of {count} leaves",
                    before.len(),
                );
            }
        }
    }
}
