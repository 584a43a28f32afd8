//! The endpoints that may answer the flows to a frontend.

use std::collections::HashMap;
use std::sync::Arc;

use dataplane::{Claims, Frontend, FrontendKey, Target};

/// A frontend with more equal claims than this gets a list.
const FEW: usize = 16;
/// The maximum number of endpoints in all lists of one state of the Services: 24 MiB, for as long as a pass
/// lasts, which compares two states.
const MOST_LISTED: usize = 1 << 20;

type Frontends = Claims<Arc<Frontend>>;

/// Lists of the endpoints of frontends that many Services claim. There may be ten thousand claims, and a
/// million flows: to search all claims for each flow would take hours.
#[derive(Debug, Clone, Default)]
pub(super) struct ContestedEndpoints {
    lists: HashMap<FrontendKey, EndpointList>,
    /// The endpoints in all lists.
    listed: usize,
}

/// The endpoints of all equal claims, sorted.
#[derive(Debug, Clone)]
struct EndpointList {
    claims: Frontends,
    targets: Vec<Target>,
}

// === impl ContestedEndpoints ===

impl ContestedEndpoints {
    /// Whether `from` may answer for any of the equal `claims` on `key`.
    pub(super) fn include(&mut self, key: FrontendKey, claims: &Frontends, from: &Target) -> bool {
        match claims.equals().nth(FEW) {
            Some(_) => self.list(key, claims),
            // A list of former claims may be there.
            None => self.forget(&key),
        }
        match self.lists.get(&key) {
            Some(list) => list.targets.binary_search(from).is_ok(),
            None => {
                let mut claims = claims.equals();
                claims.any(|(_, frontend)| frontend.serving.binary_search(from).is_ok())
            }
        }
    }

    /// Makes a list, if there is none of these claims and there is room.
    fn list(&mut self, key: FrontendKey, claims: &Frontends) {
        match self.lists.get(&key) {
            Some(list) if list.claims == *claims => return,
            _ => self.forget(&key),
        }
        let serving = || claims.equals().map(|(_, frontend)| &frontend.serving);
        let count: usize = serving().map(|targets| targets.len()).sum();
        if self.listed + count > MOST_LISTED {
            return;
        }
        let mut targets: Vec<Target> = serving().flat_map(|it| it.iter().copied()).collect();
        targets.sort();
        targets.dedup();
        targets.shrink_to_fit();
        self.listed += targets.len();
        let claims = claims.clone();
        self.lists.insert(key, EndpointList { claims, targets });
    }

    fn forget(&mut self, key: &FrontendKey) {
        if let Some(list) = self.lists.remove(key) {
            self.listed -= list.targets.len();
        }
    }
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

    fn set(all: &mut Dataplane, number: u8, endpoint: &str) {
        let (node, config) = (Arc::clone(all.node()), Arc::clone(all.config()));
        let service = mk_service(&format!("shop/web-{number:03}"))
            .cluster_ip(&format!("10.96.0.{number}"))
            .external_ip("198.51.100.1")
            .port("", 80);
        let endpoints = mk_endpoints().tcp("").ready(endpoint, "node-1");
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
            assert_eq!(list.targets.len(), usize::from(CLAIMANTS));
            let is_same = *place.get_or_insert(list.targets.as_ptr()) == list.targets.as_ptr();
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

    #[test]
    fn without_room_for_a_list_the_claims_are_searched() {
        let all = claimants();
        let mut contested_endpoints = ContestedEndpoints {
            listed: MOST_LISTED,
            ..ContestedEndpoints::default()
        };
        assert!(includes(&mut contested_endpoints, &all, "10.0.1.7:8080"));
        assert!(!includes(&mut contested_endpoints, &all, "10.0.1.107:8080"));
        assert!(contested_endpoints.lists.is_empty());
    }
}
