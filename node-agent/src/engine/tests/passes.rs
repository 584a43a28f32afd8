//! Changes that are more than one pass has time for.

use std::cell::Cell;

use super::*;

/// The number of a tenant's Services, each of which is large.
const LARGE: usize = 20;
const PORTS: u16 = 30;

impl Story {
    /// A Service of a tenant with 100 endpoints at each of its ports, of which the first is not
    /// ready with `flipped`.
    fn large(&mut self, number: usize, flipped: bool) {
        let name = format!("large-{number}");
        let address = format!("10.97.0.{number}");
        let port = |n: u16| json!({"name": format!("p{n}"), "port": 1000 + n});
        self.deliver(Event::Apply(decode::<object::Service>(json!({
            "metadata": {"namespace": "load", "name": name},
            "spec": {
                "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
                "ports": (0..PORTS).map(port).collect::<Vec<_>>(),
            },
        }))));
        let endpoint = |n: usize| {
            let ready = n > 0 || !flipped;
            json!({
                "addresses": [format!("10.1.{number}.{n}")],
                "conditions": {"ready": ready, "serving": ready},
            })
        };
        self.deliver(Event::Apply(decode::<object::EndpointSlice>(json!({
            "metadata": {
                "namespace": "load", "name": format!("{name}-x"),
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4",
            "ports": (0..PORTS).map(port).collect::<Vec<_>>(),
            "endpoints": (0..100).map(endpoint).collect::<Vec<_>>(),
        }))));
    }

    /// One pass, in which each Service takes 10 ms.
    fn pass(&mut self) -> Option<Desired> {
        self.pass_of(Duration::from_millis(10))
    }

    /// One pass, in which each Service that is compiled or evicted takes this long.
    fn pass_of(&mut self, each: Duration) -> Option<Desired> {
        let now = Cell::new(self.now);
        let clock = || {
            let time = now.get();
            now.set(time + each);
            time
        };
        let desired = self.engine.compile(clock);
        self.now = now.get();
        desired
    }
}

/// A cart of the shop beside many Services of a tenant, all of them compiled.
fn beside_large_ones() -> Story {
    let mut story = Story::by_defaults();
    story.service("cart", "10.96.0.10");
    story.endpoint("cart", "10.0.1.5");
    for number in 0..LARGE {
        story.large(number, false);
    }
    let first = story.pass().expect("all is new").dataplane;
    assert_eq!(first.services().len(), LARGE + 1, "a start is one pass");
    assert_eq!(flipped(&first), 0);
    story
}

/// The number of large Services that no longer have their first endpoint.
fn flipped(dataplane: &Dataplane) -> usize {
    let is_flipped = |number: &usize| {
        let key = ServiceKey::new("load", format!("large-{number}").as_str());
        let rules = dataplane.services().get(&key).expect("it is served");
        rules.frontends[0].1.cluster.len() == 99
    };
    (0..LARGE).filter(is_flipped).count()
}

/// Failure story T371.
#[test]
fn t371_a_small_service_does_not_wait_for_the_large_ones_that_change_with_it() {
    let mut story = beside_large_ones();
    for number in 0..LARGE {
        story.large(number, true);
    }
    story.endpoint("cart", "10.0.1.6");
    let first = story.pass().expect("the cart has another endpoint");
    assert_eq!(targets(&first.dataplane, "cart"), ["10.0.1.6:8080"]);
    assert_eq!(
        flipped(&first.dataplane),
        0,
        "handed over before the large ones"
    );
    assert_eq!(story.engine.left(), LARGE);
    // A change that comes while the large ones are compiled waits for one pass.
    let second = story.pass().expect("large ones").dataplane;
    assert_eq!(flipped(&second), 3, "what 30 ms have room for");
    story.endpoint("cart", "10.0.1.7");
    let third = story.pass().expect("the cart has another endpoint");
    assert_eq!(targets(&third.dataplane, "cart"), ["10.0.1.7:8080"]);
    // Its latency is its own.
    assert!(third.stamps.received_at > first.stamps.received_at);
}

/// Failure story T371.
#[test]
fn t371_large_services_are_compiled_however_many_small_changes_come() {
    let mut story = beside_large_ones();
    for number in 0..LARGE {
        story.large(number, true);
    }
    let mut last = None;
    for pass in 0..2 * LARGE.div_ceil(3) {
        story.endpoint("cart", &format!("10.0.2.{pass}"));
        last = story.pass().map(|desired| desired.dataplane).or(last);
    }
    assert_eq!(flipped(&last.expect("changes")), LARGE);
    assert_eq!(story.engine.left(), 1, "the last change of the cart");
}

/// Failure story T371. A state in which half of the Services follow another configuration is not
/// handed over.
#[test]
fn t371_another_configuration_compiles_what_waits_and_all_others_at_once() {
    let mut story = beside_large_ones();
    for number in 0..LARGE {
        story.large(number, true);
    }
    story.pass();
    story.apply(Delivery::Configuration(Some(assignment(
        "loadBalancer: {scheduler: maglev}",
    ))));
    let next = story.pass().expect("another configuration").dataplane;
    assert_eq!(story.engine.left(), 0);
    assert_eq!(flipped(&next), LARGE);
    let mut frontends = next.frontends().iter();
    assert!(frontends.all(|(_, claims)| claims.winner().1.scheduler == Scheduler::Maglev));
}

/// Failure story T371. The messages about a million disputed claims take longer than many passes.
#[test]
fn t371_no_change_waits_for_the_messages_about_disputed_addresses() {
    let mut story = Story::by_defaults();
    story.service("till", "10.96.0.11");
    story.service("cart", "10.96.0.10");
    assert!(story.pass().is_some());
    let rejections = story.engine.view().rejections;
    assert!(!rejections.is_listed());
    assert_eq!(rejections.len(), 2, "for who reads them");
    assert!(rejections.is_listed());
}

/// The number of a tenant's small Services, each of which takes one element, and all that it may take.
const SMALL: usize = 5_000;
/// How many of them the place of a large one is.
const EVICTED: usize = PORTS as usize * 101;

/// Small Services of a tenant, behind its large ones by name, and the cart of the shop.
fn beside_small_ones() -> Story {
    let mut story = Story::by_defaults();
    story.engine.namespace_limit = NamespaceLimit::new(SMALL);
    story.service("cart", "10.96.0.10");
    story.endpoint("cart", "10.0.1.5");
    for number in 0..SMALL {
        let address = format!("10.98.{}.{}", number / 256, number % 256);
        story.deliver(Event::Apply(decode::<object::Service>(json!({
            "metadata": {"namespace": "load", "name": format!("small-{number:04}")},
            "spec": {
                "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
                "ports": [{"name": "http", "port": 80}],
            },
        }))));
    }
    assert_eq!(served(&story.pass().expect("all is new").dataplane), SMALL);
    story
}

/// The number of the tenant's Services that are served.
fn served(dataplane: &Dataplane) -> usize {
    let services = dataplane.services().sorted().into_iter();
    let of_tenant = services.filter(|(key, _)| &*key.namespace == "load");
    let served = of_tenant.filter(|(_, rules)| !rules.frontends.is_empty());
    served.count()
}

fn serves_large(dataplane: &Dataplane) -> bool {
    let key = ServiceKey::new("load", "large-0");
    let rules = dataplane.services().get(&key);
    rules.is_some_and(|rules| !rules.frontends.is_empty())
}

/// Failure story T453: all that it evicted was removed in the pass of the large one.
#[test]
fn t453_no_change_waits_for_thousands_of_services_that_one_evicts() {
    let mut story = beside_small_ones();
    let each = Duration::from_millis(1);
    story.large(0, false);
    let received_at = story.now;
    let first = story.pass_of(each).expect("some are evicted").dataplane;
    assert_eq!(served(&first), SMALL - 30, "what 30 ms have room for");

    story.endpoint("cart", "10.0.1.6");
    let second = story.pass_of(each).expect("the cart has another endpoint");
    assert_eq!(targets(&second.dataplane, "cart"), ["10.0.1.6:8080"]);
    assert!(second.stamps.received_at > received_at, "its own");

    let mut passes = 2;
    while story.engine.left() > 0 {
        story.pass_of(each);
        let dataplane = &story.engine.dataplane;
        let has_room = served(dataplane) <= SMALL - EVICTED + 1;
        assert!(has_room || !serves_large(dataplane), "all at once");
        passes += 1;
    }
    assert!(serves_large(&story.engine.dataplane));
    assert_eq!(served(&story.engine.dataplane), SMALL - EVICTED + 1);
    assert!(passes > EVICTED / 30, "{passes}");
}

/// Failure story T453. What changes meanwhile is served as if all had been evicted at once.
#[test]
fn t453_whatever_happens_while_services_are_evicted_the_end_is_the_same() {
    let each = Duration::from_millis(1);
    let gone = |story: &mut Story, name: &str| {
        let key = ObjectKey::namespaced("load", name);
        story.deliver(Event::<object::Service>::Delete(key));
    };
    let mut story = beside_small_ones();
    story.large(0, false);
    story.pass_of(each);
    // Another one that is evicted goes, and the large one changes.
    gone(&mut story, "small-4000");
    story.large(0, true);
    story.pass_of(each);
    assert!(!serves_large(&story.engine.dataplane));
    // The large one goes, and all others are served again. Those that still were are so throughout.
    gone(&mut story, "large-0");
    let still = served(&story.engine.dataplane);
    assert!(still > SMALL - EVICTED + 1);
    while story.engine.waiting.is_some() || story.engine.left() > 0 {
        story.pass_of(each);
        assert!(served(&story.engine.dataplane) >= still);
    }
    assert_eq!(served(&story.engine.dataplane), SMALL - 1);

    // Another configuration compiles all at once.
    story.large(0, false);
    story.pass_of(each);
    assert!(!serves_large(&story.engine.dataplane));
    story.apply(Delivery::Configuration(Some(assignment(
        "loadBalancer: {scheduler: maglev}",
    ))));
    story.pass_of(each);
    assert_eq!(story.engine.left(), 0);
    assert!(serves_large(&story.engine.dataplane));
    assert_eq!(served(&story.engine.dataplane), SMALL - EVICTED + 1);
    assert!(story.engine.evicted.is_empty());
}
