//! The scripts by which shells and kubectl complete the command line.

use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kubectl-signpost");

/// Prints what bash offers for the words after the program's name, the last of which is incomplete.
const OFFER: &str = r#"
source <("$0" completion bash)
COMP_WORDS=(kubectl-signpost "$@")
COMP_CWORD=$#
function=$(complete -p kubectl-signpost | sed 's/.*-F \([^ ]*\).*/\1/')
"$function" kubectl-signpost "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;

/// Returns what bash offers for `words`, the last of which is incomplete.
fn offers(words: &[&str]) -> Vec<String> {
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", OFFER, PROGRAM]);
    let output = bash.args(words).output().expect("bash runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let offers = String::from_utf8_lossy(&output.stdout);
    offers.lines().map(str::to_owned).collect()
}

fn completion(of: &str) -> Output {
    let mut command = Command::new(PROGRAM);
    let output = command.args(["completion", of]).output();
    output.expect("the program runs")
}

/// With a hyphen in the program's name, the library completed nothing after a subcommand.
#[test]
fn t187_bash_completes_commands_and_flags() {
    assert_eq!(offers(&["ro"]), ["rollout"]);
    assert_eq!(offers(&["rollout", "re"]), ["resume", "retry"]);
    assert_eq!(offers(&["nodes", "--not"]), ["--not-ready"]);
    assert_eq!(offers(&["status", "--output", "js"]), ["json"]);
    assert_eq!(offers(&["--color", "al"]), ["always"]);
}

/// Its usage said `kubectl signpost`, and only bash completed it.
#[test]
fn t238_under_its_short_name_the_program_says_it_and_shells_complete_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let short = folder.path().join("signpost");
    std::os::unix::fs::symlink(PROGRAM, &short).expect("a link");
    let says = |words: &[&str]| {
        let output = Command::new(&short)
            .args(words)
            .output()
            .expect("the program runs");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let help = says(&["rollout", "undo", "--help"]);
    assert!(help.contains("Usage: signpost rollout undo"), "{help}");
    let error = says(&["status", "--kubeconfig=/no/such"]);
    assert!(error.starts_with("signpost: "), "{error}");
    for (shell, line) in [
        (
            "bash",
            "complete -F _signpost -o bashdefault -o default signpost",
        ),
        (
            "fish",
            "complete --command signpost --wraps kubectl-signpost",
        ),
        ("zsh", "#compdef kubectl-signpost signpost"),
        ("zsh", "compdef _kubectl-signpost kubectl-signpost signpost"),
    ] {
        let script = completion(shell).stdout;
        let script = String::from_utf8_lossy(&script).into_owned();
        assert!(
            script.lines().any(|found| found.trim().starts_with(line)),
            "{shell}: {script}"
        );
    }
}

#[test]
fn every_shell_gets_a_script_and_an_unknown_one_a_list_of_them() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = completion(shell);
        let script = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{shell}");
        assert!(script.contains("rollout"), "{shell}: {script}");
    }
    let output = completion("tcsh");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    let all = "bash, elvish, fish, powershell, zsh, kubectl";
    assert!(errors.contains(all), "{errors}");
}
