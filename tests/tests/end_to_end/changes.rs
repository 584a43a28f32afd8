//! Endpoints change while connections are made.

use std::time::Duration;

use anyhow::Result;
use dataplane::Protocol;
use tests::cluster::shop::{Readiness, SPARE, WEB, by_hand_address};
use tests::cluster::{Cluster, DEADLINE};

/// The number of repetitions.
const ROUNDS: u32 = 3;

/// Servers keep answering independently of their Pods' state, like servers that drain: a connection
/// fails only if it is forwarded nowhere.
pub(crate) fn endpoints_come_and_go(cluster: &mut Cluster) -> Result<()> {
    let [_, unready, deleted, _] = WEB;
    let served_by = |names: &[&str]| cluster.wait_until_served_by(names, DEADLINE);
    let clients = cluster.start_clients(Duration::from_millis(5))?;
    for _ in 0..ROUNDS {
        cluster.set_readiness(unready, Readiness::NotReady)?;
        served_by(&["web-1", "web-3", "web-4"])?;
        cluster.create_pod(SPARE)?;
        served_by(&["web-1", "web-3", "web-4", "web-5"])?;
        cluster.begin_to_delete_pod(deleted)?;
        served_by(&["web-1", "web-4", "web-5"])?;
        cluster.delete_pod(deleted)?;
        cluster.set_readiness(unready, Readiness::Ready)?;
        served_by(&["web-1", "web-2", "web-4", "web-5"])?;
        cluster.delete_pod(SPARE)?;
        cluster.create_pod(deleted)?;
        served_by(&["web-1", "web-2", "web-3", "web-4"])?;
    }
    clients.finish_unharmed()
}

pub(crate) fn slices(cluster: &mut Cluster) -> Result<()> {
    let outcome = move_between_slices(cluster);
    let gone = cluster.delete_slices(&["a", "b"]);
    outcome?;
    gone
}

fn move_between_slices(cluster: &Cluster) -> Result<()> {
    let [one, two, three, _] = WEB;
    let apply = |name, pods: &[_]| cluster.apply_slice(name, pods);
    let served_by = |names: &[&str]| {
        let way = (Protocol::Tcp, by_hand_address());
        let nodes = cluster.nodes();
        nodes.into_iter().try_for_each(|node| {
            cluster.wait_for_servers(cluster.client_pod(node)?, way, names, DEADLINE)
        })
    };
    apply("a", &[one, two])?;
    apply("b", &[two, three])?;
    served_by(&["web-1", "web-2", "web-3"])?;
    // Move an endpoint from the first slice to the second, which is written before or after it in
    // turn.
    apply("a", &[two])?;
    apply("b", &[one, two, three])?;
    served_by(&["web-1", "web-2", "web-3"])?;
    apply("a", &[one, two])?;
    apply("b", &[three])?;
    served_by(&["web-1", "web-2", "web-3"])?;
    // Removed from one of two slices that have it, the endpoint stays; removed from both, it is
    // gone.
    apply("b", &[two])?;
    served_by(&["web-1", "web-2"])?;
    apply("a", &[one])?;
    served_by(&["web-1", "web-2"])?;
    apply("b", &[three])?;
    served_by(&["web-1", "web-3"])
}
