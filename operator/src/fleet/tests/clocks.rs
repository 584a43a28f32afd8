//! API servers whose clock is wrong, for operators that start: since when nodes have had their
//! configuration, they know from the API server. And clocks that are corrected while an operator runs.

use jiff::SignedDuration;
use serde_json::json;

use super::{ClockOffset, Cluster, iptables};

/// How many seconds the clock of an API server is ahead.
const AHEAD: [i64; 3] = [-7200, 0, 7200];

impl Cluster {
    /// Like [`Self::with_nodes`] with an API server whose clock is so many seconds ahead.
    fn with_clock_and_nodes(ahead: i64, count: usize) -> Self {
        let mut cluster = Self::new();
        cluster.api_server_ahead = SignedDuration::from_secs(ahead);
        cluster.restart_operator();
        for number in 1..=count {
            cluster.add_node(&format!("n{number}"), json!({}));
        }
        cluster.put_profile("default", json!({}));
        cluster.run();
        cluster.forget_writes();
        cluster
    }

    /// An administrator corrects the clock of the API server, and the operator's next renewal shows it.
    fn correct_clock(&mut self) {
        self.api_server_ahead = SignedDuration::ZERO;
        self.fleet.follow_clock(ClockOffset::default());
    }
}

#[test]
fn t339_operators_that_follow_one_another_fail_no_node_early_and_hold_none_for_ever() {
    for ahead in AHEAD {
        let mut cluster = Cluster::with_clock_and_nodes(ahead, 3);
        cluster.mute.insert("n1".into());
        cluster.put_profile("default", iptables(json!({"progressDeadline": "600s"})));
        // It takes longer than the two minutes that each operator gives a node in any case.
        for _ in 0..2 {
            cluster.advance(200);
            cluster.restart_operator();
        }
        cluster.advance(195);
        assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"], "{ahead}");
        let progressing = cluster.condition("default", "Progressing");
        assert_eq!(progressing, "True/RollingOut", "{ahead}");
        cluster.advance(15);
        let progressing = cluster.condition("default", "Progressing");
        assert_eq!(progressing, "False/RolledBack", "{ahead}");
        assert_eq!(cluster.assignments()[0], "n1 default nftables", "{ahead}");
    }
}

#[test]
fn t339_operators_that_follow_one_another_give_a_node_all_of_min_ready_and_no_more() {
    for ahead in AHEAD {
        let mut cluster = Cluster::with_clock_and_nodes(ahead, 3);
        cluster.put_profile("default", iptables(json!({"minReady": "60s"})));
        cluster.advance(10);
        for _ in 0..2 {
            cluster.restart_operator();
            cluster.advance(20);
        }
        assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"], "{ahead}");
        cluster.advance(15);
        assert_eq!(cluster.nodes_with_mode("iptables"), ["n1", "n2"], "{ahead}");
    }
}

#[test]
fn t339_whether_a_change_follows_another_at_once_is_told_by_one_clock() {
    for ahead in AHEAD {
        // The first change breaks the node, and must not excuse the second.
        let mut cluster = Cluster::with_clock_and_nodes(ahead, 1);
        cluster.broken_mode = Some("iptables");
        cluster.put_profile("default", iptables(json!({})));
        cluster.run();
        let next = json!({"mode": "iptables", "syncPeriod": "20s"});
        cluster.put_profile("default", next);
        cluster.advance(121);
        let progressing = cluster.condition("default", "Progressing");
        assert_eq!(progressing, "False/RolledBack", "{ahead}");

        // The node becomes ill an hour after the first change, and before the second.
        let mut cluster = Cluster::with_clock_and_nodes(ahead, 1);
        cluster.put_profile("default", json!({"syncPeriod": "20s"}));
        cluster.advance(3600);
        let ill = json!({"Ready": "False", "Degraded": "True"});
        cluster.say("n1", ill.clone());
        cluster.broken_mode = Some("iptables");
        cluster.put_profile("default", iptables(json!({})));
        cluster.advance(3600);
        assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"], "{ahead}");
        let progressing = cluster.condition("default", "Progressing");
        assert_ne!(progressing, "False/RolledBack", "{ahead}");
    }
}

#[test]
fn t339_a_clock_that_is_corrected_while_the_operator_runs_is_followed() {
    for (ahead, is_corrected_at_first) in AHEAD
        .into_iter()
        .flat_map(|ahead| [(ahead, true), (ahead, false)])
    {
        let with_nodes = || {
            let mut cluster = Cluster::with_clock_and_nodes(ahead, 1);
            if is_corrected_at_first {
                cluster.correct_clock();
            }
            cluster
        };
        let case = format!("{ahead}, {is_corrected_at_first}");

        // The first change breaks the node, and must not excuse the second.
        let mut cluster = with_nodes();
        cluster.broken_mode = Some("iptables");
        cluster.put_profile("default", iptables(json!({})));
        cluster.run();
        cluster.correct_clock();
        // The report brings the time of the change once more.
        cluster.say("n1", json!({"Ready": "False", "Degraded": "True"}));
        let next = json!({"mode": "iptables", "syncPeriod": "20s"});
        cluster.put_profile("default", next);
        cluster.advance(121);
        let progressing = cluster.condition("default", "Progressing");
        assert_eq!(progressing, "False/RolledBack", "{case}");

        // The node becomes ill an hour after the first change, and before the second.
        let mut cluster = with_nodes();
        cluster.put_profile("default", json!({"syncPeriod": "20s"}));
        cluster.run();
        cluster.correct_clock();
        cluster.advance(3600);
        cluster.say("n1", json!({"Ready": "False", "Degraded": "True"}));
        cluster.broken_mode = Some("iptables");
        cluster.put_profile("default", iptables(json!({})));
        cluster.advance(3600);
        assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"], "{case}");
        let progressing = cluster.condition("default", "Progressing");
        assert_ne!(progressing, "False/RolledBack", "{case}");
    }
}
