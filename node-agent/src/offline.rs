//! Compiles a directory of manifests for one node, without a kernel.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use dataplane::{Dataplane, Family};
use inspect::{
    Evidence, Explanation, Kernel, PacketSpec, Question, RENDERED_VARIANT, RulesOf, Trace, explain,
    follow, render, services_of_mark,
};
use modes::{RulesByMechanism, detached};

use crate::engine::{Engine, MissingAssignment, View};
use source::{Delivery, manifests};

/// A directory of manifests, compiled for one node, in the mode of the profile in it that selects
/// the node.
struct Offline {
    engine: Engine,
    view: View,
    dataplane: Dataplane,
    rendered: BTreeMap<Family, RulesByMechanism>,
    remarks: Vec<String>,
}

/// Prints what would be programmed, after comments about what could not be honoured: tables as nft
/// prints them, or rules as `iptables-save` and `ip6tables-save` do.
pub(crate) fn print(directory: &Path, node: &str) -> anyhow::Result<String> {
    let offline = load(directory, node)?;
    let mut text = String::new();
    for remark in &offline.remarks {
        let _ = writeln!(text, "# {remark}");
    }
    let mechanism = offline.dataplane.config().mechanism;
    for (family, held) in &offline.rendered {
        let heading = detached(mechanism, *family, RENDERED_VARIANT).heading();
        let _ = writeln!(text, "{heading}\n{held}");
    }
    Ok(text)
}

/// Explains what would be programmed for the object of a question.
pub(crate) fn explain_question(
    directory: &Path,
    node: &str,
    question: &Question,
) -> anyhow::Result<Explanation> {
    let offline = load(directory, node)?;
    let mut reported = offline.engine.query(question);
    for service in services_of_mark(question, &offline.rendered) {
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
    };
    explain(question, &evidence).with_context(|| format!("no answer in {}", directory.display()))
}

/// Traces a packet through the rules that would be programmed.
pub(crate) fn trace_packet(
    directory: &Path,
    node: &str,
    packet_spec: &PacketSpec,
) -> anyhow::Result<Trace> {
    let offline = load(directory, node)?;
    let nothing = RulesByMechanism::default();
    let held = |family| Ok(offline.rendered.get(&family).unwrap_or(&nothing));
    let dataplane = &offline.dataplane;
    Ok(follow(packet_spec, dataplane, RulesOf::Rendering, held)?)
}

fn load(directory: &Path, node: &str) -> anyhow::Result<Offline> {
    let (deliveries, unreadable) = manifests::load(directory, node)
        .with_context(|| format!("failed to read {}", directory.display()))?;
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
    })
}
