//! Runs every scenario with the rules of mode ipvs evaluated in this process.

use anyhow::Result;
use backend_ipvs::{Ipvs, Memory, simulate, simulate_next};
use dataplane::Family;
use libtest_mimic::Arguments;
use tests::scenario::{Simulated, Update, Walk, ipvs_form, trials};

fn main() -> Result<()> {
    let trials = trials(Update::from_environment()?, |_| {
        let walk = Walk {
            first: simulate,
            next: |rules: &_, node: &_, packet: &_, memory: &mut Memory, number| {
                simulate_next(rules, node, packet, memory, number)
            },
        };
        let backends = Family::ALL.map(Ipvs::detached);
        Ok(Simulated::new(backends, walk, ipvs_form()))
    })?;
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
