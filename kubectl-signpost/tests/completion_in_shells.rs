//! What zsh and fish complete on the command line.

use std::env;
use std::process::Command;

use libtest_mimic::{Arguments, Failed, Trial};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kubectl-signpost");

/// Prints what becomes of each line once a user has typed it in zsh, followed by a tab. zsh completes
/// only on a terminal. `$1` says how the shell gets the script.
const IN_ZSH: &str = r#"
zmodload zsh/zpty
export SHOWN=$PWD/shown
zpty inner zsh -f -i
zpty -w inner "$1"
zpty -w inner 'show() { print -r -- "$BUFFER" >>$SHOWN; BUFFER= }; zle -N show; bindkey "^G" show; bindkey "^I" complete-word'
for line in "${@:2}"; do
    zpty -w -n inner "$line"$'\t\x07'
done
zpty -w inner exit
while zpty -r inner _; do :; done
cat $SHOWN
"#;
const SOURCED: &str =
    "autoload -Uz compinit; compinit -u -D; source <(kubectl-signpost completion zsh)";
const OF_FPATH: &str = "kubectl-signpost completion zsh >_kubectl-signpost; fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D";

/// Prints what fish offers after each line, separated by commas.
const IN_FISH: &str = r#"
kubectl-signpost completion fish | source
for line in $argv
    complete -C $line | string split --fields 1 \t | string join ,
end
exit 0
"#;

/// A line, and what it becomes.
const COMPLETED: [(&str, &str); 11] = [
    ("kubectl-signpost rol", "kubectl-signpost rollout"),
    ("signpost rol", "signpost rollout"),
    (
        "kubectl-signpost rollout res",
        "kubectl-signpost rollout resume",
    ),
    ("signpost rollout res", "signpost rollout resume"),
    (
        "kubectl-signpost --context x rollout ret",
        "kubectl-signpost --context x rollout retry",
    ),
    (
        "kubectl-signpost nodes --not",
        "kubectl-signpost nodes --not-ready",
    ),
    (
        "kubectl-signpost status --output js",
        "kubectl-signpost status --output json",
    ),
    (
        "kubectl-signpost --color al",
        "kubectl-signpost --color always",
    ),
    (
        "kubectl-signpost status --color al",
        "kubectl-signpost status --color always",
    ),
    (
        "kubectl-signpost completion pow",
        "kubectl-signpost completion powershell",
    ),
    (
        "kubectl-signpost sysdump --file /pro",
        "kubectl-signpost sysdump --file /proc/",
    ),
];

type Test = fn() -> Result<(), Failed>;

fn main() {
    let tests = [
        (
            "zsh",
            "t244_zsh_completes_commands_flags_and_values",
            in_zsh as Test,
        ),
        (
            "fish",
            "t244_fish_completes_commands_flags_and_values",
            in_fish,
        ),
    ];
    let trials = tests.map(|(shell, name, test)| {
        if Command::new(shell).arg("--version").output().is_err() {
            println!("SKIPPED: what {shell} completes, for want of {shell}");
            return Trial::test(format!("SKIPPED_{name}"), || Ok(())).with_ignored_flag(true);
        }
        Trial::test(name, test)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit();
}

fn in_zsh() -> Result<(), Failed> {
    // As a file, zsh finds the script by the names in its first line.
    for (how, lines) in [(SOURCED, &COMPLETED[..]), (OF_FPATH, &COMPLETED[..2])] {
        let typed = lines.iter().map(|(line, _)| *line);
        let shown = run(
            "zsh",
            ["-f", "-c", IN_ZSH, "zsh", how].into_iter().chain(typed),
        )?;
        // After a word that is complete, zsh adds a space.
        let became: Vec<&str> = shown.lines().map(str::trim_end).collect();
        let expected: Vec<&str> = lines.iter().map(|(_, completed)| *completed).collect();
        if became != expected {
            return Err(format!("after {how} the lines become {became:#?}").into());
        }
    }
    Ok(())
}

fn in_fish() -> Result<(), Failed> {
    let typed = COMPLETED.iter().map(|(line, _)| *line);
    let offered = run(
        "fish",
        ["--no-config", "--command", IN_FISH]
            .into_iter()
            .chain(typed),
    )?;
    let offered: Vec<&str> = offered.lines().collect();
    let last_word = |(_, completed): &(&'static str, &'static str)| completed.rsplit(' ').next();
    let expected: Vec<&str> = COMPLETED.iter().filter_map(last_word).collect();
    if offered != expected {
        return Err(format!("it offers {offered:#?}").into());
    }
    Ok(())
}

/// Runs a shell in an empty folder, with the program under both of its names in PATH.
fn run<'a>(shell: &str, arguments: impl Iterator<Item = &'a str>) -> Result<String, Failed> {
    let folder = tempfile::tempdir()?;
    for name in ["kubectl-signpost", "signpost"] {
        std::os::unix::fs::symlink(PROGRAM, folder.path().join(name))?;
    }
    let path = env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", folder.path().display());
    let output = Command::new(shell)
        .args(arguments)
        .env("PATH", path)
        .env("HOME", folder.path())
        .current_dir(folder.path())
        .output()?;
    if !output.status.success() {
        return Err(format!("{shell}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
