//! The API server refuses the statuses of profiles, in which verdicts are.

use serde_json::json;

use super::{Cluster, iptables};
use crate::fleet::Action;

/// Writes what the operator plans, except for statuses of profiles, which the API server refuses.
fn write_without_reports(cluster: &mut Cluster) {
    for action in cluster.plan().actions {
        if !matches!(action, Action::UpdateStatus { .. }) {
            cluster.write(action);
        }
    }
}

/// Failure story T194. The next operator found the canary as it was before, and no verdict.
#[test]
fn t194_an_operator_that_ends_before_it_has_said_why_changes_no_node_back() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    cluster.now += jiff::SignedDuration::from_secs(121);
    write_without_reports(&mut cluster);
    cluster.restart_operator();
    cluster.advance(600);
    assert_eq!(cluster.assigned, ["n1", "n1"], "there and back");
}

/// Failure story T194.
#[test]
fn t194_nodes_that_failed_do_not_wait_for_a_status_that_cannot_be_written() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    cluster.now += jiff::SignedDuration::from_secs(121);
    write_without_reports(&mut cluster);
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    cluster.now += jiff::SignedDuration::from_secs(10);
    write_without_reports(&mut cluster);
    assert_eq!(cluster.nodes_with_mode("iptables"), [""; 0]);
}

/// Writes what the operator plans in its next attempt to write a status that was refused, except for
/// that.
fn write_again_without_reports(cluster: &mut Cluster) {
    for action in cluster.fleet.plan(cluster.now, cluster.instant()).actions {
        if !matches!(action, Action::UpdateStatus { .. }) {
            cluster.write(action);
        }
    }
}

/// Failure story T220. No verdict could be written either, and the next operator repeated the
/// change.
#[test]
fn t220_a_profile_whose_status_cannot_be_written_changes_no_node() {
    let mut cluster = Cluster::with_nodes(10);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", iptables(json!({})));
    for _ in 0..3 {
        for _ in 0..10 {
            write_again_without_reports(&mut cluster);
            cluster.report();
            cluster.now += jiff::SignedDuration::from_secs(60);
        }
        cluster.restart_operator();
    }
    assert_eq!(cluster.assigned, [""; 0]);
    // A node that is new has no service without it.
    cluster.add_node("n99", json!({}));
    write_again_without_reports(&mut cluster);
    assert_eq!(cluster.assigned, ["n99"]);
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
}

/// Failure story T220. From then on no verdict could be written.
#[test]
fn t220_a_status_that_can_no_longer_be_written_stops_a_rollout_before_its_next_wave() {
    let mut cluster = Cluster::with_nodes(20);
    let rollout = json!({"waves": [25], "maxUnavailable": 20, "minReady": "60s"});
    cluster.put_profile("default", iptables(rollout));
    cluster.advance(61);
    let given = cluster.nodes_with_mode("iptables").len();
    assert_eq!(given, 5, "the second wave");
    for _ in 0..10 {
        cluster.report();
        cluster.now += jiff::SignedDuration::from_secs(60);
        write_again_without_reports(&mut cluster);
    }
    assert_eq!(cluster.nodes_with_mode("iptables").len(), given);
    cluster.advance(120);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 20);
}
