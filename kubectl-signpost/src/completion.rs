//! Scripts by which shells and kubectl complete the command line.

use clap::{CommandFactory, ValueEnum};
use clap_complete::{Shell, generate};

use crate::arguments::{Arguments, Color, Completer};
use crate::{PROGRAM, SHORT_NAME};

/// In the script for bash, the program has its short name: clap_complete 4.6 completes nothing
/// after a subcommand if the name has a hyphen (<https://github.com/clap-rs/clap/issues/6421>). This
/// lets the function of that script complete the other name as well.
const BOTH_IN_BASH: &str = "complete -F _signpost -o bashdefault -o default kubectl-signpost\n";
/// The same for the short name in fish, where one command can be completed as another.
const BOTH_IN_FISH: &str = "complete --command signpost --wraps kubectl-signpost\n";
/// The same in zsh: the first line counts where the script is a file of a directory in `fpath`, the last
/// one where it is sourced.
const BOTH_IN_ZSH: [(&str, &str); 2] = [
    (
        "#compdef kubectl-signpost\n",
        "#compdef kubectl-signpost signpost\n",
    ),
    (
        "compdef _kubectl-signpost kubectl-signpost\n",
        "compdef _kubectl-signpost kubectl-signpost signpost\n",
    ),
];

/// kubectl runs a program of this name for a plugin, with the words after that of the plugin. The
/// program prints what may replace the last word, a line each, and at the end a directive of cobra:
/// 4 excludes names of files, 0 offers them (`cobra/completions.go`). Words in brackets are no
/// words but the names of values.
const FOR_KUBECTL: &str = r#"#!/usr/bin/env bash
# Save as kubectl_complete-signpost in a directory of PATH, executable: kubectl then completes `kubectl signpost`.
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
        Completer::Bash => of_shell(Shell::Bash, SHORT_NAME) + BOTH_IN_BASH,
        Completer::Elvish => of_shell(Shell::Elvish, PROGRAM),
        Completer::Fish => of_shell(Shell::Fish, PROGRAM) + &values_in_fish() + BOTH_IN_FISH,
        Completer::Powershell => of_shell(Shell::PowerShell, PROGRAM),
        Completer::Zsh => {
            let script = of_shell(Shell::Zsh, PROGRAM);
            let both = BOTH_IN_ZSH.iter();
            both.fold(script, |script, (one, both)| script.replace(one, both))
        }
        Completer::Kubectl => FOR_KUBECTL.to_owned(),
    }
}

/// What clap_complete 4.6 leaves out for fish: the values of an argument that is no flag, and those of
/// a flag before the subcommand.
fn values_in_fish() -> String {
    format!(
        "complete -c {PROGRAM} -n \"__fish_kubectl_signpost_using_subcommand completion\" -f -a \"{}\"\n\
         complete -c {PROGRAM} -n \"not __fish_seen_subcommand_from {}\" -l color -r -f -a \"{}\"\n",
        values::<Completer>(),
        Arguments::command()
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect::<Vec<_>>()
            .join(" "),
        values::<Color>(),
    )
}

fn values<T: ValueEnum>() -> String {
    let variants = T::value_variants().iter();
    let values = variants.filter_map(ValueEnum::to_possible_value);
    let names: Vec<String> = values.map(|value| value.get_name().to_owned()).collect();
    names.join(" ")
}

fn of_shell(shell: Shell, name: &str) -> String {
    let mut script = Vec::new();
    generate(shell, &mut Arguments::command(), name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}
