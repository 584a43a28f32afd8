//! Simulates the hooks that a packet traverses, with IPVS at two of them.

use backend::{Event, PacketPath};
use dataplane::{Node, Origin, Packet, Verdict as Outcome};
use netlink::nf_tables::HookPoint;
use netlink::route::Presence;
use nftables_model::{End, Memory, Step, Walk};

use crate::allocation::number_of;
use crate::layout::{MARKED, MARKED_MASK};
use crate::rules::{Rules, print_server};

/// Where IPVS processes packets to this node (`NF_IP_PRI_NAT_SRC - 1` at input).
const IPVS_INPUT: i32 = 99;
/// Where IPVS processes packets from this node (`NF_IP_PRI_NAT_DST + 2` at output).
const IPVS_OUTPUT: i32 = -98;

/// What IPVS did with a packet.
enum Taken {
    /// Nothing: no virtual server has its mark.
    No,
    /// Forwarded to an endpoint elsewhere, through output and postrouting.
    Away,
    /// Forwarded to an endpoint on this node; the packet continues on its path.
    Here,
    /// Dropped: the virtual server has no endpoint.
    Dropped,
}

/// Returns where `packet`, the first of its connection, goes on a node whose kernel holds `rules`
/// for the packet's family and the entries in `memory`. Each random number is drawn from `number`,
/// or from what earlier draws leave of it. A scheduler's state and hash are not modelled: each
/// endpoint is a number.
pub fn simulate_next(
    rules: &Rules,
    node: &Node,
    packet: &Packet,
    memory: &mut Memory,
    number: u32,
) -> Outcome {
    let run = |walk: &mut Walk<'_>| run(rules, walk);
    nftables_model::simulate_next(rules.view(), node, packet, memory, number, run)
}

/// Returns where `packet`, the first of its connection and of its client, may go on a node whose
/// kernel holds `rules` for the packet's family.
pub fn simulate(rules: &Rules, node: &Node, packet: &Packet) -> Outcome {
    nftables_model::simulate(rules.view(), node, packet, |walk| run(rules, walk))
}

/// Returns every path that `packet`, the first of its connection and of its client, may take on a
/// node whose kernel holds `rules` for the packet's family: one for each endpoint that may be
/// chosen.
pub fn paths(rules: &Rules, node: &Node, packet: &Packet) -> Vec<PacketPath> {
    nftables_model::paths(rules.view(), node, packet, |walk| run(rules, walk))
}

fn run(rules: &Rules, walk: &mut Walk<'_>) -> End {
    let from_here = matches!(walk.packet().origin, Origin::Node | Origin::Loopback);
    let led = match from_here {
        true => leave(rules, walk),
        false => arrive(rules, walk),
    };
    match led {
        Ok(()) => End::Through(walk.redirected()),
        Err(end) => end,
    }
}

/// Simulates an incoming packet.
fn arrive(rules: &Rules, walk: &mut Walk<'_>) -> Result<(), End> {
    pass(walk, HookPoint::Prerouting, i32::MIN..=i32::MAX)?;
    if !is_delivered(rules, walk) && !walk.is_local(walk.destination()) {
        pass(walk, HookPoint::Forward, i32::MIN..=i32::MAX)?;
        return pass(walk, HookPoint::Postrouting, i32::MIN..=i32::MAX);
    }
    pass(walk, HookPoint::Input, i32::MIN..=IPVS_INPUT)?;
    match take(rules, walk)? {
        Taken::Away => send(walk),
        Taken::Here | Taken::No => pass(walk, HookPoint::Input, IPVS_INPUT + 1..=i32::MAX),
        Taken::Dropped => Err(End::Dropped),
    }
}

/// Simulates a packet that this node sends.
fn leave(rules: &Rules, walk: &mut Walk<'_>) -> Result<(), End> {
    pass(walk, HookPoint::Output, i32::MIN..=IPVS_OUTPUT)?;
    let taken = take(rules, walk)?;
    match taken {
        Taken::Away => return send(walk),
        Taken::Dropped => return Err(End::Dropped),
        Taken::Here | Taken::No => {}
    }
    pass(walk, HookPoint::Output, IPVS_OUTPUT + 1..=i32::MAX)?;
    let comes_back = is_delivered(rules, walk) || walk.is_local(walk.destination());
    pass(walk, HookPoint::Postrouting, i32::MIN..=i32::MAX)?;
    match (comes_back, taken) {
        (false, _) => Ok(()),
        // IPVS ignores packets that it has already processed.
        (true, Taken::Here) => {
            pass(walk, HookPoint::Prerouting, i32::MIN..=i32::MAX)?;
            pass(walk, HookPoint::Input, i32::MIN..=i32::MAX)
        }
        (true, _) => arrive(rules, walk),
    }
}

/// Simulates a packet that IPVS forwards: it traverses output again.
fn send(walk: &mut Walk<'_>) -> Result<(), End> {
    pass(walk, HookPoint::Output, i32::MIN..=i32::MAX)?;
    pass(walk, HookPoint::Postrouting, i32::MIN..=i32::MAX)
}

fn pass(
    walk: &mut Walk<'_>,
    hook: HookPoint,
    priorities: std::ops::RangeInclusive<i32>,
) -> Result<(), End> {
    match walk.hook(hook, priorities) {
        Step::Drop => Err(End::Dropped),
        Step::Reject => Err(End::Rejected),
        Step::Continue | Step::Accept => Ok(()),
    }
}

/// Whether the routing rule delivers the packet to this node.
fn is_delivered(rules: &Rules, walk: &Walk<'_>) -> bool {
    rules.delivery == Presence::Whole && walk.mark() & MARKED_MASK == MARKED
}

fn take(rules: &Rules, walk: &mut Walk<'_>) -> Result<Taken, End> {
    let mark = walk.mark();
    let found = number_of(mark).and_then(|number| Some((number, rules.servers.get(&number)?)));
    let Some((number, server)) = found else {
        return Ok(Taken::No);
    };
    walk.note(|| Event::Element(print_server(number, &server.server)));
    let shares = server.open().flat_map(|target| {
        let address = crate::rules::socket_address(&target);
        let weight = server.destinations.get(&address);
        let weight = weight.map_or(0, |destination| destination.weight.0);
        (0..weight).map(move |_| target)
    });
    let shares: Vec<_> = shares.collect();
    let Ok(modulus @ 1..) = u32::try_from(shares.len()) else {
        return Ok(Taken::Dropped);
    };
    let drawn = usize::try_from(walk.draw(modulus)).unwrap_or(0);
    let Some(target) = shares.get(drawn) else {
        return Ok(Taken::Dropped);
    };
    walk.redirect(*target);
    Ok(match walk.is_local(target.address) {
        true => Taken::Here,
        false => Taken::Away,
    })
}

#[cfg(test)]
mod tests;
