//! Questions about a mechanism's rules: where they take a packet, which of them belong to a frontend,
//! and where observed rules differ from desired ones. Pure: the caller reads the rules.

use std::fmt::Debug;

use dataplane::{Dataplane, FrontendKey, Node, Packet, Verdict};

use crate::{Backend, Piece, Size, Way};

/// The meaning of a [`Backend`]'s rules, for traces and explanations.
pub trait Inspect: Backend + Debug {
    /// Whether `rules` are those of an active mechanism: an empty table is, no table is not.
    fn exist(&self, rules: &Self::Rules) -> bool;

    /// How many elements or rules there are.
    fn elements(&self, rules: &Self::Rules) -> usize;

    /// Where `rules` take `packet`. Equals [`Dataplane::verdict`] where they were rendered from that
    /// dataplane.
    fn simulate(&self, rules: &Self::Rules, node: &Node, packet: &Packet) -> Verdict;

    /// The paths by which `rules` take `packet` there, each with what the packet meets.
    fn ways(&self, rules: &Self::Rules, node: &Node, packet: &Packet) -> Vec<Way>;

    /// The rules of the Services of `part`, which are some of `desired`, in the arrangement of
    /// `observed`: the input of the comparisons below.
    fn render_part(
        &self,
        part: &Dataplane,
        desired: &Dataplane,
        observed: &Self::Rules,
    ) -> Self::Rules;

    /// The elements or rules of one frontend, as `desired` and as `found`.
    fn compare_frontend(
        &self,
        desired: &Self::Rules,
        found: &Self::Rules,
        key: &FrontendKey,
    ) -> Vec<Piece>;

    /// The chains that only packets to one frontend traverse.
    fn compare_chains(
        &self,
        desired: &Self::Rules,
        found: &Self::Rules,
        key: &FrontendKey,
    ) -> Vec<Piece>;

    /// What the Services of `part` need beside their frontends: cluster IPs, endpoints on this node,
    /// health checks.
    fn compare_memberships(
        &self,
        desired: &Self::Rules,
        found: &Self::Rules,
        part: &Dataplane,
    ) -> Vec<Piece>;

    /// The pieces that all Services share and that are not as programmed.
    fn compare_shared(&self, programmed: &Self::Rules, found: &Self::Rules) -> Vec<Piece>;

    /// The heading of all rules of the family: `table ip signpost`.
    fn heading(&self) -> String;

    /// A sentence about what was found.
    fn describe(&self, found: Found<'_, Self::Rules>) -> String;
}

/// What was found in the kernel, beside what was programmed.
#[derive(Debug)]
pub enum Found<'a, R> {
    /// Reading it failed, with this error and its causes.
    Unreadable(&'a str),
    /// There is nothing.
    Missing,
    /// These rules, where `programmed` were programmed.
    Rules {
        /// What was programmed last.
        programmed: &'a R,
        /// What was found.
        found: &'a R,
    },
}

/// `1 rule`, `2 rules`.
pub fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// A sentence on a kernel that holds so many `elements`, and that `repair` makes what was programmed.
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
