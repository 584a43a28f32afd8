//! Checks that every source file is compiled, is where its name says, and is not too long.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Package, expect_none, metadata};

/// Longer files are reported.
const LONG: usize = 400;
/// Longer files fail the test.
const TOO_LONG: usize = 800;

/// Rust files by path.
pub(crate) type Sources = BTreeMap<PathBuf, String>;

/// Returns the files of `sources` that no root reaches through `mod` lines: they are never
/// compiled.
fn orphans(sources: &Sources, roots: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let mut reached = BTreeSet::new();
    let mut ahead: Vec<PathBuf> = roots.iter().cloned().collect();
    while let Some(path) = ahead.pop() {
        let Some(text) = sources.get(&path) else {
            continue;
        };
        let folder = match roots.contains(&path) {
            true => path.parent().unwrap_or(Path::new("")).to_owned(),
            false => path.with_extension(""),
        };
        let modules = text.lines().filter_map(parse_module_line);
        ahead.extend(modules.map(|name| folder.join(format!("{name}.rs"))));
        reached.insert(path);
    }
    let all = sources.keys().filter(|path| !reached.contains(*path));
    all.cloned().collect()
}

/// Returns the name in `mod name;` with any visibility.
fn parse_module_line(line: &str) -> Option<&str> {
    let line = line.trim().strip_suffix(';')?;
    let (before, name) = line.split_once("mod ")?;
    let visible = before.is_empty() || before == "pub " || before.starts_with("pub(");
    let plain = name.chars().all(|c| c.is_alphanumeric() || c == '_');
    (visible && plain).then_some(name)
}

/// Returns the number of lines before the tests at the end of the file.
pub(crate) fn lines_of_code(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.windows(2).position(|pair| {
        pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    });
    tests.unwrap_or(lines.len())
}

/// Whether a file, by its path within its package, contains only tests.
pub(crate) fn is_test(path: &Path) -> bool {
    let folders = path.parent().map(Path::components).into_iter().flatten();
    let mut folders = folders.map(|folder| folder.as_os_str());
    folders.any(|folder| folder == "tests") || path.file_stem().is_some_and(|s| s == "tests")
}

fn read_sources(folder: &Path, found: &mut Sources) {
    for entry in fs::read_dir(folder).expect("the folders of a package can be listed") {
        let path = entry
            .expect("the folders of a package can be listed")
            .path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            read_sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source file can be read");
            found.insert(path, text);
        }
    }
}

pub(crate) fn packages() -> Vec<(Package, Sources)> {
    let with_sources = |package: Package| {
        let mut sources = Sources::new();
        read_sources(package.folder(), &mut sources);
        (package, sources)
    };
    metadata().packages.into_iter().map(with_sources).collect()
}

#[test]
fn every_source_file_is_compiled() {
    let mut found = Vec::new();
    for (package, sources) in packages() {
        let roots = package.targets.iter().map(|target| target.src_path.clone());
        let orphans = orphans(&sources, &roots.collect());
        found.extend(orphans.iter().map(|path| path.display().to_string()));
    }
    expect_none("files that no `mod` leads to", &found);
}

#[test]
fn modules_lie_where_their_names_say() {
    let mut found = Vec::new();
    for (path, text) in packages().into_iter().flat_map(|(_, sources)| sources) {
        let elsewhere = text.lines().any(|line| line.trim().starts_with("#[path"));
        if elsewhere || path.ends_with("mod.rs") {
            found.push(path.display().to_string());
        }
    }
    expect_none("modules called mod.rs or given a path", &found);
}

#[test]
fn no_file_is_too_long_to_read() {
    let (mut long, mut too_long) = (Vec::new(), Vec::new());
    for (package, sources) in packages() {
        for (path, text) in sources {
            let within = path.strip_prefix(package.folder()).unwrap_or(&path);
            let lines = lines_of_code(&text);
            if lines <= LONG || is_test(within) {
                continue;
            }
            let line = format!("{lines} lines: {}", path.display());
            let list = if lines > TOO_LONG {
                &mut too_long
            } else {
                &mut long
            };
            list.push(line);
        }
    }
    if !long.is_empty() {
        println!(
            "files of more than {LONG} lines, to be split:\n{}",
            long.join("\n")
        );
    }
    expect_none("files that are too long", &too_long);
}

fn sources(files: &[(&str, &str)]) -> Sources {
    let file = |(path, text): &(&str, &str)| (PathBuf::from(path), (*text).to_owned());
    files.iter().map(file).collect()
}

#[test]
fn a_file_that_no_mod_leads_to_is_found() {
    let sources = sources(&[
        (
            "src/lib.rs",
            "mod network;\npub(crate) mod text;\n// mod gone;\n",
        ),
        ("src/network.rs", "mod link;\n#[cfg(test)]\nmod tests;"),
        ("src/network/link.rs", ""),
        ("src/network/tests.rs", ""),
        ("src/text.rs", "mod link { }"),
        ("src/link.rs", ""),
        ("src/gone.rs", ""),
        ("src/text/link.rs", ""),
        ("tests/packets/main.rs", "mod flow;"),
        ("tests/packets/flow.rs", ""),
        ("tests/packets/flow/deep.rs", ""),
    ]);
    let roots = ["src/lib.rs", "tests/packets/main.rs"]
        .map(PathBuf::from)
        .into();
    let expected = [
        "src/gone.rs",
        "src/link.rs",
        "src/text/link.rs",
        "tests/packets/flow/deep.rs",
    ];
    assert_eq!(orphans(&sources, &roots), expected.map(PathBuf::from));
}

#[test]
fn tests_do_not_count_as_code() {
    assert_eq!(lines_of_code("a\nb\n#[cfg(test)]\nmod tests {\nc\n}\n"), 2);
    assert_eq!(lines_of_code("a\nb\n#[cfg(test)]\nmod tests;\n"), 4);
    for test in [
        "tests/network.rs",
        "src/script/tests.rs",
        "src/tests/builders.rs",
    ] {
        assert!(is_test(Path::new(test)), "{test}");
    }
    assert!(!is_test(Path::new("src/script.rs")));
}
