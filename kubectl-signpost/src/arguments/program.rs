//! Options of the commands about the program itself.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{Format, without_wide};

/// Where the manual pages are written to.
#[derive(Debug, Args)]
pub struct ManOptions {
    /// The directory, which must exist. Pages of an earlier version are replaced.
    #[arg(value_name = "DIRECTORY")]
    pub directory: PathBuf,
}

/// Whose version, and how it is printed.
#[derive(Debug, Args)]
pub struct VersionOptions {
    /// Print the version of this program only, without a cluster.
    #[arg(long)]
    pub client: bool,
    /// The format: text, json or yaml.
    #[arg(long, short, value_name = "FORMAT", default_value = "text", value_parser = without_wide())]
    pub output: Format,
}

/// For which shell.
#[derive(Debug, Args)]
pub struct CompletionOptions {
    /// The shell that is to complete them, or kubectl.
    #[arg(value_name = "SHELL")]
    pub completer: Completer,
}

/// What completes the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Completer {
    /// GNU Bash.
    Bash,
    /// Elvish.
    Elvish,
    /// fish.
    Fish,
    /// PowerShell.
    Powershell,
    /// Z shell.
    Zsh,
    /// kubectl, for its own completion in any shell.
    Kubectl,
}
