//! `kubectl signpost`: the command line of Signpost, with the user's own kubeconfig and rights.
//!
//! ```text
//! cluster (reads objects) --objects--> status | nodes | rollout | ... (pure) --text--> standard output
//! ```
//!
//! Every subcommand has one module. Pure functions compute its output from objects; the rest only
//! reads the objects and prints the text.

mod advice;
mod agent;
mod check;
mod cluster;
mod completion;
mod config;
mod dashboard;
mod ending;
mod inspect;
mod installation;
mod manual;
mod migrate;
mod nodes;
mod output;
mod placement;
mod pod_network;
mod rollout;
mod status;
mod sysdump;
mod table;
mod trouble;
mod version;

use std::env;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use kubectl_signpost::arguments;
use runtime::chain;

use crate::arguments::{Arguments, Command};
use crate::ending::Ending;
use crate::output::Paint;

/// The name of the program, by which kubectl finds it.
const PROGRAM: &str = "kubectl-signpost";
/// The name under which it can be used without kubectl.
const SHORT_NAME: &str = "signpost";
/// The exit code of a program that SIGPIPE ends, as shells report it.
const BROKEN_PIPE: u8 = 141;

fn main() -> ExitCode {
    cluster::exec_without_empty_entries();
    let arguments = parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(carry_out(arguments)),
        Err(error) => Err(error.into()),
    };
    match ended {
        Ok(ending) => ending.into(),
        // The reader closed the pipe, as `head` does after ten lines: without the rest there is no result.
        Err(error) if is_closed_pipe(&error) => ExitCode::from(BROKEN_PIPE),
        Err(error) => {
            eprintln!("{}: {}", program_name(), chain(error.as_ref()));
            eprintln!("  next: {}", advice::next(&error));
            ExitCode::FAILURE
        }
    }
}

/// Returns the name under which the program was started.
fn program_name() -> &'static str {
    let path = env::args_os().next().unwrap_or_default();
    let is_short = Path::new(&path)
        .file_stem()
        .is_some_and(|stem| stem == SHORT_NAME);
    if is_short { SHORT_NAME } else { PROGRAM }
}

fn parse() -> Arguments {
    let command = match program_name() {
        SHORT_NAME => Arguments::command().name(SHORT_NAME).bin_name(SHORT_NAME),
        _ => Arguments::command(),
    };
    let matches = command.get_matches();
    Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

async fn carry_out(arguments: Arguments) -> anyhow::Result<Ending> {
    let Arguments { access, command } = arguments;
    let paint = Paint::of_standard_output(access.color);
    match command {
        Command::Check(options) => check::run(&access, &options, paint).await,
        Command::Status(options) => status::run(&access, &options, paint).await,
        Command::Nodes(options) => nodes::run(&access, &options, paint).await,
        Command::Rollout(step) => rollout::run(&access, &step, paint).await,
        Command::Explain(options) => inspect::explain(&access, &options).await,
        Command::Trace(options) => inspect::trace(&access, &options).await,
        Command::Config(step) => config::run(&access, &step).await,
        Command::Migrate(step) => migrate::run(&access, &step, paint).await,
        Command::Dashboard(options) => dashboard::run(&access, &options).await,
        Command::Sysdump(options) => sysdump::run(&access, &options).await,
        Command::Version(options) => version::run(&access, &options).await,
        Command::Completion(options) => {
            print(&completion::script(options.completer))?;
            Ok(Ending::Success)
        }
        Command::Man(options) => manual::write(&options),
    }
}

/// Writes `text` to standard output and flushes it.
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes `text` to standard output as long as it is read. For commands whose work must not end with
/// its reader.
fn print_while_read(text: &str) {
    let _ = print(text);
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref().map(io::Error::kind);
    kind == Some(ErrorKind::BrokenPipe)
}
