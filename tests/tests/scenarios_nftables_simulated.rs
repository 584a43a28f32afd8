//! Every scenario, told to the nftables rules as this process understands them.

use anyhow::Result;
use backend_nftables::{open, simulate};
use libtest_mimic::Arguments;
use tests::scenario::{Simulated, Update, nftables_form, trials};

fn main() -> Result<()> {
    let trials = trials(Update::from_environment()?, |_| {
        // Opened for what it renders; nothing is committed.
        Ok(Simulated::new(open()?, simulate, nftables_form()))
    })?;
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
