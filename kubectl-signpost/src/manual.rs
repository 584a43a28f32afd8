//! Manual pages, made of what `--help` prints.

use anyhow::Context;
use clap::CommandFactory;

use crate::advice::problem;
use crate::arguments::{Arguments, ManOptions};
use crate::ending::Ending;
use crate::print;

/// Writes a page for the program and for each command, and prints the directory.
pub(crate) fn write(options: &ManOptions) -> anyhow::Result<Ending> {
    let directory = options.directory.display();
    clap_mangen::generate_to(Arguments::command(), &options.directory).with_context(|| {
        problem(
            format!("failed to write manual pages to {directory}"),
            "give a directory that exists and that you may write to, as `mkdir -p` makes it",
        )
    })?;
    print(&format!("wrote manual pages to {directory}\n"))?;
    Ok(Ending::Success)
}
