//! The cost of the operator in a cluster of many nodes: `make fleet`. See `bench/README.md`.

use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use tests::fleet::{Figures, Settings, measure};

/// Runs the real operator on a real API server with simulated agents, and prints its cost.
#[derive(Debug, Parser)]
struct Arguments {
    /// The number of nodes. Repeat it for several sizes.
    #[arg(long, default_values_t = [100, 1000, 5000])]
    nodes: Vec<usize>,
    /// The duration of each observed period, in seconds.
    #[arg(long, default_value_t = 60)]
    watched: u64,
    /// The number of nodes whose reports are followed to the profile's status, at rest and under
    /// churn.
    #[arg(long, default_value_t = 5)]
    tries: u32,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut sizes = Vec::new();
    for nodes in arguments.nodes {
        sizes.push(runtime.block_on(measure(Settings {
            nodes,
            watched: Duration::from_secs(arguments.watched),
            tries: arguments.tries,
        }))?);
    }
    if cfg!(debug_assertions) {
        println!("Built without optimization: processor times count for nothing.");
    }
    println!("{}", Figures::table(&sizes));
    if sizes.len() > 1 {
        println!("\nRatio of each figure to that of the size before:\n");
        println!("{}", Figures::growth(&sizes));
    }
    Ok(())
}
