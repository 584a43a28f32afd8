//! What people may ask of a mechanism's rules: where they take a packet, what in them is a frontend's,
//! and where what was found differs from what is wanted. Pure: rules are read by the caller.

use std::fmt::Debug;

use dataplane::{Dataplane, FrontendKey, Node, Packet, Verdict};

use crate::{Backend, Piece, Way};

/// What the rules of a [`Backend`] mean, for traces and explanations.
pub trait Inspect: Backend + Debug {
    /// Whether `rules` are those of a mechanism that is in use: an empty table is, no table is not.
    fn exist(&self, rules: &Self::Rules) -> bool;

    /// How many elements or rules there are.
    fn elements(&self, rules: &Self::Rules) -> usize;

    /// Where `rules` take `packet`. Equals [`Dataplane::verdict`] where they were rendered from that
    /// dataplane.
    fn simulate(&self, rules: &Self::Rules, node: &Node, packet: &Packet) -> Verdict;

    /// The ways by which `rules` take `packet` there, each with what it meets.
    fn ways(&self, rules: &Self::Rules, node: &Node, packet: &Packet) -> Vec<Way>;

    /// What the Services of `part`, which are some of `desired`, come to in the arrangement of
    /// `believed`: what the comparisons below compare.
    fn render_part(
        &self,
        part: &Dataplane,
        desired: &Dataplane,
        believed: &Self::Rules,
    ) -> Self::Rules;

    /// The elements or rules of one frontend, as they are `wanted` and as they were `found`.
    fn compare_frontend(
        &self,
        wanted: &Self::Rules,
        found: &Self::Rules,
        key: &FrontendKey,
    ) -> Vec<Piece>;

    /// The chains that packets to one frontend pass and others do not.
    fn compare_chains(
        &self,
        wanted: &Self::Rules,
        found: &Self::Rules,
        key: &FrontendKey,
    ) -> Vec<Piece>;

    /// What the Services of `part` need beside their frontends: cluster IPs, endpoints on this node,
    /// health checks.
    fn compare_memberships(
        &self,
        wanted: &Self::Rules,
        found: &Self::Rules,
        part: &Dataplane,
    ) -> Vec<Piece>;

    /// What all Services share and is not as it was programmed.
    fn compare_shared(&self, programmed: &Self::Rules, found: &Self::Rules) -> Vec<Piece>;

    /// What is printed above all rules of the family: `table ip signpost`.
    fn heading(&self) -> String;

    /// A sentence on what was found, for people.
    fn describe(&self, found: Found<'_, Self::Rules>) -> String;
}

/// How what was found in the kernel compares to what was programmed.
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
