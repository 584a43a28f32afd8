//! Compares desired and observed rules, piece by piece.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use backend::{Piece, PieceState};
use dataplane::{Family, FrontendKey};
use netlink::ipvs::{
    Connections, Destination, Forwarding, Mark, Thresholds, VirtualServer, VirtualServerFlags,
    Weight,
};
use netlink::nf_tables::{Bytes, ElementData};
use nftables_model::{SetWithElements, frontend};

use crate::allocation::number_of;
use crate::layout::{MARKS, SetName, Shape, fields_of};
use crate::render::mark_key;
use crate::rules::{Rules, mark_of, print_delivery};

/// Printed pieces, by the keys that identify them.
type Printed = BTreeMap<(u8, String), String>;

/// Compares each piece as rendered and as found.
fn compare(desired: &Printed, found: &Printed) -> Vec<Piece> {
    let keys: BTreeSet<_> = desired.keys().chain(found.keys()).collect();
    let pieces = keys.into_iter();
    let pieces = pieces.filter_map(|key| Piece::compare(desired.get(key), found.get(key)));
    pieces.collect()
}

/// Compares a destination as desired and as found, and appends its `connections`.
fn compare_destination(
    server: &str,
    address: SocketAddr,
    [desired, found]: [Option<Destination>; 2],
    connections: Option<Connections>,
) -> Option<Piece> {
    let print = |destination| print_destination(server, address, destination);
    let mut piece = Piece::compare(desired.map(print).as_ref(), found.map(print).as_ref())?;
    if desired.is_none() && found.is_some_and(|found| found.weight == Weight::DRAINING) {
        piece.state = PieceState::Draining;
    }
    if let Some(Connections { active, inactive }) = connections {
        let text = format!(", {active} active, {inactive} inactive connections");
        piece.text.push_str(&text);
    }
    Some(piece)
}

/// Names a virtual server as `ipvsadm -Ln` lists it: by its mark in decimal, and by its family if
/// that is IPv6.
fn print_number(family: Family, number: u32) -> String {
    let mark = MARKS.mark(number).map_or(0, Mark::value);
    match family {
        Family::Ipv4 => format!("FWM {mark}"),
        Family::Ipv6 => format!("FWM {mark} IPv6"),
    }
}

/// Prints the virtual server of this name with its scheduler and flags, these as `ipvsadm -Ln` does,
/// but without the time for which one that is persistent remembers a client: Signpost does not read it.
fn print_server(name: &str, server: &VirtualServer) -> String {
    let VirtualServer { scheduler, flags } = server;
    let has_own_flags = ["sh", "mh"].contains(&scheduler.as_str());
    let names = match has_own_flags {
        true => ["fallback", "port"].map(|flag| format!("{scheduler}-{flag}")),
        false => ["flag-1", "flag-2"].map(str::to_owned),
    };
    let named = [VirtualServerFlags::FALLBACK, VirtualServerFlags::HASH_PORT].into_iter();
    let set = named.zip(names).filter(|(flag, _)| flags.has(*flag));
    let set: Vec<String> = set.map(|(_, name)| name).collect();
    let mut text = format!("virtual server {name}, scheduler {scheduler}");
    if !set.is_empty() {
        text.push_str(&format!(" ({})", set.join(",")));
    }
    for (flag, name) in [
        (VirtualServerFlags::PERSISTENT, " persistent"),
        (VirtualServerFlags::ONE_PACKET, " ops"),
    ] {
        text.push_str(if flags.has(flag) { name } else { "" });
    }
    text
}

/// Prints a destination with its forwarding method, this as `ipvsadm -Ln` does, and its weight. Thresholds,
/// which Signpost never sets, follow in the notation of its options.
fn print_destination(server: &str, address: SocketAddr, held: Destination) -> String {
    let Weight(weight) = held.weight;
    let forwarding = match held.forwarding {
        Forwarding::Masquerade => "Masq",
        Forwarding::Local => "Local",
        Forwarding::Tunnel => "Tunnel",
        Forwarding::Route => "Route",
        Forwarding::Bypass => "Bypass",
    };
    let text = format!("{server} -> {address}, {forwarding}, weight {weight}");
    match held.thresholds == Thresholds::default() {
        true => text,
        false => format!("{text} ({held})"),
    }
}

/// Prints an element and the name of the virtual server that it leads to, if any.
fn print_element(family: Family, set: &SetWithElements, key: &Bytes, data: &ElementData) -> String {
    let name = &set.set.name;
    let text = format!("{name} {{ {} }}", set.set.element(key, data));
    let leads = SetName::parse(name).is_some_and(|set| SetName::MARKS.contains(&set));
    match mark_of(data).and_then(number_of).filter(|_| leads) {
        Some(number) => format!("{text} # {}", print_number(family, number)),
        None => text,
    }
}

impl Rules {
    /// Compares the elements for `key`, here and in `found`, then the virtual servers that they lead
    /// to.
    pub(crate) fn compare_frontend(&self, found: &Rules, key: &FrontendKey) -> Vec<Piece> {
        let elements = compare(&self.print_frontend(key), &found.print_frontend(key));
        let mut numbers = self.numbers(key);
        numbers.extend(found.numbers(key));
        let servers = numbers
            .into_iter()
            .flat_map(|number| self.compare_server(found, key.family(), number));
        elements.into_iter().chain(servers).collect()
    }

    /// Compares the virtual servers here with those in `found`. Returns those that only `found` has.
    pub(crate) fn compare_other_servers(&self, found: &Rules, family: Family) -> Vec<Piece> {
        let numbers = found
            .servers
            .sorted()
            .into_iter()
            .map(|(number, _)| *number);
        let others = numbers.filter(|number| self.servers.get(number).is_none());
        others
            .flat_map(|number| self.compare_server(found, family, number))
            .collect()
    }

    /// Compares a virtual server and its destinations. Those in the kernel are followed by the
    /// numbers of their connections, if `found` was read from it.
    pub(crate) fn compare_server(&self, found: &Rules, family: Family, number: u32) -> Vec<Piece> {
        let name = print_number(family, number);
        let servers = [self, found].map(|rules| rules.servers.get(&number));
        let printed = servers.map(|server| Some(print_server(&name, &server?.server)));
        let mut server = Piece::compare(printed[0].as_ref(), printed[1].as_ref());
        if let (Some(piece), [None, Some(held)]) = (&mut server, servers)
            && held.open().next().is_none()
        {
            piece.state = PieceState::Draining;
        }
        let addresses = servers.into_iter().flatten();
        let addresses = addresses.flat_map(|server| server.destinations.keys().copied());
        let addresses: BTreeSet<SocketAddr> = addresses.collect();
        let destinations = addresses.into_iter().filter_map(|address| {
            let destinations = servers.map(|server| server?.destinations.get(&address).copied());
            let counted = found.figures.connections.as_ref();
            let counted = counted.filter(|_| destinations[1].is_some());
            let connections =
                counted.map(|all| all.get(&(number, address)).copied().unwrap_or_default());
            compare_destination(&name, address, destinations, connections)
        });
        server.into_iter().chain(destinations).collect()
    }

    /// Compares the elements that belong to no frontend, here and in `found`: cluster IPs,
    /// endpoints of this node, addresses that accept node ports.
    pub(crate) fn compare_memberships(&self, found: &Rules) -> Vec<Piece> {
        let is_shared = |set: SetName| matches!(set.shape(), Shape::Addresses | Shape::Hairpins);
        compare(&self.print_sets(is_shared), &found.print_sets(is_shared))
    }

    /// Compares the chains and sets, here and in `found`, the owners of marks, and the routing
    /// rule.
    pub(crate) fn compare_objects(&self, found: &Rules) -> Vec<Piece> {
        let print = |rules: &Rules| {
            let mut printed =
                rules.print_sets(|set| set == SetName::Owners || set.shape() == Shape::Chains);
            let chains = rules.table.chains.values();
            printed.extend(chains.map(|chain| {
                let rules = chain.rules.iter().map(|rule| format!("; {rule}"));
                let text = format!("chain {}{}", chain.chain, rules.collect::<String>());
                ((0, chain.chain.name.to_string()), text)
            }));
            printed.extend(print_delivery(rules.delivery).map(|text| ((4, String::new()), text)));
            let sets = rules.table.sets.values();
            printed.extend(sets.map(|set| {
                let text = format!("set {}", set.set);
                ((1, set.set.name.to_string()), text)
            }));
            printed
        };
        compare(&print(self), &print(found))
    }

    fn print_frontend(&self, key: &FrontendKey) -> Printed {
        let (bytes, fields) = (frontend(key), Some(fields_of(key)));
        let family = key.family();
        let mut printed = Printed::new();
        for (name, set) in &self.table.sets {
            if SetName::parse(name).is_none_or(|set| set.fields() != fields) {
                continue;
            }
            // A key has at most one more field after the frontend, a source.
            let own = set.elements.iter();
            let own = own.filter(|(key, _)| key.as_slice().starts_with(bytes.as_slice()));
            printed.extend(own.map(|(key, data)| {
                let at = format!("{name} {}", key.typed(&set.set.key));
                ((2, at), print_element(family, set, key, data))
            }));
        }
        for number in self.numbers(key) {
            let mark_bytes = mark_key(number);
            for name in [SetName::Affinities, SetName::Slots].map(SetName::as_str) {
                let Some(set) = self.table.sets.get(name) else {
                    continue;
                };
                let own = set.elements.iter();
                let own = own.filter(|(key, _)| key.as_slice().starts_with(mark_bytes.as_slice()));
                printed.extend(own.map(|(key, data)| {
                    let at = format!("{name} {}", key.typed(&set.set.key));
                    let text = format!("{name} {{ {} }}", set.set.element(key, data));
                    ((2, at), text)
                }));
            }
        }
        printed
    }

    fn print_sets(&self, are_so: impl Fn(SetName) -> bool) -> Printed {
        let sets = self.table.sets.iter();
        let sets = sets.filter(|(name, _)| SetName::parse(name).is_some_and(&are_so));
        let elements = sets.flat_map(|(name, set)| {
            set.elements.iter().map(move |(key, data)| {
                let at = format!("{name} {}", key.typed(&set.set.key));
                (
                    (2, at),
                    format!("{name} {{ {} }}", set.set.element(key, data)),
                )
            })
        });
        elements.collect()
    }
}

#[cfg(test)]
mod tests;
