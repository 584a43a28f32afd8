//! `nodes`: one line for each node.

mod listing;

use std::collections::BTreeMap;

use crds::condition::reason::advice;
use crds::{NodeProxy, ProxyProfile};
use jiff::Timestamp;

use crate::arguments::{Access, Format, NodesOptions};
use crate::cluster::Cluster;
use crate::ending::Ending;
use crate::output::{Paint, Tone, serialize};
use crate::print;
use crate::status::Health;
use crate::table::{Cell, Table};

pub(crate) use listing::{Listing, NodeReport};

/// The maximum number of names in one line.
const MOST_NAMED: usize = 5;

/// Lists the nodes and prints them.
pub(crate) async fn run(
    access: &Access,
    options: &NodesOptions,
    paint: Paint,
) -> anyhow::Result<Ending> {
    let cluster = Cluster::open(access).await?;
    let proxies = cluster.read_all::<NodeProxy>().await?;
    let nodes = match cluster.read_nodes().await {
        Ok(nodes) => nodes,
        // A user who may read Signpost's objects may lack permission to read Nodes.
        Err(error) if error.is_forbidden() => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let mut listing = Listing::of(&proxies, &nodes);
    if let Some(profile) = &options.profile {
        listing.nodes.retain(|node| &node.profile == profile);
        if listing.nodes.is_empty() {
            // A profile of this name may be missing, or have no nodes.
            cluster.read_one::<ProxyProfile>(profile).await?;
        }
    }
    if options.not_ready {
        listing.nodes.retain(|node| node.health != Health::Healthy);
    }
    let text = match serialize(&listing, options.output)? {
        Some(text) => text,
        None => render(&listing, options.output, paint),
    };
    print(&text)?;
    Ok(listing.health().into())
}

/// Renders a table, then the advice for each reason in it.
pub(crate) fn render(listing: &Listing, format: Format, paint: Paint) -> String {
    if listing.nodes.is_empty() && listing.unreadable.is_empty() {
        return "no nodes\n".to_owned();
    }
    let mut text = table(listing, format).render(paint);
    for (reason, names) in by_reason(&listing.nodes) {
        let mut named = names[..names.len().min(MOST_NAMED)].join(", ");
        if names.len() > MOST_NAMED {
            named += &format!(" and {} more", names.len() - MOST_NAMED);
        }
        text += &format!("\n{reason} on {named}\n");
        if let Some(advice) = advice(reason) {
            text += &format!("  next: {advice}\n");
        }
    }
    for unreadable in &listing.unreadable {
        text += &format!(
            "\n{} cannot be read: {}\n  next: use the version of kubectl-signpost that belongs to the installed operator.\n",
            unreadable.object, unreadable.reason
        );
    }
    text
}

fn table(listing: &Listing, format: Format) -> Table {
    let mut header = vec![
        "NODE", "PROFILE", "MODE", "READY", "REASON", "DEGRADED", "SERVICES", "SYNC-P99",
    ];
    if format == Format::Wide {
        header.extend(["HASH", "REJECTED", "DRIFT", "AGENT", "KERNEL"]);
    }
    let mut table = Table::new(&header);
    for node in &listing.nodes {
        table.push(row(node, format));
    }
    table
}

fn row(node: &NodeReport, format: Format) -> Vec<Cell> {
    let tone = match node.health {
        Health::Healthy => Tone::Plain,
        Health::Pending => Tone::Notable,
        Health::Unhealthy => Tone::Bad,
    };
    let mode = node.mode.map(|mode| mode.to_string());
    let mut cells: Vec<Cell> = vec![
        node.name.as_str().into(),
        or_dash(&node.profile),
        or_dash(&mode.unwrap_or_default()),
        Cell::toned(
            tone,
            if node.ready.is_empty() {
                "-"
            } else {
                &node.ready
            },
        ),
        or_dash(&node.reason),
        or_dash(&node.degraded),
        node.services.to_string().into(),
        or_dash(node.sync_p99.as_deref().unwrap_or_default()),
    ];
    if format == Format::Wide {
        cells.extend([
            or_dash(&node.applied_hash),
            node.rejected.to_string().into(),
            or_dash(&programs(node)),
            or_dash(&node.agent_version),
            or_dash(&node.kernel_version),
        ]);
    }
    cells
}

/// Formats the programs that changed rules of the node, each with its number of repairs.
fn programs(node: &NodeReport) -> String {
    let programs = node.drift.iter().map(|drift| {
        let program = drift.program.as_deref().unwrap_or("unknown");
        format!("{program}:{}", drift.repairs)
    });
    programs.collect::<Vec<_>>().join(",")
}

fn or_dash(text: &str) -> Cell {
    Cell::from(if text.is_empty() { "-" } else { text })
}

/// Returns the reasons that need attention, each with its nodes.
pub(crate) fn by_reason<'a>(
    nodes: impl IntoIterator<Item = &'a NodeReport>,
) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in nodes {
        for trouble in &node.troubles {
            let of_reason = names.entry(&trouble.reason).or_default();
            // Several conditions of a node may have the same reason.
            if of_reason.last() != Some(&node.name.as_str()) {
                of_reason.push(&node.name);
            }
        }
    }
    names
}

/// Formats an age as kubectl does, in two or three characters.
pub(crate) fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests;
