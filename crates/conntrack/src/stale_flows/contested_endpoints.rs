//! The endpoints that may answer the flows to a frontend.

use std::collections::HashMap;
use std::sync::Arc;

use dataplane::{Claims, Frontend, FrontendKey, Target};

/// A frontend with more equal claims than this gets a list.
const FEW: usize = 16;
/// The maximum number of endpoints in all lists of one state of the Services: 24 MiB, for as long as a pass
/// lasts, which compares two states.
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
}

/// The endpoints of all equal claims, each once and sorted; `None` where there was no room for them.
#[derive(Debug, Clone)]
struct EndpointList {
    claims: Frontends,
    targets: Option<Vec<Target>>,
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
        let targets = distinct_endpoints(claims, MOST_LISTED - self.listed);
        self.listed += targets.as_ref().map_or(0, Vec::len);
        let claims = claims.clone();
        self.lists.insert(key, EndpointList { claims, targets });
    }

    fn forget(&mut self, key: &FrontendKey) {
        if let Some(EndpointList { targets, .. }) = self.lists.remove(key) {
            self.listed -= targets.map_or(0, |targets| targets.len());
        }
    }
}

/// The endpoints of the equal `claims`, each once and sorted; `None` if they are more than `most`. Holds
/// no more than twice as many at a time, and those of one claim.
fn distinct_endpoints(claims: &Frontends, most: usize) -> Option<Vec<Target>> {
    let (mut targets, mut full) = (Vec::new(), COLLECTED);
    let count_once = |targets: &mut Vec<Target>| {
        targets.sort();
        targets.dedup();
        targets.len() <= most
    };
    for (_, frontend) in claims.equals() {
        targets.extend(frontend.serving.iter().copied());
        if targets.len() >= full {
            if !count_once(&mut targets) {
                return None;
            }
            full = COLLECTED.max(2 * targets.len());
        }
    }
    let fits = count_once(&mut targets);
    targets.shrink_to_fit();
    fits.then_some(targets)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use dataplane::{Dataplane, Port, Protocol, ServiceKey, compile};
    use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

    use super::*;

    const CLAIMANTS: u8 = 100;

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
        let (node, config) = (Arc::clone(all.node()), Arc::clone(all.config()));
        let service = mk_service(&format!("shop/web-{number:03}"))
            .cluster_ip(&format!("10.96.0.{number}"))
            .external_ip("198.51.100.1")
            .port("", 80);
        let mut endpoints = mk_endpoints().tcp("");
        for address in addresses {
            endpoints = endpoints.ready(address, "node-1");
        }
        let rules = compile(&service.build(), &endpoints.build(), &node, &config);
        all.set(Arc::new(rules));
    }

    fn includes(contested_endpoints: &mut ContestedEndpoints, all: &Dataplane, from: &str) -> bool {
        let address = "198.51.100.1".parse().expect("an address");
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

    #[test]
    fn however_many_endpoints_are_shared_each_is_listed_once() {
        let frontend = |all: &Dataplane| {
            let address = "198.51.100.1".parse().expect("an address");
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
        let targets = distinct_endpoints(&claims, 600).expect("there is room");
        assert_eq!(targets.len(), 600);
        assert!(targets.is_sorted());
        assert_eq!(distinct_endpoints(&claims, 599), None);
    }
}
