//! The chains that choose an endpoint, for each number of endpoints in use.

use std::sync::Arc;

use dataplane::{Config, Family, Masquerade, Scheduler};
use netlink::nf_tables::{
    Chain, Expression, NatKind, NumberGenerator, Operator, Register, Rule, Verdict,
};

use super::rule_parts::{after, load_frontend, local_source, mark, rule, verdict};
use crate::layout::{self, Keyed, LOCAL_SLOTS, nft_family};
use crate::table::ChainWithRules;

/// A chain for one number of endpoints. Once made it stays until the table goes: kernels before 6.2
/// drop an element's hold on a chain late, and a transaction that removes a chain too early fails
/// whole. There are no more of them than there were different numbers of endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BalancingChain {
    pub(crate) keyed: Keyed,
    pub(crate) job: Job,
    pub(crate) count: u32,
}

/// What a balancing chain does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Job {
    /// Chooses one of all endpoints.
    Balance,
    /// Asks for masquerade unless a pod of this node sent the packet, then the same.
    Cluster,
    /// Asks for masquerade, then the same.
    External,
    /// Chooses one of the endpoints of this node.
    Local,
}

// === impl BalancingChain ===

impl BalancingChain {
    pub(crate) fn name(self) -> Arc<str> {
        let prefix = self.keyed.prefix();
        let job = match self.job {
            Job::Balance => "lb",
            Job::Cluster => "cluster",
            Job::External => "external",
            Job::Local => "local",
        };
        format!("{prefix}{job}-{}", self.count).into()
    }

    pub(crate) fn parse(name: &str) -> Option<BalancingChain> {
        let (keyed, rest) = match name.strip_prefix(Keyed::NodePort.prefix()) {
            Some(rest) => (Keyed::NodePort, rest),
            None => (Keyed::Address, name),
        };
        let (job, count) = rest.split_once('-')?;
        let job = match job {
            "lb" => Job::Balance,
            "cluster" => Job::Cluster,
            "external" => Job::External,
            "local" => Job::Local,
            _ => return None,
        };
        let count = count.parse().ok().filter(|count| *count > 0)?;
        let chain = BalancingChain { keyed, job, count };
        // `lb-07` would parse to a chain of another name.
        (*chain.name() == *name).then_some(chain)
    }

    /// The chains it leads to, itself included, those first that others lead to.
    pub(crate) fn closure(self) -> impl Iterator<Item = BalancingChain> {
        let through = matches!(self.job, Job::Cluster | Job::External);
        let needed = through.then(|| self.balance());
        needed.into_iter().chain([self])
    }

    pub(crate) fn render(self, family: Family, config: &Config) -> ChainWithRules {
        let balance = || verdict(Verdict::Goto(self.balance().name()));
        let rules = match self.job {
            Job::External => vec![mark(config), balance()],
            Job::Cluster => mark_cluster(family, config)
                .into_iter()
                .chain([balance()])
                .collect(),
            Job::Balance => self.choose(family, config, 0),
            Job::Local => self.choose(family, config, LOCAL_SLOTS),
        };
        ChainWithRules {
            chain: Chain {
                name: self.name(),
                hook: None,
            },
            rules,
        }
    }

    fn balance(self) -> BalancingChain {
        BalancingChain {
            job: Job::Balance,
            ..self
        }
    }

    /// One slot at random, and behind it the first slot. A commit that takes the last slot away can
    /// fall between a packet's lookup of this chain and its lookup of the slot: nf_tables asks for
    /// the current generation at each lookup, not once a packet. Such a packet gets the first
    /// endpoint, where otherwise it would leave for the cluster IP itself.
    fn choose(self, family: Family, config: &Config, offset: u32) -> Vec<Rule> {
        let generator = match config.scheduler {
            Scheduler::Random => NumberGenerator::Random,
            Scheduler::RoundRobin => NumberGenerator::Incremental,
        };
        let choice = |modulus, generator| {
            let (mut expressions, end) = load_frontend(family, self.keyed);
            expressions.extend([
                Expression::Numgen {
                    generator,
                    modulus,
                    offset,
                    to: end,
                },
                Expression::LookupValue {
                    set: layout::name(self.keyed.endpoints().as_str()),
                    from: Register(0),
                    to: Register(0),
                },
                Expression::Nat {
                    kind: NatKind::Destination,
                    family: nft_family(family),
                    address: Register(0),
                    port: after(Register(0), nft_family(family).address().width()),
                },
            ]);
            Rule { expressions }
        };
        let mut rules = vec![choice(self.count, generator)];
        if self.count > 1 {
            rules.push(choice(1, NumberGenerator::Random));
        }
        rules
    }
}

/// Marks what reaches a cluster IP and is to be masqueraded, if anything is.
fn mark_cluster(family: Family, config: &Config) -> Option<Rule> {
    let mut expressions = match config.masquerade {
        Masquerade::All => Vec::new(),
        Masquerade::NonLocal => local_source(family, config, Operator::NotEqual)?,
    };
    expressions.extend(mark(config).expressions);
    Some(rule(expressions))
}
