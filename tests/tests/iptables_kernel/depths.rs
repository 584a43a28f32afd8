//! The worst case of addresses and ports for the depth of the address tree.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Result, ensure};
use backend::{Backend, Rendered};
use dataplane::{Dataplane, Family};
use tests::programmed::program;

use crate::ground::Ground;

/// Returns a service address, and for each of its digits another one that first differs there.
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
            // Addresses with another first digit are not valid.
            let others = (0..28).map(|digit| first ^ 4 << (4 * digit));
            let all = [first].into_iter().chain(others);
            all.map(|bits| Ipv6Addr::from(bits).into()).collect()
        }
    }
}

/// Returns one Service at all of these addresses, with equally unfavourable ports and with source
/// ranges, so that the maximum number of chains follows the tree.
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

/// nf_tables allows a depth of at most sixteen jumps (`NFT_JUMP_STACK_SIZE`), and rejects every
/// change to a deeper table.
pub(crate) fn however_addresses_lie(ground: &Ground) -> Result<()> {
    for mut backend in ground.open()? {
        let family = backend.family();
        let observed = program(&mut backend, &deep(family), &Rendered::default())
            .map_err(|error| anyhow::anyhow!("{}", shortened(&error)))?;
        ensure!(
            backend.observe()? == observed.rules,
            "something else is held"
        );
    }
    Ok(())
}

/// Returns an error without its rules, of which there are thousands.
fn shortened(error: &anyhow::Error) -> String {
    let causes: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
    causes.join(": ")
}
