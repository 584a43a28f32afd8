//! Describes where connections to a frontend go, in sentences without a final full stop. Pure.

use catalog::is_no_source;
use dataplane::{Affinity, Frontend, Target, TrafficPolicy};

/// Describes what happens to connections to `frontend`.
pub(super) fn describe(frontend: &Frontend) -> Vec<String> {
    let mut lines = Vec::new();
    if !frontend.source_ranges.is_empty() {
        let ranges = frontend.source_ranges.iter();
        let ranges = ranges.filter(|range| !is_no_source(range));
        let ranges: Vec<String> = ranges.map(ToString::to_string).collect();
        lines.push(match ranges.as_slice() {
            [] => "no client may connect: every source is dropped".to_owned(),
            ranges => format!("only from {}; other sources are dropped", ranges.join(", ")),
        });
    }
    lines.extend(destinations(frontend));
    if let Affinity::ClientIp { timeout } = frontend.affinity
        && leads_somewhere(frontend)
    {
        let seconds = timeout.as_secs();
        lines.push(format!(
            "a client that comes back within {seconds} s returns to its endpoint"
        ));
    }
    lines
}

/// Whether connections from anywhere have an endpoint.
fn leads_somewhere(frontend: &Frontend) -> bool {
    let (cluster, local) = (!frontend.cluster.is_empty(), !frontend.local.is_empty());
    match (frontend.is_external(), frontend.policy) {
        (_, TrafficPolicy::Cluster) => cluster,
        (false, TrafficPolicy::Local) => local,
        (true, TrafficPolicy::Local) => cluster || local,
    }
}

fn destinations(frontend: &Frontend) -> Vec<String> {
    let refused = if frontend.has_endpoints {
        "dropped: policy Local, and this node has no usable endpoint"
    } else {
        "refused: the Service has no endpoint"
    };
    let (cluster, local) = (&*frontend.cluster, &*frontend.local);
    match (frontend.is_external(), frontend.policy) {
        (false, TrafficPolicy::Cluster) | (true, TrafficPolicy::Cluster) if cluster.is_empty() => {
            vec![format!("connections are {refused}")]
        }
        (false, TrafficPolicy::Local) if local.is_empty() => {
            vec![format!("connections are {refused}")]
        }
        (false, TrafficPolicy::Cluster) => vec![format!("connections go {}", list(cluster))],
        (false, TrafficPolicy::Local) => {
            vec![format!(
                "connections stay on this node and go {}",
                list(local)
            )]
        }
        (true, TrafficPolicy::Cluster) => vec![format!(
            "connections go {}, with this node's address as source",
            list(cluster)
        )],
        (true, TrafficPolicy::Local) => vec![
            match cluster {
                [] => format!("from this node and its pods: {refused}"),
                cluster => format!("from this node and its pods: {}", list(cluster)),
            },
            match local {
                [] => format!("from elsewhere: {refused}"),
                local => format!("from elsewhere: {}, with the client's address", list(local)),
            },
        ],
    }
}

fn list(targets: &[Target]) -> String {
    let all: Vec<String> = targets.iter().map(ToString::to_string).collect();
    match all.as_slice() {
        [one] => format!("to {one}"),
        all => format!("to one of {}: {}", all.len(), all.join(", ")),
    }
}
