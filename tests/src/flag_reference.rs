//! Generates `docs/flags.md` from the command lines of the three programs.

use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};

const NOTICE: &str = "<!-- Written from src/arguments.rs of the programs by `make generate`; not to be edited. -->\n";

/// Returns the page: every command, argument and flag of the programs, as `--help` describes them.
pub fn page() -> String {
    let mut page = format!(
        "{NOTICE}# Flags\n\n`--help` behind a program or a command prints the same. A flag has priority over its environment variable, and the \
         variable over the default. The flags of a program may also stand behind its commands. A duration is written as 1m30s, with h, m, s and ms.\n"
    );
    for command in [
        node_agent::arguments::Arguments::command(),
        operator::arguments::Arguments::command(),
        kubectl_signpost::arguments::Arguments::command(),
    ] {
        let name = command.get_bin_name().unwrap_or(command.get_name());
        describe(&command, name, 2, &mut page);
    }
    page
}

/// Writes the section of `command`, which the user types as `name`, followed by those of its
/// subcommands.
fn describe(command: &Command, name: &str, level: usize, page: &mut String) {
    let about = command.get_long_about().or_else(|| command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let mut heading = format!("{} {name}", "#".repeat(level));
    for positional in command.get_positionals() {
        heading = format!("{heading} {}", operand(positional));
    }
    // Writing to a String cannot fail.
    let _ = write!(page, "\n{heading}\n\n{}\n", sentence(&about));
    if command.get_arguments().next().is_some() {
        *page += "\n| argument or flag | value | default | variable | meaning |\n|---|---|---|---|---|\n";
    }
    for argument in command.get_arguments() {
        row(argument, page);
    }
    for inner in command.get_subcommands() {
        let name = format!("{name} {}", inner.get_name());
        describe(inner, &name, level + 1, page);
    }
}

/// Formats a positional argument as in usage lines: in brackets if it is optional.
fn operand(positional: &Arg) -> String {
    let name = value(positional);
    match positional.is_required_set() {
        true => name,
        false => format!("[{name}]"),
    }
}

fn row(argument: &Arg, page: &mut String) {
    let code = |text: &str| match text {
        "" => String::new(),
        text => format!("`{text}`"),
    };
    let name = match (argument.get_short(), argument.get_long()) {
        (Some(short), Some(long)) => format!("`--{long}`, `-{short}`"),
        (None, Some(long)) => format!("`--{long}`"),
        (Some(short), None) => format!("`-{short}`"),
        (None, None) => code(&value(argument)),
    };
    let takes_value = argument.get_action().takes_values();
    let expected = match takes_value && !argument.is_positional() {
        true => value(argument),
        false => String::new(),
    };
    let defaults = argument.get_default_values().iter();
    let defaults: Vec<_> = defaults.map(|text| text.to_string_lossy()).collect();
    let default = match (takes_value, argument.is_required_set()) {
        (true, true) => "required".to_owned(),
        (true, false) => code(&defaults.join(",")),
        // A switch, which is off by default.
        (false, _) => String::new(),
    };
    let variable = argument.get_env().unwrap_or_default().to_string_lossy();
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let mut meaning = sentence(&help.map(ToString::to_string).unwrap_or_default());
    let named = takes_value.then(|| argument.get_possible_values());
    for possible in named.into_iter().flatten() {
        let about = possible.get_help().map(ToString::to_string);
        let about = about.map(|about| format!(": {about}")).unwrap_or_default();
        let _ = write!(meaning, " `{}`{}", possible.get_name(), sentence(&about));
    }
    let _ = writeln!(
        page,
        "| {name} | {} | {default} | {} | {} |",
        code(&expected),
        code(&variable),
        meaning.replace('|', "\\|").replace('\n', " ")
    );
}

/// Returns the placeholder of `argument`'s value in `--help`.
fn value(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    let names: Vec<_> = names.iter().map(|name| name.as_str()).collect();
    names.join(" ")
}

/// Returns `text` with its full stop, which clap strips from a one-paragraph comment.
fn sentence(text: &str) -> String {
    match text.is_empty() || text.ends_with('.') {
        true => text.to_owned(),
        false => format!("{text}."),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::scenario::Update;

    #[test]
    fn the_page_of_flags_is_that_of_the_programs() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/flags.md");
        let page = page();
        if Update::from_environment().expect("no CI") == Update::Differing {
            fs::write(&file, &page).expect("the page can be written");
        }
        let written = fs::read_to_string(&file).expect("the page");
        assert!(
            written == page,
            "{} is out of date: run make generate",
            file.display()
        );
    }

    #[test]
    fn a_row_says_what_help_says() {
        let command = Command::new("sail")
            .arg(
                Arg::new("to")
                    .long("to")
                    .short('t')
                    .value_name("PORT|SEA")
                    .env("SAIL_TO")
                    .default_value("home")
                    .help("Where to"),
            )
            .arg(Arg::new("crew").required(true).value_name("CREW"));
        let mut page = String::new();
        describe(&command, "sail", 1, &mut page);
        let row = "| `--to`, `-t` | `PORT|SEA` | `home` | `SAIL_TO` | Where to. |";
        assert!(page.contains(row), "{page}");
        assert!(page.contains("\n# sail CREW\n"), "{page}");
        assert!(page.contains("| `CREW` |  | required |  |  |"), "{page}");
    }
}
