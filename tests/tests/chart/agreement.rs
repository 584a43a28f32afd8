//! Checks that the plain manifests in `deploy` and the chart describe the same objects.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::helm::{Cluster, Helm, repository};
use crate::manifests::{Identity, Objects, find, parse, read_folder};

/// The fields that only the plain manifests have, as ends of paths.
const ONLY_PLAIN: [&str; 1] = [
    // The address of the API server: a ConfigMap in the manifests, values in the chart.
    "/envFrom",
];

fn both() -> Result<(Objects, Objects)> {
    let plain = read_folder(&repository().join("deploy"))?;
    let chart = Helm::new(Cluster::None)?.render(&["--set=apiServer.host=192.0.2.10"])?;
    Ok((plain, parse(&chart)?))
}

/// Finds the paths at which `chart` lacks or contradicts a value of `plain`. It may have additional
/// fields, but no additional elements in lists.
fn missing(plain: &Value, chart: &Value, path: &str, found: &mut Vec<String>) {
    if ONLY_PLAIN.iter().any(|end| path.ends_with(end)) {
        return;
    }
    match (plain, chart) {
        (Value::Object(plain), Value::Object(chart)) => {
            for (key, value) in plain {
                let other = chart.get(key).unwrap_or(&Value::Null);
                missing(value, other, &format!("{path}/{key}"), found);
            }
        }
        // Variables are compared by name, in any order.
        (Value::Array(plain), Value::Array(chart)) if path.ends_with("/env") => {
            for value in plain {
                let name = &value["name"];
                let other = chart.iter().find(|other| &other["name"] == name);
                let path = format!("{path}/{}", name.as_str().unwrap_or_default());
                missing(value, other.unwrap_or(&Value::Null), &path, found);
            }
        }
        (Value::Array(plain), Value::Array(chart)) if plain.len() == chart.len() => {
            for (index, (value, other)) in plain.iter().zip(chart).enumerate() {
                missing(value, other, &format!("{path}/{index}"), found);
            }
        }
        _ if plain == chart => {}
        _ => found.push(format!(
            "{path} is {plain} in deploy and {chart} in the chart"
        )),
    }
}

#[test]
fn whatever_the_plain_manifests_say_the_chart_says_too() -> Result<()> {
    let (plain, chart) = both()?;
    let mut found = Vec::new();
    for (identity, object) in &plain {
        // Helm creates the namespace itself.
        if identity.kind == "Namespace" {
            continue;
        }
        let Identity { kind, name, .. } = identity;
        let other = chart.get(identity).unwrap_or(&Value::Null);
        missing(object, other, &format!("{kind} {name}: "), &mut found);
    }
    ensure!(found.is_empty(), "{}", found.join("\n"));
    Ok(())
}

/// Failure story T150. A process that may write all of the node's /proc/sys owns the node.
#[test]
fn t150_a_pod_has_no_more_of_its_node_than_it_needs() -> Result<()> {
    let host = "--set=apiServer.host=192.0.2.10";
    let with_ipvs = [host, "--set=agent.ipvsSysctls=true"];
    let with_ipvs = parse(&Helm::new(Cluster::None)?.render(&with_ipvs)?)?;
    let (plain, chart) = both()?;
    let all = [
        "/proc/sys/net/netfilter",
        "/run/xtables.lock",
        "/var/lib/signpost",
    ];
    let ipvs = ["/proc/sys/net/ipv4/vs"];
    for (objects, further) in [
        (&plain, [].as_slice()),
        (&chart, &[]),
        (&with_ipvs, ipvs.as_slice()),
    ] {
        let expected: BTreeSet<&str> = all.iter().chain(further).copied().collect();
        for (name, kind, expected) in [
            ("signpost-agent", "DaemonSet", expected),
            ("signpost-operator", "Deployment", BTreeSet::new()),
        ] {
            let pod = &find(objects, kind, name)?["spec"]["template"]["spec"];
            let volumes = pod["volumes"].as_array().into_iter().flatten();
            let of_node = volumes.filter_map(|volume| volume["hostPath"]["path"].as_str());
            let of_node: BTreeSet<&str> = of_node.collect();
            ensure!(of_node == expected, "{name} mounts {of_node:?}");
        }
    }
    Ok(())
}

#[test]
fn rights_are_exactly_those_of_the_plain_manifests() -> Result<()> {
    let (plain, chart) = both()?;
    let rights = |objects: &Objects| -> BTreeSet<Identity> {
        let kinds = [
            "ServiceAccount",
            "ClusterRole",
            "ClusterRoleBinding",
            "Role",
            "RoleBinding",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        ];
        let identities = objects.keys();
        let identities = identities.filter(|identity| kinds.contains(&identity.kind.as_str()));
        identities.cloned().collect()
    };
    ensure!(rights(&plain) == rights(&chart), "different objects");
    for identity in rights(&plain) {
        for field in ["rules", "roleRef", "subjects", "spec"] {
            let (plain, chart) = (&plain[&identity][field], &chart[&identity][field]);
            ensure!(
                plain == chart,
                "{identity:?}, {field}: {plain} in deploy and {chart} in the chart"
            );
        }
    }
    Ok(())
}

#[test]
fn containers_may_do_exactly_what_those_of_the_plain_manifests_may() -> Result<()> {
    let (plain, chart) = both()?;
    for (kind, name) in [
        ("DaemonSet", "signpost-agent"),
        ("Deployment", "signpost-operator"),
    ] {
        let (plain, chart) = (find(&plain, kind, name)?, find(&chart, kind, name)?);
        for field in [
            "/containers/0/securityContext",
            "/containers/0/volumeMounts",
            "/containers/0/command",
            "/initContainers",
            "/volumes",
            "/securityContext",
            "/hostNetwork",
            "/hostPID",
            "/serviceAccountName",
        ] {
            let pointer = format!("/spec/template/spec{field}");
            let (plain, chart) = (plain.pointer(&pointer), chart.pointer(&pointer));
            ensure!(
                plain == chart,
                "{kind} {name}, {field}: {plain:?} in deploy and {chart:?} in the chart"
            );
        }
        let capabilities = "/spec/template/spec/containers/0/securityContext/capabilities/drop/0";
        let dropped = chart.pointer(capabilities).and_then(Value::as_str);
        ensure!(dropped == Some("ALL"), "{name} drops {dropped:?}");
    }
    Ok(())
}
