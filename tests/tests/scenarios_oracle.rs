//! Runs every scenario with the oracle.

use anyhow::Result;
use libtest_mimic::Arguments;
use tests::scenario::{Oracle, Update, trials};

fn main() -> Result<()> {
    let trials = trials(Update::from_environment()?, |_| Ok(Oracle::default()))?;
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
