use std::mem::size_of_val;

use dataplane::Protocol;

use super::*;
use crate::object_store::ObjectStore;

const READY: Readiness = Readiness::READY;
const NOT_READY: Readiness = Readiness {
    ready: false,
    serving: false,
    terminating: false,
};
const DRAINING: Readiness = Readiness {
    ready: false,
    serving: true,
    terminating: true,
};
/// A terminating pod of a Service with publishNotReadyAddresses.
const READY_AND_TERMINATING: Readiness = Readiness {
    ready: true,
    serving: true,
    terminating: true,
};
const GONE: Readiness = Readiness {
    ready: false,
    serving: false,
    terminating: true,
};

fn endpoint(host: u8, readiness: Readiness, node: &str) -> SliceEndpoint {
    SliceEndpoint {
        address: IpAddr::from([10, 0, 1, host]),
        readiness,
        placement: Some(placed(node, Hints::default())),
    }
}

fn placed(node: &str, hints: Hints) -> Arc<Placement> {
    Arc::new(Placement {
        node: Some(node.into()),
        hints,
    })
}

fn slice(port: u16, endpoints: Vec<SliceEndpoint>) -> Slice {
    let mut endpoints = endpoints;
    endpoints.sort();
    Slice {
        service: ServiceKey::new("shop", "cart"),
        trigger: None,
        ports: Arc::new([SlicePort {
            name: http(),
            port: Port::new(port).expect("not 0"),
        }]),
        endpoints: endpoints.into(),
    }
}

fn http() -> EndpointPort {
    EndpointPort {
        name: "http".into(),
        protocol: Protocol::Tcp,
    }
}

fn merged(slices: &[&Slice]) -> Vec<(String, Readiness, String)> {
    let endpoints = merge(slices.iter().copied(), Extent::Everything, &[]);
    endpoints
        .by_port
        .get(&http())
        .into_iter()
        .flatten()
        .map(|endpoint| {
            let place = format!("{}:{}", endpoint.address, endpoint.port);
            let node = endpoint.node.as_deref().unwrap_or("nowhere");
            (place, endpoint.readiness, node.to_owned())
        })
        .collect()
}

#[test]
fn of_two_versions_of_an_endpoint_the_better_one_counts_in_either_order() {
    let best_first = [READY, NOT_READY, READY_AND_TERMINATING, DRAINING, GONE];
    for (i, better) in best_first.iter().enumerate() {
        for worse in &best_first[i + 1..] {
            let one = slice(8080, vec![endpoint(5, *better, "better")]);
            let other = slice(8080, vec![endpoint(5, *worse, "worse")]);
            let expected = [("10.0.1.5:8080".to_owned(), *better, "better".to_owned())];
            assert_eq!(merged(&[&one, &other]), expected);
            assert_eq!(merged(&[&other, &one]), expected);
        }
    }
}

#[test]
fn equally_good_versions_are_reported_apart_by_content_and_not_by_order() {
    let one = slice(8080, vec![endpoint(5, READY, "node-1")]);
    let other = slice(8080, vec![endpoint(5, READY, "node-2")]);
    assert_eq!(merged(&[&one, &other]), merged(&[&other, &one]));
    assert_eq!(merged(&[&one, &other]).len(), 1);
}

#[test]
fn an_address_with_two_port_numbers_is_two_endpoints_in_order() {
    let one = slice(
        9090,
        vec![endpoint(5, READY, "n"), endpoint(10, READY, "n")],
    );
    let other = slice(8080, vec![endpoint(5, READY, "n")]);
    let places: Vec<String> = merged(&[&one, &other])
        .into_iter()
        .map(|(place, ..)| place)
        .collect();
    assert_eq!(places, ["10.0.1.5:8080", "10.0.1.5:9090", "10.0.1.10:9090"]);
}

#[test]
fn a_slice_without_endpoints_adds_no_port() {
    assert_eq!(
        merge([&slice(80, vec![])], Extent::Everything, &[]),
        Endpoints::default()
    );
}

#[test]
fn a_part_of_the_merge_is_that_part_of_the_whole() {
    let one = slice(
        80,
        vec![
            endpoint(5, READY, "n"),
            endpoint(6, READY, "n"),
            endpoint(6, GONE, "m"),
        ],
    );
    let other = slice(
        80,
        vec![endpoint(4, READY, "n"), endpoint(6, DRAINING, "n")],
    );
    let address = IpAddr::from([10, 0, 1, 6]);
    let whole = merge([&one, &other], Extent::Everything, &[]);
    let expected: Vec<&Endpoint> = whole
        .by_port
        .values()
        .flatten()
        .filter(|e| e.address == address)
        .collect();
    let part = merge(
        [&one, &other],
        Extent::Addresses(&BTreeSet::from([address])),
        &[],
    );
    assert_eq!(
        part.by_port.values().flatten().collect::<Vec<_>>(),
        expected
    );
    assert_eq!(expected.len(), 1);
}

/// The bytes kept for a slice of five endpoints, excluding the names, placements and ports that
/// slices share. Ten thousand such slices must stay below 4 MB.
#[test]
fn a_slice_of_five_endpoints_takes_less_than_400_bytes() {
    let hints = Hints {
        zones: ["zone-a".into()].into(),
        ..Hints::default()
    };
    let placement = placed("node-1", hints);
    let zoned = |host| SliceEndpoint {
        placement: Some(Arc::clone(&placement)),
        ..endpoint(host, READY, "node-1")
    };
    let slice = slice(8080, (1..=5).map(zoned).collect());
    let key = crate::ObjectKey::namespaced("shop", "checkout-frontend-x7k2p");
    let name_on_heap = key.name.len() + 2 * size_of::<usize>();
    let kept = size_of_val(&key)
        + name_on_heap
        + ObjectStore::<Box<Slice>>::ENTRY
        + size_of_val(&slice)
        + size_of_val(&*slice.endpoints);
    // In the index: the key of the Service, its list, and the slice's name in it.
    let index = size_of::<ServiceKey>() + size_of::<SliceNames>();
    println!("kept per slice: {kept} bytes, and {index} in the index");
    assert!(kept + index < 400, "{kept} bytes, and {index} in the index");
}
