//! Fresh kernels for the laws: each is a separate network namespace.

use std::collections::BTreeSet;
use std::fmt::Debug;

use anyhow::{Result, ensure};
use backend::{Backend, Rendered};
use dataplane::{Family, FrontendKey, Target};
use demo::network::{Namespace, Network};
use testkit::laws::{self, Subject};

use crate::programmed::{generated_clusters, generated_histories, program};

/// How the laws access the kernels of a mode.
#[derive(Debug)]
pub struct Kernels<B: Backend> {
    /// The family under test.
    pub family: Family,
    /// Opens both families of a namespace.
    pub open: fn(&Namespace) -> Result<[B; 2]>,
    /// Returns the rules in a canonical arrangement.
    pub canonical: fn(&B::Rules, Family) -> B::Rules,
    /// Returns the targets of connections to a frontend according to the rules.
    pub targets: fn(&B::Rules, &FrontendKey) -> BTreeSet<Target>,
}

impl<B> Subject for Kernels<B>
where
    B: Backend<Rules: PartialEq + Debug>,
{
    type Backend = B;
    type Canonical = B::Rules;

    fn fresh(&self) -> B {
        let mut network = Network::new().expect("a network");
        let [namespace] = network.add_namespaces(["law"]).expect("a namespace");
        let backends = (self.open)(&namespace).expect("the mode");
        // The sockets keep the namespace alive after its name is gone.
        drop(network);
        let asked = |backend: &B| backend.family() == self.family;
        backends.into_iter().find(asked).expect("both families")
    }

    fn canonical(&self, rules: &B::Rules) -> B::Rules {
        (self.canonical)(rules, self.family)
    }

    fn targets(&self, rules: &B::Rules, key: &FrontendKey) -> BTreeSet<Target> {
        (self.targets)(rules, key)
    }
}

/// Checks every law of backends over generated histories.
pub fn every_law_holds<S: Subject>(of: impl Fn(Family) -> S, histories: usize) -> Result<()> {
    for (seed, history) in (0..).zip(generated_histories(histories)?) {
        for family in Family::ALL {
            laws::all(&of(family), &history, seed);
        }
    }
    Ok(())
}

/// Programs generated clusters one after another in the kernel of `backends`; checks each time that
/// the kernel holds the rendered rules.
pub fn hold_what_was_rendered<B: Backend>(backends: [B; 2], clusters: usize) -> Result<()> {
    let clusters = generated_clusters(clusters)?;
    for mut backend in backends {
        let mut programmed = Rendered::default();
        for cluster in &clusters {
            programmed = program(&mut backend, &cluster.compile(), &programmed)?;
            let observed = backend.observe()?;
            let difference = backend.diff(&observed, &programmed.rules);
            ensure!(
                observed == programmed.rules,
                "the kernel lacks:\n{difference}"
            );
        }
    }
    Ok(())
}
