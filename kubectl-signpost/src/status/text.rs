//! Renders a report as text.

use std::fmt::Write;

use jiff::Timestamp;

use super::report::{Health, ProfileReport, Report};
use crate::output::{Paint, Tone, counted};
use crate::trouble::{ConditionProblem, Weight};

/// The maximum number of names in one line.
const MOST_NAMED: usize = 10;

/// Renders that no operator has run since then, and what to do next.
pub(crate) fn render_operator_absence(since: Timestamp) -> String {
    let since = since.strftime("%Y-%m-%dT%H:%M:%SZ");
    format!(
        "No operator has renewed its Lease since {since}: the status of profiles is as of then.\n  \
         next: type `kubectl signpost check`, which says whether Pods of the operator are ready.\n"
    )
}

/// Renders the whole report.
pub(crate) fn render(report: &Report, paint: Paint) -> String {
    let profiles = report.profiles.iter();
    let mut parts: Vec<String> = profiles
        .map(|profile| render_profile(profile, paint))
        .collect();
    if let Some(since) = report.operator_absent_since {
        parts.insert(0, render_operator_absence(since));
    }
    if report.profiles.is_empty() {
        parts.push(
            "There is no ProxyProfile: nodes keep their last configuration or have the defaults, and report no status.\n  \
             next: create one; `kubectl signpost config import` converts kube-proxy's configuration into one.\n"
                .to_owned(),
        );
    }
    let unserved = &report.nodes_without_configuration;
    if !unserved.is_empty() {
        parts.push(format!(
            "Nodes without a configuration of Signpost: {}\n  \
             next: if that is not intended, look for them in the profiles' condition Ready, \
             which names nodes where no agent can run; for others, compare their labels with the profiles' nodeSelector.\n",
            first(unserved)
        ));
    }
    for unreadable in &report.unreadable {
        parts.push(format!(
            "{} cannot be read: {}\n  \
             next: use the version of kubectl-signpost that belongs to the installed operator.\n",
            unreadable.object, unreadable.reason
        ));
    }
    parts.join("\n")
}

fn render_profile(profile: &ProfileReport, paint: Paint) -> String {
    let ProfileReport {
        name,
        health,
        mode,
        priority,
        generation,
        nodes,
        ..
    } = profile;
    let tone = match health {
        Health::Healthy => Tone::Good,
        Health::Pending => Tone::Notable,
        Health::Unhealthy => Tone::Bad,
    };
    let paused = if profile.paused { ", paused" } else { "" };
    // Writing to a String cannot fail.
    let mut text = format!(
        "ProxyProfile {name}: {}\n",
        paint.apply(tone, health.describe())
    );
    let _ = writeln!(
        text,
        "  mode     {mode}, priority {priority}, generation {generation}{paused}"
    );
    let _ = writeln!(
        text,
        "  nodes    {}: {} updated, {} ready, {} degraded",
        nodes.matched, nodes.updated, nodes.ready, nodes.degraded
    );
    if let Some(latency) = &profile.sync_latency {
        let _ = writeln!(
            text,
            "  sync     p50 {}, p99 {} on the slowest node",
            latency.p50_microseconds, latency.p99
        );
    }
    let waiting_for = profile.rollout.as_ref().map(|rollout| &rollout.waiting_for);
    if let Some(what) = waiting_for.filter(|what| !what.is_empty()) {
        let _ = writeln!(text, "  waits    for {what}");
    }
    for trouble in &profile.troubles {
        text += &render_trouble(trouble, paint);
    }
    if let [_, _, ..] = profile.agent_versions[..] {
        let versions = profile.agent_versions.iter();
        let versions: Vec<String> = versions
            .map(|agents| format!("{} on {}", agents.version, counted(agents.nodes, "node")))
            .collect();
        let _ = writeln!(text, "  agents   {}", versions.join(", "));
    }
    for (index, found) in profile.node_findings.iter().enumerate() {
        let title = if index == 0 { "found" } else { "" };
        let more = usize::try_from(found.nodes).unwrap_or(usize::MAX) > found.first_nodes.len();
        let _ = writeln!(
            text,
            "  {title:<8} {} on {}: {}{}",
            found.kind,
            counted(found.nodes, "node"),
            found.first_nodes.join(", "),
            if more { ", …" } else { "" }
        );
    }
    for (index, worst) in profile.worst_nodes.iter().enumerate() {
        let title = if index == 0 { "worst" } else { "" };
        let latency = worst.p99_microseconds.map(|p99| format!(", p99 {p99}"));
        let _ = writeln!(
            text,
            "  {title:<8} {}: {}{}",
            worst.name,
            worst.reason,
            latency.unwrap_or_default()
        );
    }
    text
}

/// Renders a problem as two lines: the problem and the advice.
pub(crate) fn render_trouble(trouble: &ConditionProblem, paint: Paint) -> String {
    let (word, tone) = match trouble.weight {
        Weight::Fault => ("fault", Tone::Bad),
        Weight::Pending => ("pending", Tone::Notable),
        Weight::Note => ("note", Tone::Plain),
    };
    let ConditionProblem {
        condition,
        status,
        reason,
        message,
        ..
    } = trouble;
    let colon = if message.is_empty() { "" } else { ": " };
    let word = paint.apply(tone, &format!("{word:<8}"));
    let mut text = format!("  {word} {condition} is {status}, {reason}{colon}{message}\n");
    if let Some(advice) = trouble.advice.filter(|_| trouble.weight != Weight::Note) {
        text += &format!("           next: {advice}\n");
    }
    text
}

/// Renders the progress as one line while a command waits.
pub(crate) fn progress(report: &Report) -> String {
    let unfinished = report
        .profiles
        .iter()
        .filter(|profile| profile.health != Health::Healthy);
    let describe = |profile: &ProfileReport| {
        let why = profile.troubles.first();
        let why = why.map_or("", |trouble| trouble.reason.as_str());
        let nodes = profile.nodes;
        format!(
            "{} {why}, {} of {} nodes updated, {} ready",
            profile.name, nodes.updated, nodes.matched, nodes.ready
        )
    };
    let lines: Vec<String> = unfinished.map(describe).collect();
    match lines.is_empty() {
        true => "there is no ProxyProfile yet".to_owned(),
        false => lines.join("; "),
    }
}

/// Lists the first few of `names`.
fn first(names: &[String]) -> String {
    let mut text = names[..names.len().min(MOST_NAMED)].join(", ");
    if names.len() > MOST_NAMED {
        text += &format!(" and {} more", names.len() - MOST_NAMED);
    }
    text
}

#[cfg(test)]
mod tests;
