//! Runs every scenario with the nftables rules evaluated in this process.

use anyhow::Result;
use backend_nftables::{Memory, open, simulate, simulate_next};
use libtest_mimic::Arguments;
use tests::scenario::{Simulated, Update, Walk, nftables_form, trials};

fn main() -> Result<()> {
    let trials = trials(Update::from_environment()?, |_| {
        // The backends only render; nothing is committed.
        let walk = Walk {
            first: simulate,
            next: |table: &_, node: &_, packet: &_, memory: &mut Memory, number| {
                simulate_next(table, node, packet, memory, number)
            },
        };
        Ok(Simulated::new(open()?, walk, nftables_form()))
    })?;
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
