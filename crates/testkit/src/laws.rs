//! The laws that every backend obeys.
//!
//! The tests of a backend implement [`Subject`] for it and call these functions with generated
//! histories ([`histories`](crate::histories)), over a simulated kernel or a real one. Each
//! function is one law and panics with the evidence of a violation.

mod ends;
mod faults;
mod isolation;
mod passage;
mod purity;
mod repair;
mod simulated;
mod source_ranges;
mod steps;
mod unrelated;

use std::collections::BTreeSet;
use std::fmt::Debug;

use backend::{Backend, Change, Rendered};
use dataplane::{Dataplane, FrontendKey, Target};

pub use ends::{is_no_worse_than_both_ends, no_worse_than_both_ends};
pub use faults::{converges_under_faults, never_half_serves};
pub use isolation::{HonestVerdicts, honest_verdicts_do_not_depend_on_tenants, is_protected};
pub use passage::{is_for_node_port_at_cluster_ip, never_misleads};
pub use purity::{render_depends_on_content_only, render_from_anything_is_the_same};
pub use repair::{is_served_in_spite_of_its_source, no_worse_during_repair};
pub use simulated::Simulated;
pub use source_ranges::{balancers_with_source_ranges, source_ranges_hold_during_repair};
pub use steps::{
    Stepwise, a_change_that_is_cut_short_harms_nobody,
    honest_services_notice_nothing_while_tenants_come_and_go,
};
pub use unrelated::{AffectsPacket, unrelated_services_notice_nothing};

/// A backend as the subject of laws.
pub trait Subject {
    /// The backend.
    type Backend: Backend;
    /// The canonical form of its rules, without choices between equally good arrangements.
    type Canonical: PartialEq + Debug;

    /// Creates a backend over a kernel without Signpost's rules.
    fn fresh(&self) -> Self::Backend;

    /// Returns the canonical form of the rules.
    fn canonical(&self, rules: &<Self::Backend as Backend>::Rules) -> Self::Canonical;

    /// The endpoints that these rules send connections to `key` to, for any client.
    fn targets(
        &self,
        rules: &<Self::Backend as Backend>::Rules,
        key: &FrontendKey,
    ) -> BTreeSet<Target>;
}

/// The rules of a subject's backend.
pub type Rules<S> = <<S as Subject>::Backend as Backend>::Rules;

/// Checks all laws. The seed determines orders and faults.
pub fn all<S: Subject>(subject: &S, history: &[Dataplane], seed: u64) {
    nothing_differs_from_itself(subject, history);
    render_depends_on_content_only(subject, history, seed);
    render_from_anything_is_the_same(subject, history);
    a_commit_arrives(subject, history);
    a_restart_writes_nothing(subject, history);
    removal_leaves_nothing(subject, history);
    converges_under_faults(subject, history, seed);
}

/// `diff(a, a)` is empty.
pub fn nothing_differs_from_itself<S: Subject>(subject: &S, history: &[Dataplane]) {
    let backend = subject.fresh();
    for desired in history {
        let rules = backend.render(desired, &Rendered::default());
        let change = backend.diff(&rules, &rules);
        assert!(
            change.size().is_empty(),
            "these differ from themselves:\n{change}"
        );
    }
}

/// After `commit(diff(a, b))` on a kernel that holds `a`, `observe` returns the rendered `b`.
pub fn a_commit_arrives<S: Subject>(subject: &S, history: &[Dataplane]) {
    let mut backend = subject.fresh();
    let mut programmed = Rendered::default();
    for desired in history {
        step(&mut backend, &mut programmed, desired);
        let observed = backend.observe().expect("a kernel without faults is read");
        assert_eq!(
            observed, programmed.rules,
            "left is what the kernel holds, right what was committed"
        );
    }
}

/// A process that starts on a kernel with the desired rules has nothing to write.
pub fn a_restart_writes_nothing<S: Subject>(subject: &S, history: &[Dataplane]) {
    let mut backend = subject.fresh();
    let mut observed = Rendered::default();
    for desired in history {
        step(&mut backend, &mut observed, desired);
        let found = Rendered {
            dataplane: Dataplane::default(),
            rules: backend.observe().expect("a kernel without faults is read"),
        };
        let desired_rules = backend.render(desired, &found);
        let change = backend.diff(&found.rules, &desired_rules);
        assert!(change.size().is_empty(), "a restart would write:\n{change}");
    }
}

/// After `commit_removal` the kernel holds what it held before the first commit, and removing
/// nothing succeeds.
pub fn removal_leaves_nothing<S: Subject>(subject: &S, history: &[Dataplane]) {
    let mut backend = subject.fresh();
    let empty = backend.observe().expect("a kernel without faults is read");
    let mut observed = Rendered::default();
    for desired in history {
        step(&mut backend, &mut observed, desired);
    }
    for _ in 0..2 {
        let receipt = backend.commit_removal();
        let _ = receipt.expect("a kernel without faults lets go");
        let left = backend.observe().expect("a kernel without faults is read");
        assert_eq!(left, empty, "left is what removal left behind");
    }
}

/// One sync without faults.
fn step<B: Backend>(backend: &mut B, observed: &mut Rendered<B::Rules>, desired: &Dataplane) {
    let rules = backend.render(desired, observed);
    let change = backend.diff(&observed.rules, &rules);
    if !change.size().is_empty() {
        let text = change.to_string();
        if let Err(error) = backend.commit(change) {
            panic!("a kernel without faults refused: {error:?}\n{text}");
        }
    }
    *observed = Rendered {
        dataplane: desired.clone(),
        rules,
    };
}

#[cfg(test)]
mod tests;
