//! Questions about a mode's rules: where they send a packet, which of them belong to a
//! frontend, and where observed rules differ from desired ones. Pure: the caller reads the rules.

use std::collections::BTreeSet;
use std::fmt::{Debug, Display};

use dataplane::{Dataplane, FrontendKey, Node, Packet, ServicePortName, Verdict};

use crate::{Backend, PacketPath, Piece, Size};

/// A backend that can interpret its rules, for traces and explanations.
pub trait Inspect: Backend + Debug {
    /// Whether `rules` show that the mode is in use: an empty table does, a missing table does
    /// not.
    fn exist(&self, rules: &Self::Rules) -> bool;

    /// The number of elements or rules.
    fn elements(&self, rules: &Self::Rules) -> usize;

    /// Returns where `rules` send `packet`. Equals [`Dataplane::verdict`] if they were rendered
    /// from that dataplane.
    fn simulate(&self, rules: &Self::Rules, node: &Node, packet: &Packet) -> Verdict;

    /// The paths that `packet` may take through `rules`, each with its steps.
    fn paths(&self, rules: &Self::Rules, node: &Node, packet: &Packet) -> Vec<PacketPath>;

    /// Renders the Services of `part`, a subset of `desired`, in the arrangement of `observed`. The
    /// result is the input of the comparisons below.
    fn render_part(
        &self,
        part: &Dataplane,
        desired: &Dataplane,
        observed: &Self::Rules,
    ) -> Self::Rules;

    /// Compares the elements or rules of one frontend.
    fn compare_frontend(
        &self,
        desired: &Self::Rules,
        found: &Self::Rules,
        key: &FrontendKey,
    ) -> Vec<Piece>;

    /// Compares the chains that only packets to one frontend traverse.
    fn compare_chains(
        &self,
        desired: &Self::Rules,
        found: &Self::Rules,
        key: &FrontendKey,
    ) -> Vec<Piece>;

    /// Compares what the Services of `part` need beside their frontends: cluster IPs, endpoints on
    /// this node, health checks.
    fn compare_memberships(
        &self,
        desired: &Self::Rules,
        found: &Self::Rules,
        part: &Dataplane,
    ) -> Vec<Piece>;

    /// Returns the pieces shared by all Services that differ from what was programmed.
    fn compare_shared(&self, programmed: &Self::Rules, found: &Self::Rules) -> Vec<Piece>;

    /// Whose the virtual server is that packets with `mark` are for, by the rules that were
    /// programmed last and those that were found. By default the mode has no virtual servers.
    fn mark_owner(&self, _programmed: &Self::Rules, _found: &Self::Rules, _mark: u32) -> MarkOwner {
        MarkOwner::NotSignpost
    }

    /// The marks of packets to a frontend. By default they have none.
    fn marks(&self, _rules: &Self::Rules, _key: &FrontendKey) -> BTreeSet<u32> {
        BTreeSet::new()
    }

    /// Compares the virtual server that packets with `mark` are for. By default there is none.
    fn compare_mark(&self, _: &Self::Rules, _: &Self::Rules, _mark: u32) -> Vec<Piece> {
        Vec::new()
    }

    /// The heading of all rules of the family: `table ip signpost`.
    fn heading(&self) -> String;

    /// A sentence that describes the state of the kernel's rules.
    fn describe(&self, found: Found<'_, Self::Rules>) -> String;
}

/// Whose the virtual server is that packets with some mark are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkOwner {
    /// The mark is none that the mode uses.
    NotSignpost,
    /// No virtual server has it.
    Unassigned,
    /// This Service port's.
    ServicePort(ServicePortName),
    /// Nothing leads to it any more but connections. Whose it was is not known.
    Connections,
}

/// The result of reading the kernel's rules.
#[derive(Debug)]
pub enum Found<'a, R> {
    /// Reading failed, with this error and its causes.
    Unreadable(&'a str),
    /// There are no rules.
    Missing,
    /// There are rules.
    Rules {
        /// The rules that were programmed last.
        programmed: &'a R,
        /// The rules that were found.
        found: &'a R,
    },
}

/// The number with its noun: `1 rule`, `2 rules`.
pub fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// The first `most` of several things, and how many more there are: `a, b and 3 more`.
pub fn first_of<T: Display>(things: &[T], most: usize) -> String {
    let named = things.iter().take(most);
    let named: Vec<String> = named.map(T::to_string).collect();
    match things.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// A sentence for a kernel that holds `elements` elements, where `repair` is the change from the
/// observed to the programmed rules.
pub fn describe_repair(repair: Size, elements: usize) -> String {
    if repair.is_empty() {
        let elements = count(elements, "element");
        return format!("the kernel holds what was programmed, {elements}");
    }
    let pieces = count(repair.elements, "element");
    let pieces = match repair.objects {
        0 => pieces,
        objects => format!("{pieces} and {}", count(objects, "other piece")),
    };
    format!("! the kernel differs from what was programmed: {pieces} to repair")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_counted_and_a_few_are_named() {
        let things = |count: u8| (0..count).collect::<Vec<_>>();
        assert_eq!(first_of(&things(2), 5), "0, 1");
        assert_eq!(first_of(&things(5), 5), "0, 1, 2, 3, 4");
        assert_eq!(first_of(&things(7), 5), "0, 1, 2, 3, 4 and 2 more");
    }
}
