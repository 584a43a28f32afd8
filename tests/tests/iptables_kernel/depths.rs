//! Addresses and ports that lie as badly for a tree as they can.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Result, ensure};
use backend::{Backend, Rendered};
use dataplane::{Dataplane, Family};
use tests::programmed::program;

use crate::ground::Ground;

/// A service address, and for each of its digits one that differs from it there first.
fn addresses(family: Family) -> Vec<IpAddr> {
    match family {
        Family::Ipv4 => {
            let first = u32::from(Ipv4Addr::new(192, 0, 2, 1));
            let others = (0..8).map(|digit| first ^ 4 << (4 * digit));
            let all = [first].into_iter().chain(others);
            all.map(|bits| Ipv4Addr::from(bits).into()).collect()
        }
        Family::Ipv6 => {
            let first = u128::from(Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 1));
            // Those that begin otherwise are no addresses of anybody.
            let others = (0..28).map(|digit| first ^ 4 << (4 * digit));
            let all = [first].into_iter().chain(others);
            all.map(|bits| Ipv6Addr::from(bits).into()).collect()
        }
    }
}

/// One Service at all of them, with ports that lie alike, for some sources only: behind the tree
/// there are as many chains as there can be.
fn deep(family: Family) -> Dataplane {
    let mut service = testkit::mk_service("shop/deep");
    let (own, range, endpoint) = match family {
        Family::Ipv4 => ("10.96.0.10", "203.0.113.0/24", "10.0.1.5:8080"),
        Family::Ipv6 => (
            "fd00:10:96::a",
            "2001:db8:113::/64",
            "[fd00:10:0:1::5]:8080",
        ),
    };
    service = service.cluster_ip(own).source_range(range);
    for address in addresses(family) {
        service = service.load_balancer_ip(&address.to_string());
    }
    let mut endpoints = testkit::mk_endpoints();
    for port in [0x1000, 0x2000].into_iter().chain(0x1f00..0x1f20) {
        let name = format!("port-{port}");
        service = service.port(&name, port);
        endpoints = endpoints.tcp(&name).ready(endpoint, "node-1");
    }
    service = service.udp("dns", 53);
    let endpoints = endpoints.udp("dns").ready(endpoint, "node-1").build();
    let mut dataplane = Dataplane::default();
    let (node, config) = (dataplane.node(), dataplane.config());
    let rules = dataplane::compile(&service.build(), &endpoints, node, config);
    dataplane.set(rules.into());
    dataplane
}

/// nf_tables takes chains that lead into each other sixteen deep at most (`NFT_JUMP_STACK_SIZE`), and
/// refuses every change to a table with more.
pub(crate) fn however_addresses_lie(ground: &Ground) -> Result<()> {
    for mut backend in ground.open()? {
        let family = backend.family();
        let believed = program(&mut backend, &deep(family), &Rendered::default())
            .map_err(|error| anyhow::anyhow!("{}", shortened(&error)))?;
        ensure!(
            backend.observe()? == believed.rules,
            "something else is held"
        );
    }
    Ok(())
}

/// An error without the rules it is about: there are thousands.
fn shortened(error: &anyhow::Error) -> String {
    let causes: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
    causes.join(": ")
}
