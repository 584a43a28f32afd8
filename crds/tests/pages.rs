//! What the pages of the documentation say about conditions and reasons.

use std::{collections::BTreeSet, fs, path::Path};

use crds::{
    condition::{TYPES, reason},
    event::REASONS,
};

/// Names in the pages that are neither conditions nor reasons: of Kubernetes, of its ecosystem, and of
/// alerts; values of fields; findings of a profile.
const OTHERS: [&str; 22] = [
    "ClusterCIDR",
    "ClusterIP",
    "ConfigMap",
    "ConfigMaps",
    "CustomResourceDefinitions",
    "DaemonSet",
    "EndpointSlices",
    "FlushAllOnReload",
    "InterfaceNamePrefix",
    "KubeProxyDown",
    "KubeProxyNFAcct",
    "KubeVersionMismatch",
    "NodeCIDR",
    "NodeProxy",
    "ProxyProfile",
    "ResourceQuota",
    "RulesDrifted",
    "ServiceAccountTokenPodNodeInfo",
    "SignpostAgentDown",
    "SignpostNodesExcluded",
    "SignpostOperatorWatchFails",
    "ToBeDeletedByClusterAutoscaler",
];

fn read(page: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The pages that are not generated and that users read.
fn written_by_hand() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let entries = fs::read_dir(folder).expect("docs/");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let names = names.filter_map(|name| name.into_string().ok());
    let pages = names.filter(|name| name.ends_with(".md") && name != "failures.md");
    let mut pages: Vec<String> = pages.map(|name| format!("docs/{name}")).collect();
    pages.retain(|page| !read(page).starts_with("<!-- Written from"));
    pages.extend(["README.md", "SECURITY.md", "deploy/README.md"].map(str::to_owned));
    pages.push("charts/signpost/README.md".to_owned());
    pages
}

/// The names in the first column of the tables of a section.
fn rows<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
    let sections = page.split("\n## ");
    let mut of_heading = sections.filter(|section| section.starts_with(heading));
    let section = of_heading.next().expect("the section");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| Some(row.split_once('`')?.0))
        .collect()
}

fn sorted<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable();
    names
}

/// Whether a word is written like `RulesContested` or `IPv4Programmed`: of two parts at least, and not
/// in capitals alone.
fn is_compound(word: &str) -> bool {
    let letters: Vec<char> = word.chars().collect();
    let mut pairs = letters.windows(2);
    word.starts_with(|letter: char| letter.is_ascii_uppercase())
        && pairs.any(|pair| !pair[0].is_ascii_uppercase() && pair[1].is_ascii_uppercase())
}

/// The words in code, inside lines and in blocks.
fn words_in_code(page: &str) -> impl Iterator<Item = &str> {
    let code = page.split('`').skip(1).step_by(2);
    code.flat_map(|code| code.split(|letter: char| !letter.is_ascii_alphanumeric()))
}

#[test]
fn t325_the_page_of_conditions_names_each_type_and_each_reason_and_no_other() {
    let page = read("docs/conditions.md");
    let types = TYPES.iter().map(|kind| kind.name);
    assert_eq!(sorted(rows(&page, "Conditions\n")), sorted(types));
    let reasons = reason::ALL.iter().map(|reason| reason.name);
    assert_eq!(sorted(rows(&page, "Reasons\n")), sorted(reasons));
    let events = REASONS.iter().map(|reason| reason.name);
    assert_eq!(sorted(rows(&page, "Events\n")), sorted(events));
}

#[test]
fn t325_pages_written_by_hand_name_no_condition_and_no_reason_that_does_not_exist() {
    let types = TYPES.iter().map(|kind| kind.name);
    let reasons = reason::ALL.iter().map(|reason| reason.name);
    let events = REASONS.iter().map(|reason| reason.name);
    let known: BTreeSet<&str> = types.chain(reasons).chain(events).chain(OTHERS).collect();
    let mut named = BTreeSet::new();
    for page in written_by_hand() {
        let text = read(&page);
        for word in words_in_code(&text).filter(|word| is_compound(word)) {
            assert!(known.contains(word), "{page} names `{word}`");
            named.insert(word.to_owned());
        }
    }
    let unused = OTHERS.iter().filter(|other| !named.contains(**other));
    assert_eq!(unused.collect::<Vec<_>>(), Vec::<&&str>::new());
}
