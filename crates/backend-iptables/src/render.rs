//! Renders the rules for a node from its dataplane.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use backend::Rendered;
use dataplane::{
    Claims, Dataplane, Family, Frontend, FrontendKey, FrontendKind, Hairpin, Port, Precedence,
    Protocol, ServiceKey, ServicePortName, ServiceRules,
};
use xtables::{Match, Rule, TableName, Target};

use crate::client_lists::{ClientLists, Need};
use crate::comment;
use crate::fixed_chains::{self, Invalid, UNREDIRECTED};
use crate::key::{Key, Shape};
use crate::rules::{Chain, Rules};
use crate::service_chains::{self, Comments, ServicePortChains};
use crate::tree::{Entry, Tree};
use crate::trees::{FrontendTrees, TreeName, Trees};

/// The settings that all Services of one family share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) family: Family,
    pub(crate) comments: Comments,
    pub(crate) invalid: Invalid,
}

/// The frontends of Service ports, in the order of their Services' rules.
type FrontendsByPort<'a> = BTreeMap<&'a ServicePortName, Vec<(FrontendKey, &'a Arc<Frontend>)>>;

/// Renders one family of `desired`. If `from` has Services, processes only the differences from
/// it. The arrangement is unique, so the result does not depend on `from`, but for the Service ports
/// that have lists of clients where there is no room for those of all.
pub(crate) fn render(setting: Setting, desired: &Dataplane, from: &Rendered<Rules>) -> Rules {
    // Rules come without a dataplane if it is not known what they implement.
    let is_known = from.rules.trees.are_known() && !from.dataplane.services().is_empty();
    let is_incremental = is_known && from.dataplane.config() == desired.config();
    if is_incremental {
        let mut rules = from.rules.clone();
        rules.first = None;
        return advance(setting, [&from.dataplane, desired], rules, |_| false);
    }
    let nothing = Dataplane::default();
    let rules = Rules {
        trees: Trees::new(setting.family),
        ..Rules::default()
    };
    let remembers = |port: &ServicePortName| remembers_clients(&from.rules, port);
    let mut rules = advance(setting, [&nothing, desired], rules, remembers);
    rules.first = first(setting, desired, &rules.client_lists).map(Arc::new);
    rules
}

/// Renders only the Services that come first. Returns `None` if there are none, or no others.
/// Frontends that one of them claims but another Service has are left out. Their ports have
/// `client_lists`.
fn first(setting: Setting, desired: &Dataplane, client_lists: &ClientLists) -> Option<Rules> {
    let mut first = Dataplane::new(Arc::clone(desired.node()), Arc::clone(desired.config()));
    for (name, service) in desired.services().iter() {
        let precedence = service.frontends.iter().map(|(_, f)| f.precedence).min();
        if precedence == Some(Precedence::First) {
            let mut own = ServiceRules::clone(service);
            own.frontends.retain(|(key, _)| {
                let claims = desired.frontends().get(key);
                claims.is_some_and(|claims| claims.winner().0 == name)
            });
            first.set(Arc::new(own));
        }
    }
    let count = first.services().len();
    if count == 0 || count == desired.services().len() {
        return None;
    }
    let rules = Rules {
        trees: Trees::new(setting.family),
        client_lists: client_lists.clone(),
        ..Rules::default()
    };
    let dataplanes = [&Dataplane::default(), &first];
    Some(advance(setting, dataplanes, rules, |_| false))
}

/// Whether the chains in `rules` remember the clients of `port`.
fn remembers_clients(rules: &Rules, port: &ServicePortName) -> bool {
    let chains = service_chains::names_of(port);
    let mut chains = chains
        .iter()
        .filter_map(|name| rules.nat.chains().get(name));
    let is_of_clients = |rule: &Rule| {
        let mut matches = rule.matches.iter();
        matches.any(|one| matches!(one, Match::Recent { .. }))
    };
    chains.any(|chain| chain.rules.iter().any(is_of_clients))
}

/// Changes `rules` from those for the first dataplane to those for the second one. The kernel
/// `remembers` the clients of some ports that `rules` do not show.
fn advance(
    setting: Setting,
    [before, desired]: [&Dataplane; 2],
    mut rules: Rules,
    remembers: impl Fn(&ServicePortName) -> bool,
) -> Rules {
    let trees_before = rules.trees.clone();
    let ports = place_frontends(setting, before, desired, &mut rules.trees);
    let of =
        |ports| [before, desired].map(|dataplane| frontends_of(dataplane, ports, setting.family));
    let frontends = of(&ports);
    let filled = place_client_lists(&ports, &frontends[1], &mut rules.client_lists, remembers);
    for port in &ports {
        place_service_port(setting, [before, desired], &frontends, port, &mut rules);
    }
    let frontends = of(&filled);
    for port in &filled {
        place_service_port(setting, [before, desired], &frontends, port, &mut rules);
    }
    place_memberships(setting, before, desired, &mut rules.trees);
    let empty = Trees::new(setting.family);
    for name in TreeName::ALL {
        let (Some(old), Some(new)) = (
            trees_before.get(name).or(empty.get(name)),
            rules.trees.get(name),
        ) else {
            continue;
        };
        let changes = new.changes_since(old);
        rules.of_mut(name.table()).put_tree(changes);
    }
    for table in TableName::ALL {
        let Setting {
            family, invalid, ..
        } = setting;
        let (node, config) = (desired.node(), desired.config());
        let chains = fixed_chains::render(table, family, node, config, invalid, &rules.trees);
        let table_rules = rules.of_mut(table);
        for (name, chain) in chains {
            table_rules.put(name, Some(chain));
        }
        table_rules.entries = fixed_chains::entries(table);
    }
    rules
}

/// Updates the tree rules of every frontend that changed. Returns the Service ports concerned.
fn place_frontends(
    setting: Setting,
    before: &Dataplane,
    desired: &Dataplane,
    trees: &mut Trees,
) -> BTreeSet<ServicePortName> {
    let mut ports = BTreeSet::new();
    for difference in before.frontends().differences(desired.frontends()) {
        if difference.key.family() != setting.family {
            continue;
        }
        let winner = |claims: &Claims<Arc<Frontend>>| Arc::clone(claims.winner().1);
        let (old, new) = (difference.before.map(winner), difference.after.map(winner));
        if old == new {
            continue;
        }
        let place = FrontendTrees::of(difference.key);
        let entry = |frontend: &Frontend, target: Target, word: &str| {
            let port = &frontend.service_port;
            let comment = format!("{port} {}{word}", kind(frontend.kind));
            Entry {
                rule: Rule {
                    comment: Some(comment::of(&comment)),
                    ..place.rule(target)
                },
                service: Some(port.service.clone()),
            }
        };
        let found = new
            .as_deref()
            .map(|frontend| entry(frontend, service_chains::target(frontend), ""));
        let refused = new.as_deref().and_then(|frontend| {
            let (target, _) = service_chains::refusal(frontend);
            let word = match (frontend.has_endpoints, frontend.source_ranges.is_empty()) {
                (false, _) => " has no endpoints",
                (true, true) => " has no local endpoints",
                (true, false) => " is not for everyone",
            };
            Some(entry(frontend, target?, word))
        });
        for (tree, entry) in [(place.dispatch, found), (place.refusals, refused)] {
            if let Some(tree) = trees.get_mut(tree) {
                tree.set(place.key, entry);
            }
        }
        let concerned = [old, new].into_iter().flatten();
        ports.extend(concerned.map(|frontend| frontend.service_port.clone()));
    }
    ports
}

/// Gives `ports` the lists of clients that they need, as far as there is room. Returns other ports
/// that get theirs now.
fn place_client_lists(
    ports: &BTreeSet<ServicePortName>,
    frontends: &FrontendsByPort<'_>,
    lists: &mut ClientLists,
    remembers: impl Fn(&ServicePortName) -> bool,
) -> BTreeSet<ServicePortName> {
    let before = lists.clone();
    let need = |port| Need::of(&borrowed(frontends, port));
    let needs: Vec<_> = ports.iter().map(|port| (port, need(port))).collect();
    // Lists in the kernel stay, so that a start moves no client. An older version may have made too
    // many: then the first ports would take from the namespaces of others.
    let kept = needs.iter().filter_map(|(port, need)| {
        let need = need.filter(|need| need.is_within_bounds() && remembers(port))?;
        Some((*port, need))
    });
    let kept: Vec<_> = kept.collect();
    if ClientLists::fit(kept.iter().map(|(_, need)| need.lists).sum()) {
        for (port, need) in kept {
            lists.keep(port, need);
        }
    }
    // What is left by one is there for all others.
    let (asking, leaving): (Vec<_>, Vec<_>) =
        needs.into_iter().partition(|(_, need)| need.is_some());
    for (port, need) in leaving.into_iter().chain(asking) {
        lists.place(port, need);
    }
    lists.fill(&before)
}

/// Adds the chains that one Service port needs and removes the others. In each pair, the previous
/// state comes first.
fn place_service_port(
    setting: Setting,
    dataplanes: [&Dataplane; 2],
    frontends: &[FrontendsByPort<'_>; 2],
    port: &ServicePortName,
    rules: &mut Rules,
) {
    let clients = rules.client_lists.clients(port);
    let chains = |dataplane: &Dataplane, owned: &FrontendsByPort<'_>| {
        let frontends = borrowed(owned, port);
        let filter = frontends
            .iter()
            .filter_map(|(_, frontend)| service_chains::refusal(frontend).1);
        let filter: BTreeMap<Arc<str>, Chain> = filter.collect();
        let nat = ServicePortChains {
            family: setting.family,
            config: dataplane.config(),
            comments: setting.comments,
            port,
            clients,
            frontends,
        };
        let nat = nat.render().into_iter();
        let nat = nat.filter_map(|(name, chain)| Some((name, chain?)));
        (nat.collect::<BTreeMap<_, _>>(), filter)
    };
    let ([before, desired], [old_frontends, new_frontends]) = (dataplanes, frontends);
    let (old_nat, old_filter) = chains(before, old_frontends);
    let (nat, filter) = chains(desired, new_frontends);
    for (table, old, new) in [
        (TableName::Nat, old_nat, nat),
        (TableName::Filter, old_filter, filter),
    ] {
        let table = rules.of_mut(table);
        for name in old.into_keys().filter(|name| !new.contains_key(name)) {
            table.put(name, None);
        }
        for (name, chain) in new {
            table.put(name, Some(chain));
        }
    }
}

/// The frontends of one port.
fn borrowed<'a>(
    frontends: &FrontendsByPort<'a>,
    port: &ServicePortName,
) -> Vec<(FrontendKey, &'a Frontend)> {
    let of_port = frontends.get(port).into_iter().flatten();
    of_port
        .map(|(key, frontend)| (*key, &***frontend))
        .collect()
}

/// The frontends that belong to these Service ports and that no other Service wins. Processes all
/// ports of a Service at once, since it may have thousands.
fn frontends_of<'a>(
    dataplane: &'a Dataplane,
    ports: &'a BTreeSet<ServicePortName>,
    family: Family,
) -> FrontendsByPort<'a> {
    let mut by_port = FrontendsByPort::new();
    let services: BTreeSet<&ServiceKey> = ports.iter().map(|port| &port.service).collect();
    for service in services {
        let rules = dataplane.services().get(service);
        for (key, frontend) in rules.into_iter().flat_map(|rules| &rules.frontends) {
            let claims = dataplane.frontends().get(key);
            let is_own = claims.is_some_and(|claims| claims.winner().0 == service);
            if key.family() == family
                && is_own
                && let Some(port) = ports.get(&frontend.service_port)
            {
                by_port.entry(port).or_default().push((*key, frontend));
            }
        }
    }
    by_port
}

/// Updates the trees that do not contain frontends.
fn place_memberships(setting: Setting, before: &Dataplane, desired: &Dataplane, trees: &mut Trees) {
    let family = setting.family;
    let by_address = Shape {
        address: Some(family),
    };
    if let Some(tree) = trees.get_mut(TreeName::ClusterIps) {
        for difference in before.cluster_ips().differences(desired.cluster_ips()) {
            if Family::of(*difference.key) != family {
                continue;
            }
            let key = Key::address(*difference.key);
            let entry = difference.after.map(|claims| {
                let (service, ()) = claims.winner();
                let comment = (setting.comments == Comments::Everywhere)
                    .then(|| comment::of(&format!("{service} has no such port")));
                let rule = by_address.criteria(&key);
                let rule = rule.rule(Target::Goto(UNREDIRECTED.into()));
                entry(Rule { comment, ..rule }, Some(service))
            });
            tree.set(key, entry);
        }
    }
    if let Some(tree) = trees.get_mut(TreeName::Sources) {
        // A single rule covers all cluster IPs inside a known range.
        let cidrs = &desired.config().service_cidrs;
        for difference in before.cluster_ips().differences(desired.cluster_ips()) {
            let address = *difference.key;
            if Family::of(address) != family || cidrs.iter().any(|cidr| cidr.contains(&address)) {
                continue;
            }
            let key = Key::address(address);
            let rule = tree.rule(&key, Target::Masquerade);
            tree.set(key, difference.after.map(|_| entry(rule, None)));
        }
    }
    if let Some(tree) = trees.get_mut(TreeName::Hairpins) {
        for difference in before.hairpins().differences(desired.hairpins()) {
            let Hairpin {
                address,
                protocol,
                port,
            } = *difference.key;
            if Family::of(address) != family {
                continue;
            }
            let key = Key::address(address).with_port(protocol, port);
            let rule = by_address.criteria(&key).rule(Target::Masquerade);
            let rule = Rule {
                source: rule.destination,
                ..rule
            };
            tree.set(key, difference.after.map(|_| entry(rule, None)));
        }
    }
    if let Some(tree) = trees.get_mut(TreeName::HealthChecks) {
        place_health_checks(before, desired, tree);
    }
}

/// Accepts packets to health-check node ports. If several Services claim a port, the comment names
/// the first by name; Services are searched only when such a port is added or removed.
fn place_health_checks(before: &Dataplane, desired: &Dataplane, tree: &mut Tree) {
    let port = |rules: &Arc<ServiceRules>| Some(rules.health_check?.port);
    let mut concerned: BTreeMap<Port, Option<&ServiceKey>> = BTreeMap::new();
    for difference in before.services().differences(desired.services()) {
        let (old, new) = (
            difference.before.and_then(port),
            difference.after.and_then(port),
        );
        if old != new {
            concerned.extend([old, new].into_iter().flatten().map(|port| (port, None)));
        }
    }
    if concerned.is_empty() {
        return;
    }
    for (service, rules) in desired.services().iter() {
        let claimed = port(rules).and_then(|port| concerned.get_mut(&port));
        if let Some(first) = claimed
            && first.is_none_or(|first| service < first)
        {
            *first = Some(service);
        }
    }
    let by_port = Shape { address: None };
    for (port, service) in concerned {
        let key = Key::port(Protocol::Tcp, port);
        let let_in = service.map(|service| {
            let comment = format!("{service} health check node port");
            let rule = Rule {
                comment: Some(comment::of(&comment)),
                ..by_port.criteria(&key).rule(Target::Accept)
            };
            entry(rule, Some(service))
        });
        tree.set(key, let_in);
    }
}

fn entry(rule: Rule, service: Option<&ServiceKey>) -> Entry {
    Entry {
        rule,
        service: service.cloned(),
    }
}

/// The name of the kind in comments.
fn kind(kind: FrontendKind) -> &'static str {
    match kind {
        FrontendKind::ClusterIp => "cluster IP",
        FrontendKind::ExternalIp => "external IP",
        FrontendKind::LoadBalancerIp => "loadbalancer IP",
        FrontendKind::NodePort => "node port",
    }
}
