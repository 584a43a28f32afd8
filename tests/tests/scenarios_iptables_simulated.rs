//! Runs every scenario with the iptables rules evaluated in this process.

use anyhow::Result;
use backend_iptables::{Iptables, Memory, simulate, simulate_next};
use dataplane::Family;
use libtest_mimic::Arguments;
use tests::scenario::{Simulated, Update, Walk, iptables_form, trials};
use xtables::Variant;

fn main() -> Result<()> {
    let trials = trials(Update::from_environment()?, |_| {
        let walk = Walk {
            first: simulate,
            next: |rules: &_, node: &_, packet: &_, memory: &mut Memory, number| {
                simulate_next(rules, node, packet, memory, number)
            },
        };
        // The variants differ only in comments, which golden sections do not contain.
        let backends = Family::ALL.map(|family| Iptables::detached(family, Variant::NfTables));
        Ok(Simulated::new(backends, walk, iptables_form()))
    })?;
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
