//! Every command in documents, messages and the chart is one that the command line accepts.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;
use kubectl_signpost::arguments::Arguments;

const PREFIX: &str = "kubectl signpost ";

/// Where users read commands.
const PLACES: [&str; 9] = [
    "README.md",
    "SECURITY.md",
    "docs",
    "charts/signpost",
    "dashboards/src",
    "crds/src",
    "kubectl-signpost/src",
    "node-agent/src",
    "operator/src",
];

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a directory") {
            collect(&entry.expect("an entry").path(), files);
        }
        return;
    }
    let ending = path.extension().and_then(|ending| ending.to_str());
    if ending.is_some_and(|ending| ["md", "rs", "txt"].contains(&ending)) {
        files.push(path.to_owned());
    }
}

/// Returns the commands of a line: between backticks, or the rest of a line that begins with one, in
/// the chart after what Helm makes of the line.
fn commands(line: &str) -> Vec<&str> {
    let mut line = line.trim_start();
    while let Some((_, rest)) = line
        .strip_prefix("{{")
        .and_then(|line| line.split_once("}}"))
    {
        line = rest.trim_start();
    }
    if let Some(words) = line.trim_start_matches("$ ").strip_prefix(PREFIX) {
        let ends = ["#", "|", ">", ";", "&&"].map(|end| words.find(end).unwrap_or(words.len()));
        let end = ends.into_iter().min().unwrap_or_default();
        return vec![&words[..end]];
    }
    let quoted = line.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|text| text.strip_prefix(PREFIX))
        .collect()
}

/// Splits at spaces outside of single quotes, and drops the brackets of what may be left out.
fn words(command: &str) -> Vec<String> {
    // Values that stand for others are addresses: only those are checked.
    let command = command.replace("CLIENT", "192.0.2.1");
    let command = command.replace("ADDRESS:PORT", "192.0.2.2:80");
    let mut words = Vec::new();
    for (index, piece) in command.split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(piece.to_owned());
            continue;
        }
        let plain = piece.replace(['[', ']'], " ").replace("SHELL", "bash");
        words.extend(plain.split_whitespace().map(str::to_owned));
    }
    words
}

fn is_accepted(words: &[String]) -> Result<(), clap::Error> {
    let program = "kubectl-signpost".to_owned();
    let Err(error) = Arguments::try_parse_from([&[program], words].concat()) else {
        return Ok(());
    };
    // The name of a command, without what it is asked.
    let is_name = words
        .iter()
        .all(|word| word.bytes().all(|byte| byte.is_ascii_lowercase()));
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(()),
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            if is_name =>
        {
            Ok(())
        }
        _ => Err(error),
    }
}

#[test]
fn every_command_that_users_read_is_one_that_works() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for place in PLACES {
        collect(&root.join(place), &mut files);
    }
    let (mut tried, mut wrong) = (0, Vec::new());
    for file in files {
        let text = fs::read_to_string(&file).expect("a text");
        for (index, line) in text.lines().enumerate() {
            for command in commands(line) {
                let words = words(command);
                // A pattern, a value known when the program runs, or a line that goes on.
                let unknown = |word: &String| {
                    word.contains('{') || ["COMMAND", "\\"].contains(&word.as_str())
                };
                if words.iter().any(unknown) {
                    continue;
                }
                tried += 1;
                if let Err(error) = is_accepted(&words) {
                    let place = format!("{}:{}", file.display(), index + 1);
                    wrong.push(format!("{place}: {PREFIX}{command}\n{error}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried >= 60, "only {tried} commands were found");
}

#[test]
fn a_command_that_does_not_exist_is_refused() {
    for command in [
        "expain svc/web",
        "status --until-ready",
        "rollout undo",
        "nodes one",
    ] {
        let refused = is_accepted(&words(command));
        let is_name = command == "rollout undo";
        assert_eq!(refused.is_ok(), is_name, "{command}");
    }
    assert_eq!(commands("  $ kubectl signpost nodes | head"), ["nodes "]);
    // The first command of the chart's notes was not seen.
    let of_chart = "{{ if .Values.profile.create }}  kubectl signpost status --wait";
    assert_eq!(commands(of_chart), ["status --wait"]);
    assert_eq!(words("trace 'outside 1' [X]"), ["trace", "outside 1", "X"]);
}

/// Advice named files of the repository, which a user of the plugin does not have.
#[test]
fn t247_advice_names_pages_by_addresses_and_each_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut files, mut pages) = (Vec::new(), 0);
    for programs in [
        "kubectl-signpost/src",
        "node-agent/src",
        "operator/src",
        "crds/src",
    ] {
        collect(&root.join(programs), &mut files);
    }
    for file in files {
        let text = fs::read_to_string(&file).expect("a text");
        for (index, line) in text.lines().enumerate() {
            let place = format!("{}:{}", file.display(), index + 1);
            let written = line.split("//").next().unwrap_or_default();
            let names_file = written.contains("docs/") && written.contains(".md");
            let is_address =
                line.contains("/blob/main/docs/") || line.contains("CARGO_MANIFEST_DIR");
            assert!(
                !names_file || is_address || line.contains("root()"),
                "{place}: {line}"
            );
            let named = line.split("page!(\"").skip(1);
            for page in named.filter_map(|rest| rest.split('"').next()) {
                let file = page.split('#').next().unwrap_or(page);
                assert!(root.join("docs").join(file).exists(), "{place}: {page}");
                pages += 1;
            }
        }
    }
    assert!(pages >= 5, "only {pages} pages were found");
}
