//! Simulates the hooks that a packet traverses.

use backend::PacketPath;
use dataplane::{Node, Origin, Packet, Verdict as Outcome};
use netlink::nf_tables::HookPoint;
pub use nftables_model::Memory;
use nftables_model::{End, Step, Walk};

use crate::table::Table;

/// Returns where `packet`, the first of its connection, goes on a node whose kernel holds `table`
/// for the packet's family and the entries in `memory`. Each random number is drawn from `number`,
/// or from what earlier draws leave of it.
pub fn simulate_next(
    table: &Table,
    node: &Node,
    packet: &Packet,
    memory: &mut Memory,
    number: u32,
) -> Outcome {
    let view = table.serving().view();
    nftables_model::simulate_next(view, node, packet, memory, number, run)
}

/// Returns where `packet`, the first of its connection and of its client, may go on a node whose
/// kernel holds `table` for the packet's family.
pub fn simulate(table: &Table, node: &Node, packet: &Packet) -> Outcome {
    nftables_model::simulate(table.serving().view(), node, packet, run)
}

/// Returns every path that `packet`, the first of its connection and of its client, may take on a
/// node whose kernel holds `table` for the packet's family: one for each combination of random
/// numbers.
pub fn paths(table: &Table, node: &Node, packet: &Packet) -> Vec<PacketPath> {
    nftables_model::paths(table.serving().view(), node, packet, run)
}

fn run(walk: &mut Walk<'_>) -> End {
    let from_here = matches!(walk.packet().origin, Origin::Node | Origin::Loopback);
    let mut hooks = vec![if from_here {
        HookPoint::Output
    } else {
        HookPoint::Prerouting
    }];
    let mut at = 0;
    while let Some(hook) = hooks.get(at).copied() {
        match walk.hook(hook, ..) {
            Step::Drop => return End::Dropped,
            Step::Reject => return End::Rejected,
            Step::Continue | Step::Accept => {}
        }
        // Routing, after DNAT, decides which hooks follow.
        match (hook, walk.is_local(walk.destination())) {
            (HookPoint::Prerouting, true) => hooks.push(HookPoint::Input),
            (HookPoint::Prerouting, false) => {
                hooks.extend([HookPoint::Forward, HookPoint::Postrouting]);
            }
            // A packet to the node itself comes back through the loopback device and skips NAT,
            // which processes a connection once.
            (HookPoint::Output, true) => {
                hooks.extend([HookPoint::Postrouting, HookPoint::Input]);
            }
            (HookPoint::Output, false) => hooks.push(HookPoint::Postrouting),
            _ => {}
        }
        at += 1;
    }
    End::Through(walk.redirected())
}

#[cfg(test)]
mod tests;
