use std::convert::Infallible;
use std::sync::Arc;

use backend::{Change as _, Rendered};
use dataplane::{Family, compile};
use netlink::ipvs::VirtualServerFlags;
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use super::*;
use crate::diff::diff;
use crate::render::render;
use crate::rules::Rules;

/// A kernel in memory that refuses some schedulers, and an agent's knowledge of it.
struct Node {
    lacks: BTreeSet<&'static str>,
    /// How often it was asked for a scheduler.
    asked: usize,
    schedulers: Schedulers,
    held: Rendered<Rules>,
    began: Instant,
}

impl Node {
    fn lacking<const N: usize>(lacks: [&'static str; N]) -> Node {
        Node {
            lacks: lacks.into(),
            asked: 0,
            schedulers: Schedulers::default(),
            held: Rendered::default(),
            began: Instant::now(),
        }
    }

    /// Programs `desired` as a sync does, and returns how many pieces that wrote.
    fn sync(&mut self, desired: &Dataplane) -> usize {
        let mut from = self.held.clone();
        for _attempt in 0..2 {
            let missing = self.schedulers.missing();
            let rules = render(Family::Ipv4, desired, &from, &missing);
            let change = diff(Family::Ipv4, &from.rules, &rules);
            let needed = change.schedulers().into_iter().cloned().collect();
            let ask = ask(&self.lacks, &mut self.asked);
            let lacking = self.schedulers.check(needed, self.began, ask);
            let Ok(lacking) = lacking;
            if lacking.is_empty() {
                let mut kernel = from.rules;
                for step in &change.steps {
                    kernel.replay(step).expect("the kernel accepts it");
                }
                assert_eq!(kernel, rules);
                self.held = Rendered {
                    dataplane: desired.clone(),
                    rules,
                };
                return change.size().elements;
            }
            // The rules are read again.
            from.dataplane = Dataplane::default();
        }
        panic!("one more reading is all that a sync does");
    }

    /// Searches for missing schedulers so many seconds after the start.
    fn search(&mut self, seconds: u64) -> bool {
        let now = self.began + Duration::from_secs(seconds);
        let ask = ask(&self.lacks, &mut self.asked);
        self.schedulers.search(now, ask)
    }

    /// The virtual servers, as `ipvsadm` prints them, without their marks.
    fn servers(&self) -> Vec<String> {
        let servers = self.held.rules.servers.sorted().into_iter();
        servers
            .map(|(_, server)| server.server.to_string())
            .collect()
    }
}

fn ask<'a>(
    lacks: &'a BTreeSet<&'static str>,
    asked: &'a mut usize,
) -> impl FnMut(&SchedulerName) -> Result<SchedulerSupport, Infallible> + 'a {
    |name| {
        *asked += 1;
        Ok(match lacks.contains(name.as_str()) {
            true => SchedulerSupport::Missing,
            false => SchedulerSupport::Present,
        })
    }
}

/// A node in mode ipvs with one Service for each of these schedulers: `shop/s0`, `shop/s1` and so on.
fn services(schedulers: &[Scheduler]) -> Dataplane {
    let config = mk_config().mode(Mode::Ipvs).build();
    let node = mk_node(1).build();
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for (number, scheduler) in schedulers.iter().enumerate() {
        let service = mk_service(&format!("shop/s{number}"));
        let service = service.cluster_ip(&format!("10.96.0.{number}"));
        let service = service.scheduler(*scheduler).port("", 80).build();
        let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:80", "node-1");
        dataplane.set(compile(&service, &endpoints.build(), &node, &config).into());
    }
    dataplane
}

/// Failure story T165.
#[test]
fn t165_the_nearest_scheduler_serves_until_the_module_is_loaded() {
    let mut node = Node::lacking(["twos", "mh", "lc"]);
    let asked = [
        Scheduler::PowerOfTwo,
        Scheduler::Maglev,
        Scheduler::NeverQueue,
        Scheduler::WeightedLeastConnection,
    ];
    let desired = services(&asked);
    node.sync(&desired);
    let hash = VirtualServerFlags::FALLBACK;
    let printed = |name: &str, flags| {
        let scheduler = SchedulerName::new(name).expect("it is a name");
        netlink::ipvs::VirtualServer { scheduler, flags }.to_string()
    };
    let plain = VirtualServerFlags::default();
    let nearest = [("wlc", plain), ("sh", hash), ("nq", plain), ("wlc", plain)];
    assert_eq!(
        node.servers(),
        nearest.map(|(name, flags)| printed(name, flags))
    );
    assert_eq!(node.sync(&desired), 0, "nothing is left to write");

    let asked_at_first = node.asked;
    assert!(!node.search(59));
    assert!(!node.search(60), "the kernel still has none of them");
    assert!(!node.search(119));
    assert_eq!(node.asked, asked_at_first + 3, "each once a minute");
    node.lacks.clear();
    assert!(!node.search(119));
    assert!(node.search(120));
    assert!(!node.search(180));
    node.sync(&desired);
    let mut servers = node.servers();
    servers.sort();
    let own = [("mh", hash), ("nq", plain), ("twos", plain), ("wlc", plain)];
    assert_eq!(servers, own.map(|(name, flags)| printed(name, flags)));
    assert_eq!(node.sync(&desired), 0);
}

#[test]
fn what_the_kernel_lacks_is_named_with_its_module_and_the_services_that_ask_for_it() {
    let mut node = Node::lacking(["twos", "dh", "lblc"]);
    let mut asked = [Scheduler::PowerOfTwo; 11];
    asked[3] = Scheduler::DestinationHash;
    let desired = services(&asked);
    assert_eq!(node.schedulers.replacements(&desired), [""; 0]);
    node.sync(&desired);
    let messages = node.schedulers.replacements(&desired);
    let expected = [
        "Service shop/s3: lblcr in the place of scheduler dh, because the kernel has no module ip_vs_dh: load it, \
         and within about a minute dh is used",
        "Services shop/s0, shop/s1, shop/s10, shop/s2, shop/s4, shop/s5, shop/s6, shop/s7 and 2 more: lc in the \
         place of scheduler twos, because the kernel has no module ip_vs_twos: load it, and within about a minute \
         twos is used",
    ];
    assert_eq!(messages, expected);
    let others = services(&[Scheduler::LeastConnection]);
    let others = node.schedulers.replacements(&others);
    assert_eq!(others, [""; 0], "no Service needs the missing ones");
    node.schedulers.forget();
    assert_eq!(node.schedulers.replacements(&desired), [""; 0]);
}
