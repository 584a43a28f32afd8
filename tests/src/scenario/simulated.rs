//! Evaluates a backend's rules in this process.

use anyhow::Result;
use backend::{Backend, Change as _, Rendered, Size};
use dataplane::{Dataplane, Family, Node, Packet, Verdict};

use super::{Depth, Dump, Judgement};

/// A backend that only renders and never commits.
#[derive(Debug)]
pub struct Simulated<B: Backend, S, N, M> {
    families: [(B, Rendered<B::Rules>); 2],
    node: std::sync::Arc<Node>,
    walk: Walk<S, N>,
    form: Form<B::Rules>,
    memories: [M; 2],
}

/// Evaluates rules in place of a kernel.
#[derive(Debug)]
pub struct Walk<S, N> {
    /// Returns all possible results for a packet of a new client.
    pub first: S,
    /// Returns the result for one packet, given the state that earlier packets left behind, and a
    /// random number.
    pub next: N,
}

/// The printable form of a backend's rules in golden sections.
#[derive(Debug, Clone, Copy)]
pub struct Form<R> {
    /// The name of the form.
    pub dump: Dump,
    /// Prints the rules of one family.
    pub print: fn(&R) -> String,
}

// === impl Simulated ===

impl<B, S, N, M> Simulated<B, S, N, M>
where
    B: Backend,
    S: Fn(&B::Rules, &Node, &Packet) -> Verdict,
    N: Fn(&B::Rules, &Node, &Packet, &mut M, u32) -> Verdict,
    M: Default,
{
    /// Creates a depth from both families of a backend, IPv4 first, and the evaluation of its
    /// rules.
    pub fn new(backends: [B; 2], walk: Walk<S, N>, form: Form<B::Rules>) -> Simulated<B, S, N, M> {
        Simulated {
            families: backends.map(|backend| (backend, empty())),
            node: std::sync::Arc::default(),
            walk,
            form,
            memories: Default::default(),
        }
    }
}

impl<B, S, N, M> Depth for Simulated<B, S, N, M>
where
    B: Backend,
    S: Fn(&B::Rules, &Node, &Packet) -> Verdict,
    N: Fn(&B::Rules, &Node, &Packet, &mut M, u32) -> Verdict,
    M: Default,
{
    fn apply(&mut self, desired: &Dataplane) -> Result<Size> {
        self.node = std::sync::Arc::clone(desired.node());
        let mut size = Size::default();
        for (backend, observed) in &mut self.families {
            let expected = backend.render(desired, observed);
            size = sum(size, backend.diff(&observed.rules, &expected).size());
            *observed = Rendered {
                dataplane: desired.clone(),
                rules: expected,
            };
        }
        Ok(size)
    }

    fn restart(&mut self, desired: &Dataplane) -> Result<Size> {
        for (_, observed) in &mut self.families {
            observed.dataplane = Dataplane::default();
        }
        self.apply(desired)
    }

    fn judge(&mut self, packet: &Packet, expected: &Verdict) -> Result<Judgement> {
        let [(_, ipv4), (_, ipv6)] = &self.families;
        let observed = match Family::of(packet.destination) {
            Family::Ipv4 => ipv4,
            Family::Ipv6 => ipv6,
        };
        let verdict = (self.walk.first)(&observed.rules, &self.node, packet);
        Ok(Judgement::of_verdict(&verdict, expected))
    }

    fn connect(&mut self, packet: &Packet, times: u32) -> Result<Option<Vec<Verdict>>> {
        let [(_, ipv4), (_, ipv6)] = &self.families;
        let [ipv4_memory, ipv6_memory] = &mut self.memories;
        let (observed, memory) = match Family::of(packet.destination) {
            Family::Ipv4 => (ipv4, ipv4_memory),
            Family::Ipv6 => (ipv6, ipv6_memory),
        };
        let verdicts = (0..times)
            .map(|number| (self.walk.next)(&observed.rules, &self.node, packet, memory, number));
        Ok(Some(verdicts.collect()))
    }

    fn dump(&mut self, dump: Dump) -> Result<Option<String>> {
        let rules = self.families.iter().map(|(_, observed)| &observed.rules);
        let rules = rules.collect::<Vec<_>>();
        Ok((dump == self.form.dump).then(|| print_families(&rules, self.form.print)))
    }
}

pub(super) fn sum(one: Size, other: Size) -> Size {
    Size {
        elements: one.elements + other.elements,
        objects: one.objects + other.objects,
    }
}

/// Prints the rules of both families, each below its name.
pub(super) fn print_families<R>(rules: &[&R], print: fn(&R) -> String) -> String {
    let texts = Family::ALL.iter().zip(rules).map(|(family, rules)| {
        let text = print(rules);
        format!("{family}\n{text}\n")
    });
    texts.collect()
}

pub(super) fn empty<R: Default>() -> Rendered<R> {
    Rendered {
        dataplane: Dataplane::default(),
        rules: R::default(),
    }
}
