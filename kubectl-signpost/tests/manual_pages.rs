//! The manual pages.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use clap::CommandFactory;
use kubectl_signpost::arguments::Arguments;

fn write(folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-signpost"));
    let output = command.arg("man").arg(folder).output();
    output.expect("the program runs")
}

/// Adds the name of the page of `command` and of those below it.
fn name_pages(command: &clap::Command, name: &str, pages: &mut Vec<String>) {
    pages.push(name.to_owned());
    for below in command.get_subcommands() {
        name_pages(below, &format!("{name}-{}", below.get_name()), pages);
    }
}

#[test]
fn t252_every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = write(folder.path());
    assert!(output.status.success(), "{output:?}");
    let mut pages = Vec::new();
    name_pages(&Arguments::command(), "kubectl-signpost", &mut pages);
    assert!(pages.len() > 20, "{pages:?}");
    for page in pages {
        let page = folder.path().join(format!("{page}.1"));
        let text = fs::read_to_string(&page).expect("a page");
        assert!(text.contains(".SH SYNOPSIS"), "{}: {text}", page.display());
    }
    let page = folder.path().join("kubectl-signpost-rollout-undo.1");
    let text = fs::read_to_string(page).expect("a page");
    assert!(
        text.contains("Exits with 3 if the history has no such configuration"),
        "{text}"
    );
}

#[test]
fn a_folder_that_is_not_there_is_named_with_what_to_do() {
    let output = write(Path::new("/no/such/folder"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("/no/such/folder") && errors.contains("  next: "),
        "{errors}"
    );
}
