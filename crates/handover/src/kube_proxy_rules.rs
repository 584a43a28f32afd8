//! Findings about kube-proxy's rules in the kernel, before a takeover.

use crds::profile::mode::Mode as ProfileMode;
use dataplane::{Dataplane, Family};
use runtime::chain;

use super::closing::{self, Counters, SignpostNodePorts};
use super::preflight::{Point, some_of};
use super::server::SignpostSide;
use crate::ServingState;
use foreign_proxy::kernel::{self, ForeignDependencies, ScanError};
use foreign_proxy::legacy_chains;
use foreign_proxy::node_ports::NodePortRules;
use foreign_proxy::services::{Difference, observe_difference};
use foreign_proxy::{Found, Legacy, Mode};
use xtables::Variant;

/// What changes when mode nftables of either proxy replaces kube-proxy's mode iptables, according
/// to docs/parity.md.
const FROM_IPTABLES: &str = "from mode iptables to nftables: node ports answer on the node's own address of each family, not \
    on its other addresses or on 127.0.0.1, unless a profile sets nodePorts; no rule opens health-check node ports in a firewall of \
    the node; invalid packets are not dropped; wrong ports of cluster IPs are rejected";
/// The same for kube-proxy's mode ipvs.
const FROM_IPVS: &str = "from mode ipvs: new connections follow Signpost's rules; each virtual server of kube-proxy is removed \
    when its last connection has ended, and virtual servers of other programs stay; node ports answer on the node's own \
    address of each family, unless a profile sets nodePorts; wrong ports of cluster IPs are rejected";

/// Returns findings about the rules in the kernel. `counters` are those of the last check, and
/// become those of this one.
pub(super) fn observe_points(
    found: &Found,
    serving_state: ServingState,
    signpost: SignpostSide,
    node_ports: Option<&SignpostNodePorts>,
    counters: &mut Counters,
) -> Vec<Point> {
    let mut points = Vec::new();
    match found.legacy {
        Legacy::None => {}
        Legacy::Unreadable => {
            let text = "the legacy variant of iptables has a table nat that cannot be read: if there are chains \
                KUBE-SVC-* in it (iptables-legacy-save -t nat), remove them with kube-proxy --cleanup, in the image \
                that kube-proxy has, before anything else";
            points.push(match found.rules.is_empty() {
                true => Point::warning(text),
                false => Point::note(text),
            });
        }
        Legacy::Chains => {
            let text = "kube-proxy's chains are in the legacy variant of iptables (iptables-legacy-save): each table is \
                replaced once for each kind of chain";
            points.push(Point::note(text));
        }
    }
    let is_ipvs = found.rules.contains_key(&Mode::Ipvs);
    if is_ipvs {
        points.push(Point::note(FROM_IPVS));
    }
    if found.is_taken_over() {
        points.push(Point::note("no rules of kube-proxy are here to be removed"));
    }
    let removable = found.removable();
    let has_chains = removable.iter().any(|(of, _)| *of == Mode::Iptables);
    let from_iptables = !is_ipvs && (has_chains || found.legacy == Legacy::Chains);
    if from_iptables && signpost.mode != ProfileMode::Iptables {
        points.push(Point::note(FROM_IPTABLES));
    }
    if signpost.mode == ProfileMode::Ipvs {
        points.extend(Family::ALL.into_iter().filter_map(observe_input));
    }
    for (mode, family) in removable {
        let some = match mode {
            Mode::Nftables => match &signpost.desired {
                Some(desired) => observe_nftables(family, serving_state, desired),
                None => Ok(Vec::new()),
            },
            Mode::Iptables => kernel::observe_foreign_references(family)
                .map(|of| render_points(family, "table", &of)),
            Mode::Ipvs => Ok(Vec::new()),
        };
        points.extend(some.unwrap_or_else(obstacle));
    }
    if found.legacy == Legacy::Chains {
        for family in Family::ALL {
            let dependencies = legacy_chains::observe_foreign_references(family);
            let some = dependencies.map(|of| render_points(family, "legacy table", &of));
            points.extend(some.unwrap_or_else(obstacle));
        }
    }
    for (place, family) in places(found) {
        let closing = node_ports
            .map(|node_ports| closing::observe_points(place, family, node_ports, counters));
        points.extend(closing.into_iter().flat_map(|closing| {
            closing.unwrap_or_else(|error| {
                let error = chain(&error);
                let text = "unable to find out which node ports would close";
                vec![Point::warning(format!("{family}: {text}: {error}"))]
            })
        }));
    }
    points
}

/// Returns where kube-proxy has node ports. In mode ipvs no chain has them.
fn places(found: &Found) -> Vec<(NodePortRules, Family)> {
    let is_ipvs = found.rules.contains_key(&Mode::Ipvs);
    let in_nf_tables = found.removable().into_iter();
    let mut places: Vec<(NodePortRules, Family)> = in_nf_tables
        .filter(|(mode, _)| !is_ipvs || *mode == Mode::Ipvs)
        .map(|(mode, family)| (mode.into(), family))
        .collect();
    if !is_ipvs && found.legacy == Legacy::Chains {
        let legacy = NodePortRules::Iptables(Variant::Legacy);
        places.extend(Family::ALL.map(|family| (legacy, family)));
    }
    places
}

/// In mode ipvs the kernel delivers packets to Services to this node before IPVS takes them, so a
/// host firewall sees them in chain `INPUT`, as it does in kube-proxy's mode ipvs.
fn observe_input(family: Family) -> Option<Point> {
    let drops = match kernel::observe_input_policy(family) {
        Ok(drops) => drops,
        Err(error) => return Some(Point::warning(chain(&error).to_string())),
    };
    drops.then(|| {
        Point::note(format!(
            "{family}: chain INPUT of table filter drops what no rule accepts, and in mode ipvs packets to Services \
             pass it: accept them there by their mark, as the operations guide shows for mode ipvs, unless a rule of \
             your own accepts them"
        ))
    })
}

fn observe_nftables(
    family: Family,
    serving_state: ServingState,
    desired: &Dataplane,
) -> Result<Vec<Point>, ScanError> {
    if serving_state == ServingState::HandedBack {
        return Ok(Vec::new());
    }
    let Difference {
        only_foreign,
        only_own,
    } = observe_difference(desired, family)?;
    let mut points = Vec::new();
    if !only_foreign.is_empty() {
        let some = some_of(&only_foreign);
        let text = "either they were deleted, or another proxy is to serve them";
        points.push(Point::note(format!(
            "{family}: only kube-proxy's rules name {some}; {text}"
        )));
    }
    if !only_own.is_empty() {
        let some = some_of(&only_own);
        points.push(Point::note(format!(
            "{family}: kube-proxy's rules do not name {some}"
        )));
    }
    Ok(points)
}

fn obstacle(error: ScanError) -> Vec<Point> {
    vec![Point::obstacle(chain(&error).to_string())]
}

fn render_points(family: Family, table: &str, dependencies: &ForeignDependencies) -> Vec<Point> {
    let ForeignDependencies {
        others,
        drops_forwarded,
    } = dependencies;
    let mut points = Vec::new();
    if !others.is_empty() {
        points.push(Point::obstacle(format!("{family}: {}", some_of(others))));
    }
    if *drops_forwarded {
        points.push(Point::warning(format!(
            "{family}: chain FORWARD of {table} filter drops what no rule accepts, and kube-proxy's rules accept traffic \
             to Services: have the network plugin, or a rule of your own, accept traffic that is forwarded to Pods"
        )));
    }
    points
}
