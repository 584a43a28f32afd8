//! Scripts by which shells and kubectl complete the command line.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::PROGRAM;
use crate::arguments::{Arguments, Completer};

/// The name of the program in the script for bash: clap_complete 4.6 completes nothing after a
/// subcommand if the name has a hyphen (<https://github.com/clap-rs/clap/issues/6421>).
const NAME_IN_BASH: &str = "signpost";
/// Lets the function of that script complete the program as well.
const REGISTRATION: &str = "complete -F _signpost -o bashdefault -o default kubectl-signpost\n";

/// kubectl runs a program of this name for a plugin, with the words after that of the plugin. The
/// program prints what may replace the last word, a line each, and at the end a directive of cobra:
/// 4 excludes names of files, 0 offers them (`cobra/completions.go`). Words in brackets are no
/// words but the names of values.
const FOR_KUBECTL: &str = r#"#!/usr/bin/env bash
# Save as kubectl_complete-signpost in a folder of PATH, executable: kubectl then completes `kubectl signpost`.
source <(kubectl-signpost completion bash)
COMP_WORDS=(kubectl-signpost "$@")
COMP_CWORD=$#
_signpost kubectl-signpost "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
directive=0
for word in "${COMPREPLY[@]}"; do
    case $word in
    '['* | '<'*) ;;
    *) echo "$word" && directive=4 ;;
    esac
done
echo ":$directive"
"#;

/// Returns the script for `completer`.
pub(crate) fn script(completer: Completer) -> String {
    match completer {
        Completer::Bash => of_shell(Shell::Bash, NAME_IN_BASH) + REGISTRATION,
        Completer::Elvish => of_shell(Shell::Elvish, PROGRAM),
        Completer::Fish => of_shell(Shell::Fish, PROGRAM),
        Completer::Powershell => of_shell(Shell::PowerShell, PROGRAM),
        Completer::Zsh => of_shell(Shell::Zsh, PROGRAM),
        Completer::Kubectl => FOR_KUBECTL.to_owned(),
    }
}

fn of_shell(shell: Shell, name: &str) -> String {
    let mut script = Vec::new();
    generate(shell, &mut Arguments::command(), name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}
