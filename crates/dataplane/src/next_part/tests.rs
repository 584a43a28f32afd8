//! What is looked at to choose a part.

use std::net::IpAddr;
use std::sync::Arc;

use super::service_changes::ServiceChanges;
use super::{Ends, PartContents, PartSize, Settled, divide};
use crate::{
    Affinity, Dataplane, Family, Frontend, FrontendKey, FrontendKind, Port, Precedence, Protocol,
    Scheduler, ServiceKey, ServicePortName, ServiceRules, Target, TrafficPolicy,
};

/// The rules of a Service with `ports` ports of one endpoint at each of its addresses, all of this kind.
fn rules(name: &str, kind: FrontendKind, addresses: &[IpAddr], ports: u16) -> Arc<ServiceRules> {
    let service = ServiceKey::new("shop", name);
    let port = |number: u16| Port::new(number).expect("a port");
    let target = Target {
        address: IpAddr::from([10, 0, 2, 1]),
        port: port(8080),
    };
    let frontend = Arc::new(Frontend {
        service_port: ServicePortName {
            service: service.clone(),
            port: "".into(),
            protocol: Protocol::Tcp,
        },
        kind,
        policy: TrafficPolicy::Cluster,
        cluster: [target].into(),
        local: Arc::default(),
        serving: [target].into(),
        has_endpoints: true,
        affinity: Affinity::None,
        scheduler: Scheduler::Random,
        source_ranges: Arc::default(),
        precedence: Precedence::Ordinary,
    });
    let frontends = addresses.iter().flat_map(|address| {
        (1..=ports).map(|number| FrontendKey::Address {
            address: *address,
            protocol: Protocol::Tcp,
            port: port(number),
        })
    });
    Arc::new(ServiceRules {
        service,
        frontends: frontends.map(|key| (key, Arc::clone(&frontend))).collect(),
        cluster_ips: match kind {
            FrontendKind::ClusterIp => addresses.to_vec(),
            _ => Vec::new(),
        },
        hairpins: Vec::new(),
        health_check: None,
        rejections: Vec::new(),
    })
}

fn listed<'a>(
    programmed: &'a Dataplane,
    desired: &'a Dataplane,
    size: PartSize,
) -> Option<ServiceChanges<'a>> {
    let ends = Ends {
        family: Family::Ipv4,
        programmed,
        desired,
        granularity: size.granularity(),
    };
    ServiceChanges::next(&ends, size)
}

/// Failure story T461: a tenant adds a million frontends, and each part of that looked at all that was left.
#[test]
fn t461_a_part_lists_what_fits_and_no_other_services() {
    let programmed = Dataplane::default();
    let mut desired = Dataplane::default();
    for number in 0..1_000_u16 {
        let [high, low] = number.to_be_bytes();
        let address = IpAddr::from([10, 96, high, low]);
        let name = format!("web-{number:04}");
        desired.set(rules(&name, FrontendKind::ClusterIp, &[address], 3));
    }
    let mut changes = listed(&programmed, &desired, PartSize::new(60)).expect("6,000 do not fit");
    // A frontend and its endpoint count as two: ten Services fit, and the next one is listed.
    assert_eq!(changes.next.len(), 11);
    assert!(changes.has_unlisted);
    let mut divided = divide(changes.next, PartSize::new(60), PartContents::Small);
    changes.disputed.list(&mut divided, &Settled::default());
    assert_eq!([divided.chosen.len(), divided.later.len()], [30, 3]);
}

/// What another Service has at an address of the part is listed, whenever its own turn comes.
#[test]
fn t461_what_others_have_at_the_addresses_of_a_part_is_listed() {
    let at = |number: u8| IpAddr::from([198, 51, 100, number]);
    let mut programmed = Dataplane::default();
    let addresses: Vec<IpAddr> = (0..50).map(at).collect();
    programmed.set(rules("large", FrontendKind::ExternalIp, &addresses, 7));
    let mut desired = programmed.clone();
    desired.set(rules("a", FrontendKind::LoadBalancerIp, &[at(7)], 1));
    for number in 0..100 {
        let address = IpAddr::from([10, 96, 0, number]);
        desired.set(rules(
            &format!("b-{number}"),
            FrontendKind::ClusterIp,
            &[address],
            1,
        ));
    }
    desired.remove(&ServiceKey::new("shop", "large"));
    let size = PartSize::new(20);
    let mut changes = listed(&programmed, &desired, size).expect("350 do not fit");
    let mut divided = divide(changes.next, size, PartContents::Large);
    assert_eq!([divided.chosen.len(), divided.later.len()], [10, 1]);
    changes.disputed.list(&mut divided, &Settled::default());
    assert_eq!(
        [divided.chosen.len(), divided.later.len()],
        [10, 1 + 6],
        "the other ports at the address"
    );
}

/// Services that share external IPs decide nothing about each other.
#[test]
fn t461_services_that_share_external_ips_are_not_listed_for_each_other() {
    let at = |number: u8| IpAddr::from([198, 51, 100, number]);
    let addresses: Vec<IpAddr> = (0..20).map(at).collect();
    let programmed = Dataplane::default();
    let mut desired = Dataplane::default();
    for number in 0..100_u16 {
        let name = format!("web-{number:02}");
        let mut rules = ServiceRules::clone(&rules(&name, FrontendKind::ExternalIp, &addresses, 1));
        for (key, _) in &mut rules.frontends {
            if let FrontendKey::Address { port, .. } = key {
                *port = Port::new(number + 1).expect("a port");
            }
        }
        desired.set(Arc::new(rules));
    }
    let size = PartSize::new(100);
    let mut changes = listed(&programmed, &desired, size).expect("4,000 do not fit");
    let mut divided = divide(changes.next, size, PartContents::Large);
    changes.disputed.list(&mut divided, &Settled::default());
    // Two Services fit, and the next one is listed.
    assert_eq!([divided.chosen.len(), divided.later.len()], [40, 20]);
}
