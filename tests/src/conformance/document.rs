//! Generates `docs/conformance.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::comparison::{Column, Comparison, Test, Verdict};
use super::selection::Omitted;
use super::{Proxy, Run, api_server_restart};

/// Renders the page about these runs. The same runs give the same text.
pub fn render(comparison: &Comparison) -> String {
    let mut page = String::from(INTRODUCTION);
    render_setting(&mut page, comparison);
    render_summary(&mut page, comparison);
    render_failures(&mut page, comparison);
    render_skipped(&mut page, comparison);
    render_left_out(&mut page, comparison);
    render_tests(&mut page, comparison);
    page
}

const INTRODUCTION: &str = "\
<!-- Written by `make e2e` and `make e2e PROXY=kube-proxy`, of their last runs on this machine. -->

# Conformance

Kubernetes' own end-to-end tests of Services, run on a cluster of real kubelets ([tests/cluster](../tests/cluster)): with Signpost
installed by its chart, and with kube-proxy in nftables mode in its place, so that a failure of the cluster differs from one of Signpost.
A test passes here if it passed in every run. The cluster's load balancers are routes that a small router keeps
(`tests/src/conformance/load_balancers.rs`): traffic reaches the nodes with the address it was sent to, and only nodes whose health check
says so.

";

/// Explanations of the tests that fail on such a cluster with either proxy.
const KNOWN: [(&str, &str); 1] = [(
    "should only target nodes with endpoints",
    "it asks every address of every node for the health of an IPv4 Service, and on nodes of two families neither proxy answers for it on \
     IPv6 addresses",
)];

fn render_setting(page: &mut String, comparison: &Comparison) {
    let runs: Vec<&Run> = comparison
        .columns()
        .flat_map(|(_, column)| column.runs())
        .collect();
    let mut line = |what: &str, facts: BTreeSet<String>| {
        let facts: Vec<String> = facts.into_iter().collect();
        push(page, format_args!("- {what}: {}\n", facts.join(", ")));
    };
    let facts = |fact: fn(&Run) -> String| runs.iter().map(|run| fact(run)).collect();
    line(
        "Kubernetes and its tests",
        facts(|run| run.setting.kubernetes.clone()),
    );
    line("Linux", facts(|run| run.setting.kernel.clone()));
    line(
        "containers by",
        facts(|run| run.setting.containers.replace("://", " ")),
    );
    line("nodes", facts(|run| run.setting.nodes.to_string()));
    let times = comparison.columns().map(|(proxy, column)| {
        let seconds = column
            .runs()
            .iter()
            .map(|run| run.duration.as_secs().to_string());
        format!("{proxy} {}", seconds.collect::<Vec<_>>().join(" and "))
    });
    let times: Vec<String> = times.collect();
    push(
        page,
        format_args!("- seconds a run took: {}\n\n", times.join("; ")),
    );
}

fn render_summary(page: &mut String, comparison: &Comparison) {
    let tests = comparison.tests();
    let row = |what: &str, cell: &dyn Fn(&Column) -> String| {
        let cells = comparison.columns().map(|(_, column)| cell(column));
        table_row(what, cells)
    };
    let heading = comparison.columns().map(|(proxy, column)| {
        let versions = column.runs().iter().map(|run| run.setting.proxy.as_str());
        let versions: BTreeSet<&str> = versions.collect();
        let versions: Vec<&str> = versions.into_iter().collect();
        format!("{proxy} {}", versions.join(", "))
    });
    page.push_str(&table_row("tests", heading));
    page.push_str(&table_row(
        "---",
        comparison.columns().map(|_| "---".to_owned()),
    ));
    page.push_str(&row("runs", &|column| column.runs().len().to_string()));
    let count = |column: &Column, is: fn(Verdict<'_>) -> bool| {
        let count = tests
            .iter()
            .filter(|test| is(column.verdict(**test)))
            .count();
        count.to_string()
    };
    page.push_str(&row("passed", &|column| {
        count(column, |v| v == Verdict::Passed)
    }));
    page.push_str(&row("failed", &|column| {
        count(column, |v| matches!(v, Verdict::Failed(_)))
    }));
    page.push_str(&row("skipped by the test itself", &|column| {
        count(column, |v| matches!(v, Verdict::Skipped(_)))
    }));
    page.push_str(&row("not run", &|column| {
        count(column, |v| v == Verdict::NotRun)
    }));
    page.push('\n');
}

fn render_failures(page: &mut String, comparison: &Comparison) {
    page.push_str("## Failures\n\n");
    page.push_str("What fails with both proxies is the cluster's affair, or the test's.\n\n");
    let regressions = comparison.regressions();
    let mut any = false;
    for (proxy, column) in comparison.columns() {
        for test in comparison.failures(proxy) {
            any = true;
            let Verdict::Failed(message) = column.verdict(test) else {
                continue;
            };
            push(
                page,
                format_args!("- {proxy}: {}: {}\n", shown(test), plain(message)),
            );
        }
    }
    for (name, why) in KNOWN {
        let failed = comparison.columns().any(|(proxy, _)| {
            let failures = comparison.failures(proxy);
            failures.iter().any(|test| test.name == name)
        });
        if failed {
            push(page, format_args!("- About \"{name}\": {why}.\n"));
        }
    }
    for test in regressions {
        any = true;
        push(
            page,
            format_args!("- kube-proxy passes, Signpost does not: {}\n", shown(test)),
        );
    }
    page.push_str(if any { "\n" } else { "None.\n\n" });
}

fn render_skipped(page: &mut String, comparison: &Comparison) {
    page.push_str("## Skipped by the test itself\n\n");
    let mut any = false;
    for (proxy, column) in comparison.columns() {
        for test in comparison.tests() {
            if let Verdict::Skipped(reason) = column.verdict(test) {
                any = true;
                push(
                    page,
                    format_args!("- {proxy}: {}: {}\n", shown(test), plain(reason)),
                );
            }
        }
    }
    page.push_str(if any { "\n" } else { "None.\n\n" });
}

fn render_left_out(page: &mut String, comparison: &Comparison) {
    page.push_str("## Left out\n\n");
    let mut counts: BTreeMap<Omitted, usize> = BTreeMap::new();
    for run in comparison.columns().flat_map(|(_, column)| column.runs()) {
        for (reason, count) in &run.left_out {
            let most = counts.entry(*reason).or_default();
            *most = (*most).max(*count);
        }
    }
    for (reason, count) in counts {
        push(page, format_args!("- {count}, because {reason}\n"));
    }
    push(
        page,
        format_args!("\n{}\n\n", api_server_restart::EXPLANATION),
    );
}

fn render_tests(page: &mut String, comparison: &Comparison) {
    page.push_str("## Tests\n");
    let mut group = None;
    for test in comparison.tests() {
        if group != Some(test.group) {
            group = Some(test.group);
            push(page, format_args!("\n### {}\n\n", plain(&test.group.0)));
            let proxies = comparison.columns().map(|(proxy, _)| proxy.to_string());
            page.push_str(&table_row("test", proxies));
            page.push_str(&table_row(
                "---",
                comparison.columns().map(|_| "---".to_owned()),
            ));
        }
        let verdicts = comparison
            .columns()
            .map(|(_, column)| match column.verdict(test) {
                Verdict::Passed => "passed".to_owned(),
                Verdict::Failed(_) => "**failed**".to_owned(),
                Verdict::Skipped(_) => "skipped".to_owned(),
                Verdict::NotRun => "not run".to_owned(),
            });
        page.push_str(&table_row(&plain(test.name), verdicts));
    }
}

fn table_row(first: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: String = cells.map(|cell| format!(" {cell} |")).collect();
    format!("| {first} |{cells}\n")
}

fn shown(test: Test<'_>) -> String {
    format!("{} {}", plain(&test.group.0), plain(test.name))
}

/// Escapes the characters that Markdown would interpret.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        if "\\`*_[]<>|#".contains(character) {
            plain.push('\\');
        }
        plain.push(character);
    }
    plain
}

fn push(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = page.write_fmt(text);
}

/// Renders the summary at the end of a run: how many tests passed with this proxy, and which did
/// not.
pub fn render_verdict(comparison: &Comparison, proxy: Proxy) -> String {
    let Some(column) = comparison.column(proxy) else {
        return format!("{proxy} was not run\n");
    };
    let mut text = String::new();
    let tests = comparison.tests();
    let passed = tests
        .iter()
        .filter(|test| column.verdict(**test) == Verdict::Passed);
    push(
        &mut text,
        format_args!("{proxy}: {} of {} passed", passed.count(), tests.len()),
    );
    push(
        &mut text,
        format_args!(" in each of {} runs\n", column.runs().len()),
    );
    for test in tests {
        let name = format!("{} {}", test.group.0, test.name);
        match column.verdict(test) {
            Verdict::Passed => {}
            Verdict::Failed(message) => push(&mut text, format_args!("FAILED {name}: {message}\n")),
            Verdict::Skipped(reason) => push(&mut text, format_args!("skipped {name}: {reason}\n")),
            Verdict::NotRun => push(&mut text, format_args!("not run {name}\n")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::comparison::tests::{failed, passed, run, skipped};
    use super::*;

    fn both() -> Comparison {
        let signpost = [
            ("should serve [Conformance]", passed()),
            ("should stay", failed("a | b")),
            ("should wait", skipped("too few nodes")),
        ];
        let kube_proxy = [
            ("should serve [Conformance]", passed()),
            ("should stay", passed()),
        ];
        Comparison::of(vec![
            run(Proxy::Signpost, &signpost),
            run(Proxy::Signpost, &signpost),
            run(Proxy::KubeProxy, &kube_proxy),
        ])
    }

    #[test]
    fn the_page_has_both_columns() {
        let page = render(&both());
        for line in [
            "| tests | Signpost 0.1.0 | kube-proxy v1.36.2 |",
            "| runs | 2 | 1 |",
            "| passed | 1 | 2 |",
            "| failed | 1 | 0 |",
            "| skipped by the test itself | 1 | 0 |",
            "| not run | 0 | 1 |",
            "- containers by: containerd 1.6.20",
            "- seconds a run took: Signpost 61 and 61; kube-proxy 61",
            r"### \[sig-network\] Services",
            r"| should serve \[Conformance\] | passed | passed |",
            "| should stay | **failed** | passed |",
            "| should wait | skipped | not run |",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }

    #[test]
    fn what_did_not_pass_says_why() {
        let page = render(&both());
        for line in [
            r"- Signpost: \[sig-network\] Services should stay: a \| b",
            r"- kube-proxy passes, Signpost does not: \[sig-network\] Services should stay",
            r"- Signpost: \[sig-network\] Services should wait: too few nodes",
            "- 70, because they are about something else than Services",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }

    #[test]
    fn where_all_is_well_nothing_is_listed() {
        let runs = vec![run(Proxy::Signpost, &[("should serve", passed())])];
        let page = render(&Comparison::of(runs));
        assert!(page.contains("\n\nNone.\n\n## Skipped by the test itself\n\nNone.\n"));
        assert!(page.contains("| should serve | passed |\n"));
    }

    #[test]
    fn a_person_reads_what_did_not_pass() {
        let text = render_verdict(&both(), Proxy::Signpost);
        let expected = "\
Signpost: 1 of 3 passed in each of 2 runs
FAILED [sig-network] Services should stay: a | b
skipped [sig-network] Services should wait: too few nodes
";
        assert_eq!(text, expected);
    }
}
