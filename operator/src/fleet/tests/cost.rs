//! What a plan of a large fleet costs. Measured on request, because the figures depend on the
//! machine and on optimization ([0066](../../../../docs/decisions/0066-a-plan-of-all-nodes.md)).

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::Cluster;

const PLANS: u32 = 50;

/// The processor time of this thread, which other programs on the machine do not lengthen.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.try_into().expect("it is not negative")
}

/// Returns the processor time of a plan after the report of one node.
fn plan_after_a_report(cluster: &mut Cluster) -> Duration {
    let mut took = Duration::ZERO;
    for number in 0..PLANS {
        let node = format!("n{}", 1 + number % 2);
        cluster.say_because(&node, &format!("Reason{number}"), json!({"Ready": "True"}));
        assert!(cluster.fleet.has_changes());
        let start = processor_time();
        let plan = cluster.fleet.plan(cluster.now, cluster.instant());
        took += processor_time() - start;
        drop(plan);
    }
    took / PLANS
}

#[test]
#[ignore = "prints how long plans take; run with --ignored --nocapture"]
fn plans_of_a_large_fleet() {
    for nodes in [1000, 5000] {
        let mut cluster = Cluster::with_nodes(nodes);
        let settled = plan_after_a_report(&mut cluster);
        cluster.mute = cluster.nodes.keys().cloned().collect();
        let rollout = json!({"maxUnavailable": "10%", "canary": 0, "waves": [100]});
        cluster.put_profile("default", json!({"mode": "iptables", "rollout": rollout}));
        cluster.run();
        let rolling = plan_after_a_report(&mut cluster);
        println!("{nodes} nodes: settled {settled:?}, in a rollout {rolling:?}");
    }
}
