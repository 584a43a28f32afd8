//! `config`: converts kube-proxy's configuration to a profile, shows the configuration of a node,
//! and previews the changes of a profile.

pub(crate) mod difference;
mod import;
mod source;

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context;
use crds::resolve::Ranking;
use crds::{NodeFacts, NodeProxy, ProxyProfile};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::ResourceExt;
use serde_json::{Value, json};
use serde_saphyr::UserMessageFormatter;

use crate::advice::problem;
use crate::arguments::{Access, ConfigStep, DiffOptions, EffectiveOptions, ImportOptions};
use crate::cluster::{Cluster, Read};
use crate::ending::Ending;
use crate::output::serialize;
use crate::{print, program_name};

pub(crate) use import::{Loss, Note};

/// The namespace of kube-proxy's ConfigMap.
const OF_KUBE_PROXY: &str = "kube-system";

/// Runs one of the subcommands.
pub(crate) async fn run(access: &Access, step: &ConfigStep) -> anyhow::Result<Ending> {
    match step {
        ConfigStep::Import(options) => import(access, options).await,
        ConfigStep::Effective(options) => effective(access, options).await,
        ConfigStep::Diff(options) => diff(access, options).await,
    }
}

async fn import(access: &Access, options: &ImportOptions) -> anyhow::Result<Ending> {
    let (place, documents) = match &options.file {
        Some(path) => (path.display().to_string(), read_documents(path)?),
        None => {
            let cluster = Cluster::open(access).await?;
            let namespace = access.namespace.as_deref().unwrap_or(OF_KUBE_PROXY);
            let name = &options.config_map;
            let map: ConfigMap = cluster.read_in(namespace, name).await?;
            let place = format!("ConfigMap {namespace}/{name}");
            (place, vec![serde_json::to_value(map)?])
        }
    };
    let configuration = source::find_configuration(&documents)
        .with_context(|| format!("failed to import {place}"))?;
    let imported = import::import(&options.name, configuration)
        .with_context(|| format!("failed to import {place}"))?;
    for note in &imported.notes {
        eprintln!("{note}");
    }
    let profile = serde_saphyr::to_string(&imported.profile).context("failed to write YAML")?;
    print(&profile)?;
    let lost = |note: &Note| note.loss == Loss::LeftOut;
    if imported.notes.iter().any(lost) {
        eprintln!(
            "{}: values are left out: set what they meant before you apply the profile",
            program_name()
        );
        return Ok(Ending::ProblemFound);
    }
    Ok(Ending::Success)
}

/// Returns the notes of `config import`: the settings in `map` that a profile does not reproduce.
pub(crate) fn not_carried_over(map: &ConfigMap) -> anyhow::Result<Vec<Note>> {
    let configuration = source::find_configuration(&[serde_json::to_value(map)?]);
    let configuration =
        configuration.with_context(|| format!("failed to read ConfigMap {}", map.name_any()))?;
    Ok(import::import("default", configuration)?.notes)
}

async fn effective(access: &Access, options: &EffectiveOptions) -> anyhow::Result<Ending> {
    let cluster = Cluster::open(access).await?;
    let proxy: NodeProxy = cluster.read_one(&options.node).await?;
    let node: Node = cluster.read_one(&options.node).await?;
    let profiles = whole(cluster.read_all::<ProxyProfile>().await?)?;
    let facts = facts_of(&node, Some(&proxy));
    let resolution = Ranking::of(&profiles).resolve(&facts);
    let applied = proxy.status.as_ref();
    let applied = applied.and_then(|status| status.applied_hash.as_ref());
    let is_applied = applied == Some(&proxy.spec.config_hash);
    let answer = json!({
        "node": options.node,
        "profile": proxy.spec.profile_name,
        "why": resolution.reason,
        "configHash": proxy.spec.config_hash,
        "applied": is_applied,
        "config": proxy.spec.config,
    });
    if let Some(text) = serialize(&answer, options.output)? {
        print(&text)?;
    } else {
        let state = if is_applied {
            "applied"
        } else {
            "not applied yet"
        };
        let config = serde_saphyr::to_string(&proxy.spec.config).context("failed to write YAML")?;
        print(&format!(
            "# Node {}: {}\n# Configuration {}, {state}\n{config}",
            options.node, resolution.reason, proxy.spec.config_hash
        ))?;
    }
    Ok(match is_applied {
        true => Ending::Success,
        false => Ending::ProblemFound,
    })
}

async fn diff(access: &Access, options: &DiffOptions) -> anyhow::Result<Ending> {
    // A fault of the file is named whether or not the cluster answers.
    let file = options.file.as_ref();
    let file = file.map(|path| Ok::<_, anyhow::Error>((path, parse_profile(path)?)));
    let file = file.transpose()?;
    let cluster = Cluster::open(access).await?;
    let mut profiles = whole(cluster.read_all::<ProxyProfile>().await?)?;
    let name = match file {
        None => options.profile.clone().unwrap_or_default(),
        Some((path, changed)) => {
            let name = changed.name_any();
            let asked = options.profile.as_ref();
            if asked.is_some_and(|asked| *asked != name) {
                let what = format!("{} has ProxyProfile {name}", path.display());
                return Err(problem(what, "leave the name out, or give that one").into());
            }
            put(&mut profiles, changed);
            name
        }
    };
    if !profiles.iter().any(|profile| profile.name_any() == name) {
        let next = "`kubectl get proxyprofiles` lists them";
        return Err(problem(format!("there is no ProxyProfile {name:?}"), next).into());
    }
    for profile in profiles.iter_mut().filter(|p| p.name_any() == name) {
        // Shows what the profile would change once it is no longer paused.
        profile.spec.paused = false;
    }
    let nodes = cluster.read_nodes().await?;
    let proxies = whole(cluster.read_all::<NodeProxy>().await?)?;
    let facts = nodes.iter().map(|node| {
        let proxy = proxies.iter().find(|p| p.name_any() == node.name_any());
        facts_of(node, proxy)
    });
    let facts: Vec<NodeFacts> = facts.collect();
    let groups = difference::compare(&profiles, &name, &facts);
    print(&difference::render(&name, &groups))?;
    Ok(match groups.is_empty() {
        true => Ending::Success,
        false => Ending::ProblemFound,
    })
}

/// Returns the objects, of which a comparison must not take a field that this version cannot read for
/// one with the default value.
fn whole<T>(read: Read<T>) -> anyhow::Result<Vec<T>> {
    match read.unreadable.first() {
        None => Ok(read.objects),
        Some(it) => {
            let what = format!("{} has values of another version: {}", it.object, it.reason);
            let next =
                "use the version of this program that `kubectl signpost version` has for operators";
            Err(problem(what, next).into())
        }
    }
}

/// Replaces the profile of the same name or adds a new one. A replaced profile keeps its rank among
/// profiles of the same priority, and its history, by which `rollout.undo` finds the configuration
/// for nodes.
fn put(profiles: &mut Vec<ProxyProfile>, mut changed: ProxyProfile) {
    let name = changed.name_any();
    match profiles.iter_mut().find(|known| known.name_any() == name) {
        Some(known) => {
            changed.metadata.creation_timestamp = known.metadata.creation_timestamp.take();
            changed.status = known.status.take();
            *known = changed;
        }
        None => profiles.push(changed),
    }
}

fn facts_of(node: &Node, proxy: Option<&NodeProxy>) -> NodeFacts {
    NodeFacts {
        name: node.name_any(),
        labels: node.metadata.labels.clone().unwrap_or_default().into(),
        current: proxy.map(|proxy| proxy.spec.clone().into()),
    }
}

fn parse_profile(path: &Path) -> anyhow::Result<ProxyProfile> {
    let documents = read_documents(path)?;
    let [document] = documents.as_slice() else {
        let what = format!("{} has {} YAML documents", path.display(), documents.len());
        return Err(problem(what, "give a file with one ProxyProfile").into());
    };
    let kind = document["kind"].as_str().unwrap_or("no kind");
    if kind != "ProxyProfile" {
        let what = format!("{} has {kind}, not a ProxyProfile", path.display());
        let next = match source::find_configuration(std::slice::from_ref(document)) {
            Ok(_) => format!(
                "`kubectl signpost config import -f {}` makes a profile of it",
                path.display()
            ),
            Err(_) => "give a file with one ProxyProfile".to_owned(),
        };
        return Err(problem(what, next).into());
    }
    crds::parse_profile(document).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let what = format!("{} is not a valid ProxyProfile", path.display());
        let next = format!("correct these fields: {}", errors.join("; "));
        problem(what, next).into()
    })
}

/// Reads the YAML documents of a file, or of standard input if the path is `-`.
fn read_documents(path: &Path) -> anyhow::Result<Vec<Value>> {
    let read = match path == Path::new("-") {
        true => io::read_to_string(io::stdin()),
        false => fs::read_to_string(path),
    };
    let text = read.with_context(|| {
        let what = format!("failed to read {}", path.display());
        problem(
            what,
            "give a file of text that you may read, or - for standard input",
        )
    })?;
    serde_saphyr::from_multiple(&text).map_err(|error| {
        let why = error.render_with_formatter(&UserMessageFormatter);
        let what = format!("{} is neither YAML nor JSON: {why}", path.display());
        problem(what, "correct the line that the message names").into()
    })
}

#[cfg(test)]
mod tests {
    use crds::profile::mode::Mode;

    use super::*;

    #[test]
    fn a_file_with_an_undo_is_compared_with_what_the_history_has_for_nodes() {
        let own = json!({"mode": "ipvs"});
        let read = |spec: &Value, status: Value| -> ProxyProfile {
            let metadata = json!({"name": "default", "generation": 2});
            let profile = json!({"metadata": metadata, "spec": spec, "status": status});
            serde_json::from_value(profile).expect("a profile")
        };
        let revision = |generation: i64, spec: Value| {
            json!({
                "generation": generation, "configHash": format!("{generation}"), "phase": "Settled",
                "since": "2026-01-01T00:00:00Z", "rolledOutAt": format!("2026-01-0{generation}T00:00:00Z"), "spec": spec,
            })
        };
        let history = json!([
            revision(2, own.clone()),
            revision(1, json!({"mode": "iptables"}))
        ]);
        let mut profiles = vec![read(&own, json!({"history": history}))];
        let file = json!({"mode": "ipvs", "rollout": {"undo": "2"}});
        put(&mut profiles, read(&file, Value::Null));
        let effective = crds::resolve(&profiles, &NodeFacts::default()).effective;
        assert_eq!(effective.expect("one applies").config.mode, Mode::Iptables);
    }

    #[test]
    fn a_file_of_kube_proxy_is_named_with_what_makes_a_profile_of_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("kube-proxy.yaml");
        let next = |text: &str| {
            fs::write(&path, text).expect("a file");
            let error = parse_profile(&path).expect_err("it is no profile");
            (error.to_string(), crate::advice::next(&error).to_owned())
        };
        let version = "apiVersion: kubeproxy.config.k8s.io/v1alpha1";
        let (what, advice) = next(&format!("{version}\nkind: KubeProxyConfiguration\n"));
        assert!(
            what.ends_with("has KubeProxyConfiguration, not a ProxyProfile"),
            "{what}"
        );
        let import = format!("`kubectl signpost config import -f {}`", path.display());
        assert!(advice.starts_with(&import), "{advice}");
        let (_, advice) = next("kind: Other\n");
        assert_eq!(advice, "give a file with one ProxyProfile");
        let (_, advice) = next("apiVersion: signpost.dev/v1alpha1\nkind: ProxyProfile\n");
        assert!(advice.starts_with("correct these fields: "), "{advice}");
    }
}
