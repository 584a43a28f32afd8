//! Renders the plan as text.

use std::collections::BTreeMap;

use super::plan::{NodePlan, Obstacle, Plan, Serving, Step, Warning};
use crate::arguments::Format;
use crate::check::first;
use crate::output::{Paint, Tone, counted};
use crate::table::{Cell, Table};

/// Renders the table of nodes, their obstacles, and the next step.
pub(super) fn render(plan: &Plan, format: Format, paint: Paint) -> String {
    if plan.nodes.is_empty() && plan.unreadable.is_empty() {
        return "no nodes\n".to_owned();
    }
    let mut text = table(plan, format).render(paint);
    text += &obstacles(
        plan.nodes
            .iter()
            .flat_map(|node| node.obstacles.iter().map(|obstacle| (&node.name, obstacle))),
    );
    text += &warnings(plan.nodes.iter());
    for unreadable in &plan.unreadable {
        text += &format!(
            "\n{} cannot be read: {}\n  next: use the version of kubectl-signpost that belongs to the installed operator.\n",
            unreadable.object, unreadable.reason
        );
    }
    let pending = |node: &&NodePlan| node.step != Step::None;
    let can_go = plan.nodes.iter().filter(pending);
    let can_go: Vec<&String> = can_go
        .filter(|node| node.obstacles.is_empty())
        .map(|node| &node.name)
        .collect();
    if !can_go.is_empty() {
        text += &format!(
            "\nready for a takeover: {}\n  next: `kubectl signpost migrate takeover --dry-run` prints what the agents find; then without --dry-run\n",
            first(can_go.into_iter())
        );
    }
    let is_over = !plan.nodes.iter().any(|node| pending(&node));
    if is_over && !plan.nodes.is_empty() {
        text += &format!(
            "\nSignpost alone serves {}\n",
            counted(plan.nodes.len(), "node")
        );
    } else if !plan.configuration.is_empty() {
        text += "\nIn kube-proxy's configuration, with `kubectl signpost config import`:\n";
        for note in &plan.configuration {
            text += &format!("  {note}\n");
        }
    }
    text
}

/// Renders each obstacle once, with its nodes.
pub(super) fn obstacles<'a>(of_nodes: impl Iterator<Item = (&'a String, &'a Obstacle)>) -> String {
    let mut text = String::new();
    for (Obstacle { what, next, .. }, names) in by_finding(of_nodes) {
        text += &format!("\n{names}: {what}\n  next: {next}\n");
    }
    text
}

/// Renders each warning about these nodes once, with its nodes.
pub(super) fn warnings<'a>(nodes: impl Iterator<Item = &'a NodePlan>) -> String {
    let of_nodes = nodes.flat_map(|node| node.warnings.iter().map(|warning| (&node.name, warning)));
    let mut text = String::new();
    for (Warning { what, next }, names) in by_finding(of_nodes) {
        text += &format!("\n{names}: warning: {what}\n  next: {next}\n");
    }
    text
}

/// Returns each finding with the names of its first few nodes.
fn by_finding<'a, F: Ord + 'a>(
    of_nodes: impl Iterator<Item = (&'a String, &'a F)>,
) -> impl Iterator<Item = (&'a F, String)> {
    let mut names: BTreeMap<&F, Vec<&String>> = BTreeMap::new();
    for (name, finding) in of_nodes {
        names.entry(finding).or_default().push(name);
    }
    let findings = names.into_iter();
    findings.map(|(finding, names)| (finding, first(names.into_iter())))
}

fn table(plan: &Plan, format: Format) -> Table {
    let mut header = vec!["NODE", "SERVED-BY", "KUBE-PROXY", "STEP", "OBSTACLES"];
    if format == Format::Wide {
        header.push("FOUND");
    }
    let mut table = Table::new(&header);
    for node in &plan.nodes {
        table.push(row(node, format));
    }
    table
}

fn row(node: &NodePlan, format: Format) -> Vec<Cell> {
    let tone = match (node.obstacles.is_empty(), node.step) {
        (false, _) => Tone::Bad,
        (true, Step::None) => Tone::Good,
        (true, _) => Tone::Notable,
    };
    let runs = match node.kube_proxy_pod {
        Some(_) => "runs",
        None => "-",
    };
    let step = match node.step {
        Step::None => "-",
        Step::StopKubeProxy => "stop kube-proxy",
        Step::Takeover => "takeover",
    };
    let count = match node.obstacles.len() {
        0 => "-".to_owned(),
        count => count.to_string(),
    };
    let mut cells = vec![
        node.name.as_str().into(),
        Cell::toned(tone, name(node.serving)),
        runs.into(),
        step.into(),
        count.into(),
    ];
    if format == Format::Wide {
        cells.push(node.found.as_str().into());
    }
    cells
}

pub(super) fn name(serving: Serving) -> &'static str {
    match serving {
        Serving::Signpost => "Signpost",
        Serving::Both => "both",
        Serving::KubeProxy => "kube-proxy",
        Serving::Neither => "neither",
        Serving::Unknown => "unknown",
    }
}
