//! Malformed files: they are reported by name, and do no harm.
//!
//! `tests/corpus` of this package has good files to start from, and every file that once did harm
//! or was written to. `PROPTEST_CASES=100000` searches for more.

use std::path::PathBuf;
use std::time::Duration;

use testkit::{Input, corpus, damaged, try_many};

use super::super::directory::FileCheck;
use super::*;

/// Far more than any of these files takes, and far less than parsing one in quadratic time.
const PROMPTLY: Duration = Duration::from_secs(10);
/// More than this process has needed, and far less than an alias bomb would use.
const MEMORY: u64 = 1 << 30;

/// Text with a special meaning to the parser.
const WORDS: [&str; 34] = [
    "&a ",
    "*a",
    "<<: ",
    "- ",
    "? ",
    ": ",
    "---\n",
    "...\n",
    "[",
    "]",
    "{",
    "}",
    "\"",
    "'",
    "|\n",
    ">-\n",
    "!!binary ",
    "!!set ",
    "!<x> ",
    "%TAG ! x\n",
    "%YAML 1.2\n",
    "#",
    "\n  ",
    "\t",
    "\u{feff}",
    "\\u0000",
    "~",
    ".nan",
    "-.inf",
    "0x7fffffffffffffff",
    "1e400",
    "99999999999999999999",
    "null",
    "items: ",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

fn file_name(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
}

/// The peak memory of this process, in bytes.
fn most_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kilobytes
        .and_then(|n| n.parse::<u64>().ok())
        .expect("it is a number of kB")
        * 1024
}

/// The messages about a directory that contains only this file.
fn complaints(file: &str, text: &str) -> Vec<String> {
    let directory = directory();
    write(&directory, file, text);
    let start = std::time::Instant::now();
    let (_, unreadable) = loaded(&directory);
    let took = start.elapsed();
    assert!(took < PROMPTLY, "{file} took {took:?}");
    assert!(
        most_memory() < MEMORY,
        "{file} took {} bytes",
        most_memory()
    );
    unreadable
}

#[test]
fn bad_files_are_named_with_their_line_and_good_ones_beside_them_are_served() {
    let (deliveries, unreadable) = load(&folder(), "node-1").expect("it can be read");
    let mut seen = Seen::nothing();
    deliveries
        .into_iter()
        .for_each(|delivery| seen.take(delivery));
    assert_eq!(
        seen.services(),
        "typed:81 anchored:80 empty:80 json:80 merged:80 web:80+53"
    );
    let complaints: Vec<String> = unreadable.iter().map(ToString::to_string).collect();
    for (path, _) in corpus(&folder()) {
        let file = file_name(&path);
        let about = |line: &&String| line.starts_with(file);
        let complaint = complaints.iter().find(about);
        assert_eq!(
            complaint.is_some(),
            file.starts_with("bad"),
            "{file}: {complaint:?}"
        );
        // A file that is not text has no lines.
        if file.starts_with("bad") && file != "bad-utf8.yaml" {
            let said = complaint.expect("it is bad");
            let after = said.trim_start_matches(file).trim_start_matches(':');
            assert!(
                after.starts_with(|c: char| c.is_ascii_digit()),
                "no line: {said}"
            );
        }
    }
}

#[test]
fn a_small_file_cannot_take_much_memory() {
    let laughs = |levels: usize| {
        let line = |n: usize| {
            format!(
                "a{}: &a{} [{}]\n",
                n + 1,
                n + 1,
                format!("*a{n},").repeat(10)
            )
        };
        let lines: String = (0..levels).map(line).collect();
        format!("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n{lines}")
    };
    let long = |aliases: usize| {
        let text = "x".repeat(200_000);
        format!("a: &a {text}\nb: [{}]\n", "*a,".repeat(aliases))
    };
    for (name, text) in [
        ("lists of lists", laughs(20)),
        ("a long text many times", long(50_000)),
        (
            "a list many times",
            format!(
                "a: &a [{}]\nb: [{}]\n",
                "x,".repeat(20_000),
                "*a,".repeat(20_000)
            ),
        ),
        (
            "merged many times",
            format!(
                "a: &a {{{}}}\nb:\n{}",
                "x: 1, ".repeat(2),
                "  <<: *a\n".repeat(50_000)
            ),
        ),
    ] {
        let said = complaints("bomb.yaml", &text);
        assert_eq!(said.len(), 1, "{name}: {said:?}");
        assert!(said[0].starts_with("bomb.yaml:"), "{name}: {said:?}");
    }
}

/// A stack overflow ends the process, and no later test runs.
#[test]
fn depth_does_not_overflow_the_stack() {
    for text in ["[", "{a: ", "- ", "? ", "- - ? [", "!!x "] {
        let said = complaints("deep.yaml", &text.repeat(100_000));
        assert_eq!(said.len(), 1, "{text}: {said:?}");
    }
    let steps: String = (0..2000)
        .map(|n| format!("{}a:\n", " ".repeat(n)))
        .collect();
    assert_eq!(complaints("steps.yaml", &steps).len(), 1);
    let lists = r#"{"apiVersion":"v1","kind":"List","items":["#;
    for text in ["[", r#"{"a":"#, lists] {
        let said = complaints("deep.json", &text.repeat(100_000));
        assert_eq!(said.len(), 1, "{text}: {said:?}");
    }
}

/// Each file has as many parts as fit, and is read in time proportional to its length.
#[test]
fn many_small_parts_are_read_promptly() {
    for (file, text) in [
        ("values.json", "1\n".repeat(200_000)),
        ("documents.yaml", "a: 1\n---\n".repeat(20_000)),
        (
            "items.yaml",
            format!(
                "apiVersion: v1\nkind: List\nitems: [{}]",
                "{},".repeat(20_000)
            ),
        ),
        (
            "anchors.yaml",
            (0..40_000).map(|n| format!("- &a{n} x\n")).collect(),
        ),
        (
            "keys.yaml",
            (0..40_000).map(|n| format!("k{n}: x\n")).collect(),
        ),
        ("comments.yaml", format!("{}a: 1\n", "#\n".repeat(500_000))),
    ] {
        assert!(!complaints(file, &text).is_empty(), "{file}");
    }
}

#[test]
fn a_long_value_is_not_repeated_whole() {
    for (file, text) in [
        ("number.yaml", format!("a: {}\n", "9".repeat(1_000_000))),
        (
            "port.yaml",
            service("a", &format!("\"{}\"", "9".repeat(1_000_000))),
        ),
        (
            "kind.yaml",
            format!(
                "apiVersion: {}\nkind: Service\nmetadata: {{name: x}}\n",
                "v".repeat(1_000_000)
            ),
        ),
        (
            "field.json",
            format!(
                r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"{}","labels":7}}}}"#,
                "n".repeat(1_000_000)
            ),
        ),
    ] {
        for said in complaints(file, &text) {
            assert!(said.len() < 4096, "{file}: {} bytes", said.len());
        }
    }
}

#[test]
fn whatever_is_written_into_a_file_the_file_is_named_and_mending_it_mends_everything() {
    let all = corpus(&folder());
    let is_good = |path: &Path| file_name(path).starts_with("good");
    let good: Vec<(PathBuf, String)> = all
        .iter()
        .filter(|(path, _)| is_good(path))
        .filter_map(|(path, input)| Some((path.clone(), String::from_utf8(input.0.clone()).ok()?)))
        .collect();
    let inputs: Vec<Input> = all.into_iter().map(|(_, input)| input).collect();
    let strategy = damaged(inputs, WORDS.map(|word| word.as_bytes().to_vec()).to_vec());
    try_many(1, &(strategy, 0..good.len()), |(input, which)| {
        let (path, text) = &good[which];
        let (mut manifest_store, mut seen) =
            (ManifestStore::new("node-1".to_owned()), Seen::nothing());
        let mut write = |text: &str| {
            let start = std::time::Instant::now();
            let look = FileCheck::Text(text.to_owned());
            for delivery in manifest_store.take_in(vec![(path.clone(), look)]) {
                seen.take(delivery);
            }
            assert!(start.elapsed() < PROMPTLY, "{:?}", start.elapsed());
            let served = (seen.services(), seen.assignment.clone());
            (served, manifest_store.unreadable())
        };
        let before = write(text);
        assert_eq!(before.1, []);
        // Files that are not UTF-8 are rejected before parsing.
        let (_, unreadable) = write(&String::from_utf8_lossy(&input.0));
        for unreadable in unreadable {
            assert_eq!(unreadable.file, *path);
            assert!(!unreadable.message.is_empty());
        }
        assert_eq!(write(text), before);
        Ok(())
    });
}

/// Names become part of rules, where an extra line is an extra rule.
#[test]
fn names_that_no_api_server_takes_are_named_with_their_line() {
    let directory = directory();
    let named = |name: &str, namespace: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata:\n  namespace: {namespace}\n  name: {name}\nspec:\n  clusterIP: 10.96.0.11\n  ports:\n  - port: 90\n---\n"
        )
    };
    let long = "n".repeat(1 << 20);
    let text = [
        named("\"a\\n* COMMIT\"", "shop"),
        named("Web", "shop"),
        named("a.b", "shop"),
        named(&"a".repeat(64), "shop"),
        named("web", "\"shop\\\" -j ACCEPT\""),
        named("web", &long),
        profile("\"default\\n\"", "{}") + "---\n",
        service("a", "80"),
    ];
    write(&directory, "names.yaml", &text.concat());
    let (seen, said) = loaded(&directory);
    assert_eq!(seen.services(), "a:80", "the good one beside them");
    let lines = [
        "names.yaml:5: metadata.name: \"a\\n* COMMIT\" is not an RFC 1123 label",
        "names.yaml:15: metadata.name: \"Web\" is not an RFC 1123 label",
        "names.yaml:25: metadata.name: \"a.b\" is not an RFC 1123 label",
        "names.yaml:35: metadata.name: \"aaaa",
        "names.yaml:44: metadata.namespace: \"shop\\\" -j ACCEPT\" is not an RFC 1123 label",
        "names.yaml:54: metadata.namespace: \"nnnn",
        "names.yaml:64: metadata.name: \"default\\n\" is not an RFC 1123 subdomain",
    ];
    assert_eq!(said.len(), lines.len(), "{said:#?}");
    for (said, line) in said.iter().zip(lines) {
        assert!(said.starts_with(line), "{said} instead of {line}");
        assert!(said.len() < 300 && !said.contains('\n'), "{said}");
    }
}
