//! The endpoints that may answer the flows to a frontend.

use std::collections::HashMap;
use std::sync::Arc;

use dataplane::{Claims, Frontend, FrontendKey, ServiceKey, Target};

/// A frontend with more equal claims than this gets a list.
const FEW: usize = 16;
/// The maximum number of endpoints in all lists of one state of the Services: 24 MiB, for as long as a pass
/// lasts, which compares two states. A namespace has no more than it leaves for others.
const MOST_LISTED: usize = 1 << 20;
/// How many endpoints are collected before those that several claims share are counted once.
const COLLECTED: usize = 4096;

type Frontends = Claims<Arc<Frontend>>;

/// Lists of the endpoints of frontends that many Services claim. There may be ten thousand claims, and a
/// million flows: to search all claims for each flow would take hours.
#[derive(Debug, Clone, Default)]
pub(super) struct ContestedEndpoints {
    lists: HashMap<FrontendKey, EndpointList>,
    /// The endpoints in all lists.
    listed: usize,
    /// How many of them each namespace brought.
    by_namespace: HashMap<Arc<str>, usize>,
}

/// The endpoints of all equal claims, each once and sorted; `None` where there was no room for them.
#[derive(Debug, Clone)]
struct EndpointList {
    claims: Frontends,
    targets: Option<Vec<Target>>,
    by_namespace: ByNamespace,
}

/// How many endpoints each namespace brings to a list. Of those that several have, each does.
type ByNamespace = Vec<(Arc<str>, usize)>;

/// Endpoints that are collected, of which there may be `most`.
#[derive(Debug)]
struct DistinctEndpoints {
    most: usize,
    targets: Vec<Target>,
    /// At how many each is counted once.
    full: usize,
}

// === impl ContestedEndpoints ===

impl ContestedEndpoints {
    /// Whether `from` may answer for any of the equal `claims` on `key`. If these are many, and there is
    /// no room for a list of their endpoints, it may: a stale flow stays until its sender pauses, but a good
    /// one must not be deleted.
    pub(super) fn include(&mut self, key: FrontendKey, claims: &Frontends, from: &Target) -> bool {
        match claims.equals().nth(FEW) {
            Some(_) => self.list(key, claims),
            // A list of former claims may be there.
            None => self.forget(&key),
        }
        match self.lists.get(&key) {
            Some(list) => {
                let targets = list.targets.as_ref();
                targets.is_none_or(|targets| targets.binary_search(from).is_ok())
            }
            None => {
                let mut claims = claims.equals();
                claims.any(|(_, frontend)| frontend.serving.binary_search(from).is_ok())
            }
        }
    }

    /// Makes a list, if there is none of these claims.
    fn list(&mut self, key: FrontendKey, claims: &Frontends) {
        match self.lists.get(&key) {
            Some(list) if list.claims == *claims => return,
            _ => self.forget(&key),
        }
        let (targets, by_namespace) = self.distinct_endpoints(claims).unzip();
        let by_namespace = by_namespace.unwrap_or_default();
        self.listed += targets.as_ref().map_or(0, Vec::len);
        for (namespace, endpoints) in &by_namespace {
            *self.by_namespace.entry(Arc::clone(namespace)).or_default() += endpoints;
        }
        let list = EndpointList {
            claims: claims.clone(),
            targets,
            by_namespace,
        };
        self.lists.insert(key, list);
    }

    /// The endpoints of the equal `claims`, each once and sorted, and how many of them each namespace brings;
    /// `None` if there is no room for all of them. Holds no more than four times as many at a time as there is
    /// room for, and those of one claim.
    fn distinct_endpoints(&self, claims: &Frontends) -> Option<(Vec<Target>, ByNamespace)> {
        let room = MOST_LISTED - self.listed;
        let mut all = DistinctEndpoints::new(room);
        let mut by_namespace = Vec::new();
        let mut equals = claims.equals().peekable();
        while let Some((first, _)) = equals.peek() {
            let namespace = Arc::clone(&first.namespace);
            let had = self.by_namespace.get(&namespace).copied().unwrap_or(0);
            let mut own = DistinctEndpoints::new(room.saturating_sub(had));
            // Claims are in the order of their names.
            let is_own = |claim: &(&ServiceKey, _)| claim.0.namespace == namespace;
            while let Some((_, frontend)) = equals.next_if(is_own) {
                own.add(&frontend.serving)?;
            }
            let own = own.finish()?;
            all.add(&own)?;
            by_namespace.push((namespace, own.len()));
        }
        Some((all.finish()?, by_namespace))
    }

    fn forget(&mut self, key: &FrontendKey) {
        let Some(list) = self.lists.remove(key) else {
            return;
        };
        self.listed -= list.targets.map_or(0, |targets| targets.len());
        for (namespace, endpoints) in list.by_namespace {
            if let Some(listed) = self.by_namespace.get_mut(&namespace) {
                *listed -= endpoints;
            }
        }
    }
}

// === impl DistinctEndpoints ===

impl DistinctEndpoints {
    fn new(most: usize) -> DistinctEndpoints {
        DistinctEndpoints {
            most,
            targets: Vec::new(),
            full: COLLECTED,
        }
    }

    /// Adds some. `None` if there are too many.
    fn add(&mut self, targets: &[Target]) -> Option<()> {
        self.targets.extend_from_slice(targets);
        if self.targets.len() >= self.full {
            self.count_once()?;
            self.full = COLLECTED.max(2 * self.targets.len());
        }
        Some(())
    }

    /// Each once and sorted; `None` if there are too many.
    fn finish(mut self) -> Option<Vec<Target>> {
        self.count_once()?;
        self.targets.shrink_to_fit();
        Some(self.targets)
    }

    fn count_once(&mut self) -> Option<()> {
        self.targets.sort();
        self.targets.dedup();
        (self.targets.len() <= self.most).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use dataplane::{Dataplane, Port, Protocol, compile};
    use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

    use super::*;

    const CLAIMANTS: u8 = 100;
    /// The address that they claim.
    const SHOP: &str = "198.51.100.1";

    /// Services with an endpoint each that all claim one external IP.
    fn claimants() -> Dataplane {
        let (node, config) = (mk_node(1).build(), mk_config().build());
        let mut all = Dataplane::new(node, config);
        for number in 1..=CLAIMANTS {
            set(&mut all, number, &format!("10.0.1.{number}:8080"));
        }
        all
    }

    fn with_room_for(endpoints: usize) -> ContestedEndpoints {
        ContestedEndpoints {
            listed: MOST_LISTED - endpoints,
            ..ContestedEndpoints::default()
        }
    }

    fn set(all: &mut Dataplane, number: u8, endpoint: &str) {
        set_all(all, number, &[endpoint.to_owned()]);
    }

    fn set_all(all: &mut Dataplane, number: u8, addresses: &[String]) {
        let (name, cluster_ip) = (format!("shop/web-{number:03}"), format!("10.96.0.{number}"));
        set_at(all, &name, [&cluster_ip, SHOP], addresses);
    }

    /// Sets a Service that claims this external IP.
    fn set_at(
        all: &mut Dataplane,
        name: &str,
        [cluster_ip, external_ip]: [&str; 2],
        addresses: &[String],
    ) {
        let (node, config) = (Arc::clone(all.node()), Arc::clone(all.config()));
        let service = mk_service(name)
            .cluster_ip(cluster_ip)
            .external_ip(external_ip)
            .port("", 80);
        let mut endpoints = mk_endpoints().tcp("");
        for address in addresses {
            endpoints = endpoints.ready(address, "node-1");
        }
        let rules = compile(&service.build(), &endpoints.build(), &node, &config);
        all.set(Arc::new(rules));
    }

    fn includes(contested_endpoints: &mut ContestedEndpoints, all: &Dataplane, from: &str) -> bool {
        includes_at(SHOP, contested_endpoints, all, from)
    }

    /// Whether a flow to this address may be answered from there.
    fn includes_at(
        address: &str,
        contested_endpoints: &mut ContestedEndpoints,
        all: &Dataplane,
        from: &str,
    ) -> bool {
        let address = address.parse().expect("an address");
        let from: SocketAddr = from.parse().expect("an address with a port");
        let [port, from_port] = [80, from.port()].map(|port| Port::new(port).expect("not 0"));
        let from = Target {
            address: from.ip(),
            port: from_port,
        };
        let mut claims = all.claims_at(address, Protocol::Tcp, port);
        claims.any(|(key, claims)| contested_endpoints.include(key, claims, &from))
    }

    /// T415: all claims were searched for each flow.
    #[test]
    fn t415_the_endpoints_of_many_claims_are_listed_once() {
        let mut all = claimants();
        let mut contested_endpoints = ContestedEndpoints::default();
        let mut place = None;
        for number in (1..=CLAIMANTS).chain(1..=CLAIMANTS) {
            assert!(includes(
                &mut contested_endpoints,
                &all,
                &format!("10.0.1.{number}:8080")
            ));
            assert!(!includes(
                &mut contested_endpoints,
                &all,
                &format!("10.0.1.{number}:8081")
            ));
            let list = contested_endpoints
                .lists
                .values()
                .next()
                .expect("there are many");
            let targets = list.targets.as_ref().expect("there is room");
            assert_eq!(targets.len(), usize::from(CLAIMANTS));
            let is_same = *place.get_or_insert(targets.as_ptr()) == targets.as_ptr();
            assert!(is_same, "another list was made");
        }
        set(&mut all, 7, "10.0.1.107:8080");
        assert!(includes(&mut contested_endpoints, &all, "10.0.1.107:8080"));
        assert!(!includes(&mut contested_endpoints, &all, "10.0.1.7:8080"));
        assert_eq!(contested_endpoints.listed, usize::from(CLAIMANTS));

        // Those that are left are searched, not the list.
        for number in 6..=CLAIMANTS {
            all.remove(&ServiceKey::new("shop", format!("web-{number:03}")));
        }
        set(&mut all, 3, "10.0.1.103:8080");
        assert!(includes(&mut contested_endpoints, &all, "10.0.1.103:8080"));
        assert!(!includes(&mut contested_endpoints, &all, "10.0.1.3:8080"));
        assert_eq!(
            (contested_endpoints.listed, contested_endpoints.lists.len()),
            (0, 0)
        );
    }

    /// T451: endpoints that many Services share counted once for each, so there was no room for a list,
    /// and all claims were searched for each flow.
    #[test]
    fn t451_endpoints_that_many_claims_share_take_room_once() {
        let mut all = claimants();
        for number in 1..=CLAIMANTS {
            set(&mut all, number, &format!("10.0.1.{}:8080", number % 5));
        }
        let mut contested_endpoints = with_room_for(5);
        assert!(includes(&mut contested_endpoints, &all, "10.0.1.4:8080"));
        assert!(!includes(&mut contested_endpoints, &all, "10.0.1.5:8080"));
        let list = contested_endpoints
            .lists
            .values()
            .next()
            .expect("there are many");
        assert_eq!(list.targets.as_ref().map(Vec::len), Some(5));
        assert_eq!(contested_endpoints.listed, MOST_LISTED);
    }

    /// T451: claims that were without room for a list were all searched for each flow.
    #[test]
    fn t451_where_a_list_has_no_room_every_flow_is_kept() {
        let mut all = claimants();
        let mut contested_endpoints = with_room_for(usize::from(CLAIMANTS) - 1);
        for from in ["10.0.1.7:8080", "10.0.1.107:8080"] {
            assert!(includes(&mut contested_endpoints, &all, from));
            let list = contested_endpoints
                .lists
                .values()
                .next()
                .expect("it is remembered");
            assert_eq!(list.targets, None);
        }
        // One goes, and there is room.
        all.remove(&ServiceKey::new("shop", "web-100"));
        assert!(includes(&mut contested_endpoints, &all, "10.0.1.7:8080"));
        assert!(!includes(&mut contested_endpoints, &all, "10.0.1.107:8080"));
        assert_eq!(contested_endpoints.listed, MOST_LISTED);
    }

    /// T459: lists of a tenant's endpoints left no room for those of others.
    #[test]
    fn t459_a_namespace_leaves_room_for_the_lists_of_others() {
        let mut all = claimants();
        let tenants = ["198.51.100.2", "198.51.100.3"];
        for (place, address) in tenants.into_iter().enumerate() {
            for number in 1..=CLAIMANTS {
                let name = format!("tenant/web-{place}-{number:03}");
                let cluster_ip = format!("10.96.{}.{number}", place + 1);
                let endpoints = [format!("10.1.{place}.{number}:8080")];
                set_at(&mut all, &name, [&cluster_ip, address], &endpoints);
            }
        }
        let mut contested_endpoints = with_room_for(250);
        let is_listed = |contested_endpoints: &mut ContestedEndpoints, all: &Dataplane, address| {
            !includes_at(address, contested_endpoints, all, "10.2.0.1:8080")
        };
        let listed = tenants.map(|address| is_listed(&mut contested_endpoints, &all, address));
        assert_eq!(listed, [true, false]);
        assert!(is_listed(&mut contested_endpoints, &all, SHOP));

        // All but a few of those at the first address go, and there is room for another list.
        for number in 1..=95 {
            all.remove(&ServiceKey::new("tenant", format!("web-0-{number:03}")));
        }
        assert!(is_listed(&mut contested_endpoints, &all, tenants[0]));
        // What had no room is tried again with other claims alone.
        assert!(!is_listed(&mut contested_endpoints, &all, tenants[1]));
        all.remove(&ServiceKey::new("tenant", "web-1-001"));
        assert!(is_listed(&mut contested_endpoints, &all, tenants[1]));
    }

    #[test]
    fn however_many_endpoints_are_shared_each_is_listed_once() {
        let frontend = |all: &Dataplane| {
            let address = SHOP.parse().expect("an address");
            let port = Port::new(80).expect("not 0");
            let mut claims = all.claims_at(address, Protocol::Tcp, port);
            claims.next().expect("all claim it").1.clone()
        };
        let mut all = claimants();
        for number in 1..=CLAIMANTS {
            let shared = (0..200).map(|n| format!("10.1.{}.{n}:8080", number % 3));
            set_all(&mut all, number, &shared.collect::<Vec<_>>());
        }
        let claims = frontend(&all);
        let distinct = with_room_for(600).distinct_endpoints(&claims);
        let (targets, by_namespace) = distinct.expect("there is room");
        assert_eq!(targets.len(), 600);
        assert!(targets.is_sorted());
        assert_eq!(by_namespace, [("shop".into(), 600)]);
        assert_eq!(with_room_for(599).distinct_endpoints(&claims), None);
    }
}
