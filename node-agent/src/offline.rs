//! Compiles a directory of manifests for one node, without a kernel.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use catalog::{Change, Event};
use dataplane::{Dataplane, Family};
use inspect::{
    Evidence, Explanation, Kernel, PacketSpec, Question, RENDERED_VARIANT, RulesOf, Trace, explain,
    follow, render, services_of_mark,
};
use modes::{DetachedModes, RulesByMode, detached};

use crate::engine::{Engine, MissingAssignment, View};
use source::{Delivery, manifests};

/// A directory of manifests, compiled for one node, in the mode of the profile in it that selects
/// the node.
struct Offline {
    engine: Engine,
    view: View,
    dataplane: Dataplane,
    rendered: BTreeMap<Family, RulesByMode>,
    remarks: Vec<String>,
    /// The remark that no manifest has the node.
    unknown_node: Option<String>,
}

/// Prints what would be programmed, after comments about what could not be honoured: tables as nft
/// prints them, or rules as `iptables-save` and `ip6tables-save` do.
pub(crate) fn print(directory: &Path, node: &str) -> anyhow::Result<String> {
    let offline = load(directory, node)?;
    let mut text = String::new();
    for remark in offline.unknown_node.iter().chain(&offline.remarks) {
        let _ = writeln!(text, "# {remark}");
    }
    let mode = offline.dataplane.config().mode;
    for (family, held) in &offline.rendered {
        let heading = detached(mode, *family, RENDERED_VARIANT).heading();
        let _ = writeln!(text, "{heading}\n{held}");
    }
    Ok(text)
}

/// Explains what would be programmed for the object of a question, with a remark if no manifest has
/// the node.
pub(crate) fn explain_question(
    directory: &Path,
    node: &str,
    question: &Question,
) -> anyhow::Result<(Explanation, Option<String>)> {
    let offline = load(directory, node)?;
    let mut reported = offline.engine.query(question);
    let modes = DetachedModes::default();
    for service in services_of_mark(question, &offline.rendered, &modes) {
        let of_service = Question::Service {
            service,
            port: None,
        };
        let more = offline.engine.query(&of_service);
        reported.services.extend(more.services);
    }
    let evidence = Evidence {
        dataplane: &offline.dataplane,
        reported: &reported,
        rejections: &offline.view.rejections,
        observed: &offline.rendered,
        kernel: &Kernel::NotAsked,
        families: &[],
        variant: RENDERED_VARIANT,
        modes: &modes,
    };
    let explanation = explain(question, &evidence);
    let explanation =
        explanation.with_context(|| format!("no answer in {}", directory.display()))?;
    Ok((explanation, offline.unknown_node))
}

/// Traces a packet through the rules that would be programmed, with a remark if no manifest has the
/// node.
pub(crate) fn trace_packet(
    directory: &Path,
    node: &str,
    packet_spec: &PacketSpec,
) -> anyhow::Result<(Trace, Option<String>)> {
    let offline = load(directory, node)?;
    let nothing = RulesByMode::default();
    let held = |family| Ok(offline.rendered.get(&family).unwrap_or(&nothing));
    let dataplane = &offline.dataplane;
    let modes = DetachedModes::default();
    let trace = follow(packet_spec, dataplane, RulesOf::Rendering, &modes, held)?;
    Ok((trace, offline.unknown_node))
}

fn load(directory: &Path, node: &str) -> anyhow::Result<Offline> {
    let (deliveries, unreadable) = manifests::load(directory, node)
        .with_context(|| format!("failed to read {}", directory.display()))?;
    let unknown_node = (!deliveries.iter().any(|delivery| is_node(delivery, node))).then(|| {
        let directory = directory.display();
        format!("no Node {node} in {directory}: nothing is local, and the node has no addresses")
    });
    let mut engine = Engine::new(node, None, MissingAssignment::IsAnAnswer);
    let now = Instant::now();
    // Does not read this machine's addresses: the node may be another machine.
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
    let rendered = Family::ALL.map(|family| (family, render(family, &dataplane)));
    Ok(Offline {
        engine,
        view,
        dataplane,
        rendered: rendered.into(),
        remarks,
        unknown_node,
    })
}

/// Whether the delivery is the Node called `name`, whether it can be decoded or not.
fn is_node(delivery: &Delivery, name: &str) -> bool {
    let Delivery::Objects(Change::Node(event)) = delivery else {
        return false;
    };
    match event.as_ref() {
        Event::InitApply(node) | Event::Apply(node) => node.metadata.name == name,
        Event::Undecodable { key, .. } => *key.name == *name,
        Event::Init | Event::InitDone | Event::Delete(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A misspelt node was taken for one without addresses and endpoints.
    #[test]
    fn a_node_that_no_manifest_has_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let node = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n";
        fs::write(folder.path().join("node.yaml"), node).expect("a file");
        let known = print(folder.path(), "n1").expect("rules");
        assert!(!known.contains("# no Node"), "{known}");
        let unknown = print(folder.path(), "typo").expect("rules");
        let remark = format!(
            "# no Node typo in {}: nothing is local, and the node has no addresses\n",
            folder.path().display()
        );
        assert!(unknown.starts_with(&remark), "{unknown}");
        let packet = "10.0.1.9 -> 10.96.0.10:80/tcp".parse().expect("a packet");
        let (_, of_trace) = trace_packet(folder.path(), "typo", &packet).expect("a trace");
        let question = "10.96.0.10:80/tcp".parse().expect("a question");
        let (_, of_explanation) =
            explain_question(folder.path(), "typo", &question).expect("an explanation");
        for said in [of_trace, of_explanation] {
            assert_eq!(said.map(|said| format!("# {said}\n")), Some(remark.clone()));
        }
    }
}
