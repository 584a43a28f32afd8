//! Parts of a change that is larger than they list, beside Services that come much later. Failure story T461.

use std::net::IpAddr;

use dataplane::{
    Dataplane, Endpoints, Family, FrontendKey, NextPart, PartContents, PartSize, Service,
};
use testkit::{mk_endpoints, mk_service};

use crate::next_part::{dataplane, way};

/// An address of the node's network.
const SHARED: &str = "192.0.2.1";

/// A Service with ports from `first` on, at its cluster IP and these other addresses, and with this many endpoints.
struct Form<'a> {
    name: &'a str,
    cluster_ip: &'a str,
    external_ip: Option<&'a str>,
    load_balancer_ip: Option<&'a str>,
    first: u16,
    ports: u16,
    endpoints: u8,
    /// The third number of the endpoints' addresses.
    network: u8,
}

// === impl Form ===

impl<'a> Form<'a> {
    fn new(name: &'a str, cluster_ip: &'a str, ports: u16) -> Form<'a> {
        Form {
            name,
            cluster_ip,
            external_ip: None,
            load_balancer_ip: None,
            first: 80,
            ports,
            endpoints: 1,
            network: 1,
        }
    }

    fn external(self, address: &'a str) -> Form<'a> {
        Form {
            external_ip: Some(address),
            ..self
        }
    }

    fn build(&self) -> (Service, Endpoints) {
        let mut service = mk_service(self.name).cluster_ip(self.cluster_ip);
        if let Some(address) = self.external_ip {
            service = service.external_ip(address);
        }
        if let Some(address) = self.load_balancer_ip {
            service = service.load_balancer_ip(address);
        }
        let mut endpoints = mk_endpoints();
        for number in 0..self.ports {
            let port = format!("p{number}");
            service = service.port(&port, self.first + number);
            endpoints = endpoints.tcp(&port);
            for endpoint in 0..self.endpoints {
                let address = format!("10.0.{}.{endpoint}:{}", self.network, 9_000 + number);
                endpoints = endpoints.ready(&address, "node-2");
            }
        }
        (service.build(), endpoints.build())
    }
}

fn serves(at: &Dataplane, service: &str) -> bool {
    let mut frontends = at.frontends().iter();
    frontends.any(|(_, claims)| claims.winner().0.to_string() == service)
}

/// A tenant changes a small Service that loses all its ports to a large one of the same tenant: no part is full
/// of frontends that stay as they are.
#[test]
fn t461_a_small_service_behind_a_large_one_keeps_no_others_waiting() {
    let large = Form {
        endpoints: 100,
        ..Form::new("tenant/large", "10.96.0.1", 2).external(SHARED)
    };
    let small = |network| Form {
        network,
        ..Form::new("tenant/small", "10.96.0.2", 2).external(SHARED)
    };
    let before = dataplane(&[large.build(), small(1).build()]);
    let after = dataplane(&[
        large.build(),
        small(2).build(),
        Form::new("shop/web", "10.96.0.3", 1).build(),
        Form::new("tenant/wide", "10.96.0.4", 100).build(),
    ]);
    let size = PartSize::new(160);
    let first = NextPart::next(Family::Ipv4, &before, &after, size, PartContents::Small);
    let NextPart::Small(first) = first else {
        panic!("two Services change little");
    };
    assert!(serves(&first, "shop/web") && !serves(&first, "tenant/wide"));
}

/// An address is given back to a Service, and another one will claim it, too, when its own turn comes. Until
/// then its cluster IP refuses nothing.
#[test]
fn t461_no_cluster_ip_comes_before_the_turn_of_its_service() {
    let balancer = |address| Form {
        first: 443,
        load_balancer_ip: address,
        ..Form::new("balancer/web", "10.96.0.1", 1)
    };
    let waits = Form::new("api/web", "10.96.0.2", 1).external(SHARED);
    let later = Form::new("zoo/web", "10.96.0.3", 30).external(SHARED);
    let before = dataplane(&[balancer(Some(SHARED)).build(), waits.build()]);
    let after = dataplane(&[
        balancer(None).build(),
        waits.build(),
        Form::new("middle/web", "10.96.0.4", 20).build(),
        later.build(),
    ]);
    let cluster_ip: IpAddr = "10.96.0.3".parse().expect("an address");
    for at in way(&before, &after, 10) {
        let frontends = at.frontends().iter();
        let is_there = |key: &FrontendKey| matches!(key, FrontendKey::Address { address, .. } if *address == cluster_ip);
        let ports = frontends.filter(|(key, _)| is_there(key)).count();
        assert!(
            ports == 30 || at.cluster_ips().get(&cluster_ip).is_none(),
            "{ports} ports"
        );
    }
}

/// The API server leaves an address, and Services get it back that have it as an external IP.
#[test]
fn t461_addresses_that_the_api_server_leaves_are_given_back_in_parts() {
    let api_server = |network| Form {
        network,
        ..Form::new("default/kubernetes", "10.96.0.1", 1)
    };
    let of_tenant = Form::new("tenant/web", "10.96.0.2", 200).external("10.0.7.0");
    let before = dataplane(&[api_server(7).build(), of_tenant.build()]);
    let after = dataplane(&[
        api_server(8).build(),
        of_tenant.build(),
        Form::new("tenant/wide", "10.96.0.3", 100).build(),
    ]);
    let mut at = before.clone();
    for next in way(&before, &after, 20) {
        let changed = at.frontends().differences(next.frontends()).len();
        assert!(changed <= 40, "{changed} frontends in a part of 20");
        at = next;
    }
}
