//! What a directory of manifests comes to, without a kernel.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use backend::{Backend, Rendered};
use backend_nftables::{Nftables, Table};
use dataplane::{Dataplane, Family};

use crate::engine::{Engine, Silence, View};
use crate::explain::{Evidence, Explanation, Kernel, Question, explain};
use crate::source::{Delivery, manifests};
use crate::trace::{self, RulesOf, Trace, Wording};

/// A directory of manifests, compiled for one node.
struct Offline {
    engine: Engine,
    view: View,
    dataplane: Dataplane,
    tables: BTreeMap<Family, Table>,
    remarks: Vec<String>,
}

/// The tables that would be programmed, with what could not be honoured as comments before them.
pub(crate) fn render(directory: &Path, node: &str) -> anyhow::Result<String> {
    let offline = load(directory, node)?;
    let mut text = String::new();
    for remark in &offline.remarks {
        let _ = writeln!(text, "# {remark}");
    }
    for (family, table) in &offline.tables {
        let name = match family {
            Family::Ipv4 => "ip",
            Family::Ipv6 => "ip6",
        };
        let _ = writeln!(text, "table {name} {}", backend_nftables::TABLE);
        let _ = writeln!(text, "{table}");
    }
    Ok(text)
}

/// What would be programmed for what is asked about.
pub(crate) fn explain_question(
    directory: &Path,
    node: &str,
    question: &Question,
) -> anyhow::Result<Explanation> {
    let offline = load(directory, node)?;
    let evidence = Evidence {
        dataplane: &offline.dataplane,
        told: &offline.engine.tell(question),
        rejections: &offline.view.rejections,
        believed: &offline.tables,
        kernel: &Kernel::NotAsked,
        families: &[],
    };
    explain(question, &evidence).with_context(|| format!("no answer in {}", directory.display()))
}

/// The way of a packet through what would be programmed.
pub(crate) fn trace_packet(
    directory: &Path,
    node: &str,
    wording: &Wording,
) -> anyhow::Result<Trace> {
    let offline = load(directory, node)?;
    let nothing = Table::default();
    let table = |family| Ok(offline.tables.get(&family).unwrap_or(&nothing));
    let dataplane = &offline.dataplane;
    Ok(trace::follow(
        wording,
        dataplane,
        RulesOf::Rendering,
        table,
    )?)
}

fn load(directory: &Path, node: &str) -> anyhow::Result<Offline> {
    let (deliveries, unreadable) = manifests::load(directory, node)
        .with_context(|| format!("failed to read {}", directory.display()))?;
    let mut engine = Engine::new(node, None, Silence::IsAnAnswer);
    let now = Instant::now();
    // The node's addresses are not asked of the machine this runs on: it may be another one.
    engine.apply(Delivery::Addresses(Default::default()), now);
    for delivery in deliveries {
        engine.apply(delivery, now);
    }
    engine.go_without_assignment(now);
    let desired = engine.compile(|| now);
    let view = engine.view();
    let remarks = unreadable.iter().map(ToString::to_string);
    let remarks = remarks
        .chain(view.rejections.iter().map(ToString::to_string))
        .collect();
    let dataplane = desired.map(|desired| desired.dataplane).unwrap_or_default();
    let tables = Family::ALL
        .into_iter()
        .map(|family| {
            let backend = Nftables::detached(family);
            (family, backend.render(&dataplane, &Rendered::default()))
        })
        .collect();
    Ok(Offline {
        engine,
        view,
        dataplane,
        tables,
        remarks,
    })
}
