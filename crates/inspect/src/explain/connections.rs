//! Describes where connections to a frontend go, in sentences without a final full stop. Pure.

use dataplane::{Affinity, Frontend, Target, TrafficPolicy};

/// Describes what happens to connections to `frontend`.
pub(super) fn describe(frontend: &Frontend) -> Vec<String> {
    let mut lines = Vec::new();
    if !frontend.source_ranges.is_empty() {
        let ranges: Vec<String> = frontend
            .source_ranges
            .iter()
            .map(ToString::to_string)
            .collect();
        lines.push(format!(
            "only from {}; other sources are dropped",
            ranges.join(", ")
        ));
    }
    lines.extend(destinations(frontend));
    if let Affinity::ClientIp { timeout } = frontend.affinity {
        let seconds = timeout.as_secs();
        lines.push(format!(
            "a client that comes back within {seconds} s returns to its endpoint"
        ));
    }
    lines
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
