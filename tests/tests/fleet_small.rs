//! The measurement of `make fleet` with the fewest nodes that still form all waves.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::fleet::{Figures, measure};

#[test]
fn a_fleet_is_measured_and_an_operator_at_rest_writes_nothing() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let figures = runtime.block_on(measure(5, Duration::from_secs(2)))?;
    ensure!(figures.rest.operator < 0.1, "at rest: {}", figures.rest);
    let table = Figures::table(&[figures]);
    ensure!(table.lines().count() == 13, "{table}");
    Ok(())
}
