//! The checks of the data read from a cluster. Pure.

mod kube_proxy;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::IpAddr;

use crds::placement::Placement;
use crds::profile::detect_local::DetectLocalMode;
use crds::{NodeProxy, ProxyProfile};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;

use crate::advice::page;
use crate::ending::Ending;
use crate::output::{Paint, Tone, counted};
use crate::placement::{is_left_out, linux};
use crate::pod_network::{Comparison, DETECT_OTHERWISE, PodNetwork, compare};

/// The data read from a cluster.
#[derive(Debug, Clone)]
pub(super) struct Evidence {
    /// The major and minor version, as reported by the API server.
    pub(super) version: (String, String),
    pub(super) nodes: Vec<Node>,
    /// The Pods that are not in the network of their node.
    pub(super) pods: Vec<PodNetwork>,
    /// The Pods of Signpost.
    pub(super) signpost: Vec<Pod>,
    /// Where the DaemonSets of agents run their Pods.
    pub(super) placements: Vec<Placement>,
    /// The DaemonSets of network plugins that can forward Services themselves.
    pub(super) forwarding: Vec<String>,
    pub(super) kube_proxy: Option<DaemonSet>,
    pub(super) kube_proxy_configuration: Option<ConfigMap>,
    /// The CustomResourceDefinitions of profiles and of NodeProxies.
    pub(super) definitions: [Option<CustomResourceDefinition>; 2],
    pub(super) profiles: Option<Vec<ProxyProfile>>,
    pub(super) proxies: Option<Vec<NodeProxy>>,
    pub(super) rights: Vec<Right>,
}

/// Whether the user may create something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Right {
    pub(super) resource: &'static str,
    pub(super) allowed: bool,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Point {
    verdict: Verdict,
    text: String,
    /// The next step for the user.
    next: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Fine,
    Note,
    Fault,
}

/// The oldest supported minor release of Kubernetes 1.
const OLDEST_MINOR: u32 = 32;
/// The oldest kernel that the tests run on.
const OLDEST_KERNEL: (u32, u32) = (5, 10);
/// The DaemonSets of network plugins that forward Services, or can.
const FORWARDING: [&str; 6] = [
    "antrea-agent",
    "cilium",
    "kube-ovn-cni",
    "kube-router",
    "ovnkube-node",
    "ovnkube-node-dpu-host",
];
/// The environment variable by which calico-node does.
const BPF_OF_CALICO: &str = "FELIX_BPFENABLED";
/// The next step if local detection by podCIDRs does not fit, and there is no profile yet.
const GIVE_DETECTION: &str = concat!(
    "give the chart profile.spec.detectLocal as the network plugin requires (",
    page!("migrate.md"),
    "); with the default, NodeCIDR, the traffic of these Pods to cluster IPs is masqueraded"
);
/// The maximum number of names in one line.
const MOST_NAMED: usize = 5;

/// Checks whether Signpost can be installed.
pub(super) fn before(evidence: &Evidence) -> Vec<Point> {
    let mut points = vec![release(evidence), kernels(evidence)];
    points.push(pod_addresses(evidence));
    points.push(kube_proxy::check(evidence));
    points.extend(forwarding(evidence));
    points.push(rights(evidence));
    points
}

/// Checks whether the installation is complete.
pub(super) fn after(evidence: &Evidence) -> Vec<Point> {
    let mut points = vec![release(evidence), kernels(evidence)];
    points.push(definitions(evidence));
    points.push(operators(evidence));
    points.push(agents(evidence));
    points.push(profiles(evidence));
    points.push(pod_addresses(evidence));
    points.push(kube_proxy::check(evidence));
    points.extend(forwarding(evidence));
    points
}

/// Renders one line for each result, with the next step.
pub(super) fn render(points: &[Point], paint: Paint) -> String {
    let mut text = String::new();
    for point in points {
        let (word, tone) = match point.verdict {
            Verdict::Fine => ("ok", Tone::Good),
            Verdict::Note => ("note", Tone::Notable),
            Verdict::Fault => ("fault", Tone::Bad),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{} {}",
            paint.apply(tone, &format!("{word:<6}")),
            point.text
        );
        if point.verdict != Verdict::Fine && !point.next.is_empty() {
            let _ = writeln!(text, "       next: {}", point.next);
        }
    }
    text
}

/// Only faults count as problems.
pub(super) fn ending(points: &[Point]) -> Ending {
    match points.iter().any(|point| point.verdict == Verdict::Fault) {
        true => Ending::ProblemFound,
        false => Ending::Success,
    }
}

fn release(evidence: &Evidence) -> Point {
    let (major, minor) = &evidence.version;
    // Some providers write 32+.
    let number: u32 = leading_number(minor).unwrap_or_default();
    Point {
        verdict: match major == "1" && number < OLDEST_MINOR {
            true => Verdict::Fault,
            false => Verdict::Fine,
        },
        text: format!("Kubernetes {major}.{minor}"),
        next: "upgrade the cluster to 1.32 or later",
    }
}

fn kernels(evidence: &Evidence) -> Point {
    let mut old: BTreeMap<String, usize> = BTreeMap::new();
    for node in linux(&evidence.nodes) {
        let info = node
            .status
            .as_ref()
            .and_then(|status| status.node_info.as_ref());
        let kernel = info
            .map(|info| info.kernel_version.clone())
            .unwrap_or_default();
        if parse_kernel(&kernel).is_some_and(|version| version < OLDEST_KERNEL) {
            *old.entry(kernel).or_default() += 1;
        }
    }
    let total = counted(linux(&evidence.nodes).count(), "Linux node");
    if old.is_empty() {
        return fine(format!("{total}, none with a kernel before 5.10"));
    }
    let old: Vec<String> = old
        .iter()
        .map(|(kernel, count)| format!("{kernel} on {count}"))
        .collect();
    Point {
        verdict: Verdict::Note,
        text: format!(
            "{total}, some with kernels that no test runs on: {}",
            old.join(", ")
        ),
        next: concat!(
            page!("kernels.md"),
            " says what the kernel needs; begin with one such node"
        ),
    }
}

/// With detectLocal.mode NodeCIDR, traffic from Pods outside podCIDRs would be masqueraded. Nodes
/// that do not detect by podCIDRs are left out.
fn pod_addresses(evidence: &Evidence) -> Point {
    let by_node_cidr = |profile: &ProxyProfile| {
        profile.request().spec.detect_local.mode == DetectLocalMode::NodeCidr
    };
    let profiles = evidence.profiles.as_deref().unwrap_or_default();
    if !profiles.is_empty() && !profiles.iter().any(by_node_cidr) {
        return fine("no profile detects local Pods by podCIDRs".to_owned());
    }
    let otherwise = evidence
        .proxies
        .iter()
        .flatten()
        .filter(|proxy| proxy.spec.config.detect_local.mode != DetectLocalMode::NodeCidr);
    let otherwise: BTreeSet<String> = otherwise.map(ResourceExt::name_any).collect();
    let nodes = evidence.nodes.iter();
    let nodes = nodes.filter(|node| !otherwise.contains(&node.name_any()));
    let Comparison { compared, outside } = compare(nodes, &evidence.pods);
    if outside.is_empty() {
        return fine(format!(
            "the addresses of {} are in the podCIDRs of their nodes",
            counted(compared, "Pod")
        ));
    }
    let named = name_outside(&outside);
    let (verdict, next) = match profiles.is_empty() {
        // The chart makes a profile as it is told.
        true => (Verdict::Note, GIVE_DETECTION),
        false => (Verdict::Fault, DETECT_OTHERWISE),
    };
    Point {
        verdict,
        text: match outside.len() {
            1 => format!(
                "of {}, 1 has an address outside of the podCIDRs of its node: {named}",
                counted(compared, "Pod")
            ),
            several => format!(
                "of {}, {several} have addresses outside of the podCIDRs of their nodes: {named}",
                counted(compared, "Pod")
            ),
        },
        next,
    }
}

/// Names the first few Pods that no podCIDR of their node contains.
pub(crate) fn name_outside(outside: &[(&PodNetwork, IpAddr)]) -> String {
    let names = outside.iter();
    let names = names.map(|(pod, address)| format!("{} ({address} on {})", pod.name, pod.node));
    let names: Vec<String> = names.collect();
    first(names.iter())
}

/// Returns the name of a DaemonSet whose Pods forward Services, or can.
pub(super) fn name_forwarding(set: &DaemonSet) -> Option<String> {
    let name = set.name_any();
    let pod = set
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let containers = pod.into_iter().flat_map(|pod| &pod.containers);
    let mut variables = containers.flat_map(|container| container.env.iter().flatten());
    let uses_bpf = variables.any(|variable| {
        variable.name == BPF_OF_CALICO && variable.value.as_deref() == Some("true")
    });
    let forwards = FORWARDING.contains(&name.as_str()) || uses_bpf;
    forwards.then(|| format!("{}/{name}", set.namespace().unwrap_or_default()))
}

/// Names network plugins that may forward Services beside Signpost.
fn forwarding(evidence: &Evidence) -> Option<Point> {
    (!evidence.forwarding.is_empty()).then(|| Point {
        verdict: Verdict::Note,
        text: format!(
            "the network plugin may forward Services itself: DaemonSet {}",
            first(evidence.forwarding.iter())
        ),
        next: "find out whether it does, as Cilium with kubeProxyReplacement, Antrea with AntreaProxy, Calico with eBPF and OVN-Kubernetes: then do not install Signpost",
    })
}

fn rights(evidence: &Evidence) -> Point {
    let missing = evidence.rights.iter().filter(|right| !right.allowed);
    let missing: Vec<&str> = missing.map(|right| right.resource).collect();
    if missing.is_empty() {
        return fine("you may create the objects of the chart".to_owned());
    }
    Point {
        verdict: Verdict::Fault,
        text: format!("you may not create {}", missing.join(", ")),
        next: "install with an account that may, such as that of a cluster administrator",
    }
}

fn definitions(evidence: &Evidence) -> Point {
    let established = |definition: &CustomResourceDefinition| {
        let conditions = definition
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|condition| condition.type_ == "Established" && condition.status == "True")
    };
    let there = evidence
        .definitions
        .iter()
        .flatten()
        .filter(|known| established(known))
        .count();
    match there == evidence.definitions.len() {
        true => fine("both CustomResourceDefinitions are established".to_owned()),
        false => Point {
            verdict: Verdict::Fault,
            text: format!("{there} of 2 CustomResourceDefinitions are established"),
            next: "install the chart, or apply crds/generated; if they are there, `kubectl describe crd` says what is wrong",
        },
    }
}

fn operators(evidence: &Evidence) -> Point {
    let pods = || of_component(evidence, "operator");
    match pods().filter(|pod| is_ready(pod)).count() {
        0 => Point {
            verdict: Verdict::Fault,
            text: "no operator is ready".to_owned() + &name_unready(pods()),
            next: "`kubectl get pods -A -l app.kubernetes.io/name=signpost` shows why; nodes keep their configuration meanwhile",
        },
        ready => fine(counted(ready, "ready operator")),
    }
}

fn agents(evidence: &Evidence) -> Point {
    let pods = || of_component(evidence, "agent");
    let ready = pods().filter(|pod| is_ready(pod));
    let with = ready.filter_map(|pod| pod.spec.as_ref()?.node_name.clone());
    let with: BTreeSet<String> = with.collect();
    let on = pods().filter_map(|pod| pod.spec.as_ref()?.node_name.clone());
    let on: BTreeSet<String> = on.collect();
    let unready = linux(&evidence.nodes).filter(|node| !with.contains(&node.name_any()));
    let (left_out, without): (Vec<&Node>, Vec<&Node>) = unready
        .partition(|node| is_left_out(node, &evidence.placements, on.contains(&node.name_any())));
    let names = |nodes: Vec<&Node>| nodes.into_iter().map(ResourceExt::name_any).collect();
    let (left_out, without): (Vec<String>, Vec<String>) = (names(left_out), names(without));
    if with.is_empty() && without.is_empty() && !left_out.is_empty() {
        return Point {
            verdict: Verdict::Fault,
            text: format!(
                "the DaemonSet of the agents leaves out every Linux node: {}",
                first(left_out.iter())
            ),
            next: "correct agent.nodeSelector and agent.tolerations of the chart",
        };
    }
    if without.is_empty() {
        let nodes = counted(with.len(), "Linux node");
        let left_out = match left_out.is_empty() {
            true => String::new(),
            false => format!("; the DaemonSet leaves out {}", first(left_out.iter())),
        };
        return fine(format!("an agent is ready on each of {nodes}{left_out}"));
    }
    Point {
        verdict: Verdict::Fault,
        text: format!(
            "no agent is ready on {}: {}{}",
            counted(without.len(), "Linux node"),
            first(without.iter()),
            name_unready(pods())
        ),
        next: "`kubectl describe daemonset -A -l app.kubernetes.io/name=signpost` and the Pods there say why",
    }
}

fn profiles(evidence: &Evidence) -> Point {
    match evidence.profiles.as_deref().unwrap_or_default().len() {
        0 => Point {
            verdict: Verdict::Fault,
            text: "there is no ProxyProfile: nodes keep their last configuration or have the defaults, and report no status".to_owned(),
            next: "create one; the chart makes one, and so does `kubectl signpost config import`",
        },
        count => fine(format!(
            "{}; `kubectl signpost status` shows their state",
            counted(count, "ProxyProfile")
        )),
    }
}

fn of_component<'a>(evidence: &'a Evidence, component: &'a str) -> impl Iterator<Item = &'a Pod> {
    evidence.signpost.iter().filter(move |pod| {
        let label = pod.labels().get("app.kubernetes.io/component");
        label.is_some_and(|label| label == component)
    })
}

fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    pod.metadata.deletion_timestamp.is_none()
        && conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Names the first few Pods that are not ready, each with what its container waits for.
fn name_unready<'a>(pods: impl Iterator<Item = &'a Pod>) -> String {
    let names = pods.filter(|pod| !is_ready(pod)).map(|pod| {
        let status = pod.status.as_ref();
        let containers = status.and_then(|status| status.container_statuses.as_ref());
        let waiting = containers.into_iter().flatten().find_map(|container| {
            let state = container.state.as_ref()?;
            state.waiting.as_ref()?.reason.as_deref()
        });
        format!("{}: {}", pod.name_any(), waiting.unwrap_or("not Ready"))
    });
    let names: Vec<String> = names.collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(" ({})", first(names.iter())),
    }
}

/// Parses `6.1` from `6.1.0-56-amd64`.
fn parse_kernel(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split('.');
    Some((
        leading_number(parts.next()?)?,
        leading_number(parts.next()?)?,
    ))
}

fn leading_number(text: &str) -> Option<u32> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[..digits].parse().ok()
}

fn fine(text: String) -> Point {
    Point {
        verdict: Verdict::Fine,
        text,
        next: "",
    }
}

/// Lists the first few of `names`.
pub(crate) fn first<'a>(names: impl ExactSizeIterator<Item = &'a String>) -> String {
    let more = names.len().saturating_sub(MOST_NAMED);
    let names: Vec<&str> = names.take(MOST_NAMED).map(String::as_str).collect();
    match more {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests;
