//! What is programmed for a Service, in plain words. Pure.

use std::fmt::Write;
use std::sync::Arc;

use backend::{Backend, Shortcoming};
use backend_nftables::{Nftables, Table};
use dataplane::{
    Dataplane, Family, Frontend, FrontendKey, FrontendKind, ServiceKey, TrafficPolicy,
};
use thiserror::Error;

/// A Service, or one port of it, as people write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) service: ServiceKey,
    pub(crate) port: Option<String>,
}

/// A text that names no Service.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is not namespace/name or namespace/name:port")]
pub(crate) struct ParseQuestionError {
    text: String,
}

impl std::str::FromStr for Question {
    type Err = ParseQuestionError;

    fn from_str(text: &str) -> Result<Question, ParseQuestionError> {
        let failed = || ParseQuestionError {
            text: text.to_owned(),
        };
        let (namespace, rest) = text.split_once('/').ok_or_else(failed)?;
        let (name, port) = match rest.split_once(':') {
            Some((name, port)) => (name, Some(port.to_owned())),
            None => (rest, None),
        };
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err(failed());
        }
        Ok(Question {
            service: ServiceKey::new(namespace, name),
            port,
        })
    }
}

/// The answer, from what is wanted to what `table` holds for each family. `None`: there is no such
/// Service, or it has no such port.
pub(crate) fn explain(
    question: &Question,
    dataplane: &Dataplane,
    table: impl Fn(Family) -> Option<Table>,
) -> Option<String> {
    let rules = dataplane.services().get(&question.service)?;
    let mut text = format!("Service {}\n", rules.service);
    let mut found = question.port.is_none();
    let tables = Family::ALL.map(|family| (family, table(family)));
    for (key, frontend) in &rules.frontends {
        let port = &frontend.service_port.port;
        if question
            .port
            .as_ref()
            .is_some_and(|asked| **asked != **port)
        {
            continue;
        }
        found = true;
        let claims = dataplane.frontends().get(key);
        let winner = claims.map(|claims| claims.winner().0);
        explain_frontend(&mut text, key, frontend);
        for shortcoming in shortcomings(dataplane, key) {
            let _ = writeln!(
                text,
                "    not honoured: {}: {}",
                shortcoming.field, shortcoming.message
            );
        }
        if let Some(other) = winner.filter(|winner| **winner != rules.service) {
            let _ = writeln!(
                text,
                "    not programmed: Service {other} has it too, and comes first"
            );
            continue;
        }
        let table = tables.iter().find(|(family, _)| *family == key.family());
        match table.and_then(|(_, table)| table.as_ref()) {
            None => text.push_str("    in the kernel: not known yet\n"),
            Some(table) => {
                text.push_str("    in the kernel:\n");
                for line in table.elements_of(key) {
                    let _ = writeln!(text, "        {line}");
                }
            }
        }
    }
    for rejection in &rules.rejections {
        let _ = writeln!(
            text,
            "  not honoured: {}: {}",
            rejection.field, rejection.message
        );
    }
    found.then_some(text)
}

/// What of one frontend is not honoured, in the backend's own words.
fn shortcomings(dataplane: &Dataplane, key: &FrontendKey) -> Vec<Shortcoming> {
    let mut alone = Dataplane::new(Arc::clone(dataplane.node()), Arc::clone(dataplane.config()));
    let winner = dataplane
        .frontends()
        .get(key)
        .map(|claims| claims.winner().0);
    if let Some(rules) = winner.and_then(|service| dataplane.services().get(service)) {
        alone.set(Arc::clone(rules));
    }
    let mut shortcomings = Nftables::detached(key.family()).shortcomings(&alone);
    shortcomings.retain(|shortcoming| shortcoming.frontend == *key);
    shortcomings
}

fn explain_frontend(text: &mut String, key: &FrontendKey, frontend: &Frontend) {
    let kind = match frontend.kind {
        FrontendKind::ClusterIp => "cluster IP",
        FrontendKind::ExternalIp => "external IP",
        FrontendKind::LoadBalancerIp => "load-balancer IP",
        FrontendKind::NodePort => "node port",
    };
    let _ = writeln!(
        text,
        "  {key} ({kind}, port {:?})",
        &*frontend.service_port.port
    );
    let list = |targets: &[dataplane::Target]| match targets {
        [] => "nowhere".to_owned(),
        targets => {
            let all: Vec<String> = targets.iter().map(ToString::to_string).collect();
            format!("to one of {}: {}", all.len(), all.join(", "))
        }
    };
    let refused = if frontend.has_endpoints {
        "dropped: no endpoint on this node"
    } else {
        "refused: the Service has no endpoint"
    };
    if !frontend.source_ranges.is_empty() {
        text.push_str("    connections are dropped\n");
        return;
    }
    match (frontend.is_external(), frontend.policy) {
        (false, TrafficPolicy::Cluster) if frontend.cluster.is_empty() => {
            let _ = writeln!(text, "    connections are {refused}");
        }
        (false, TrafficPolicy::Cluster) => {
            let _ = writeln!(text, "    connections go {}", list(&frontend.cluster));
        }
        (false, TrafficPolicy::Local) if frontend.local.is_empty() => {
            let _ = writeln!(text, "    connections are {refused}");
        }
        (false, TrafficPolicy::Local) => {
            let _ = writeln!(
                text,
                "    connections stay on this node: {}",
                list(&frontend.local)
            );
        }
        (true, TrafficPolicy::Cluster) if frontend.cluster.is_empty() => {
            let _ = writeln!(text, "    connections are {refused}");
        }
        (true, TrafficPolicy::Cluster) => {
            let targets = list(&frontend.cluster);
            let _ = writeln!(
                text,
                "    connections go {targets}, with this node's address as source"
            );
        }
        (true, TrafficPolicy::Local) => {
            let _ = writeln!(
                text,
                "    from this node and its pods: {}",
                list(&frontend.cluster)
            );
            match &*frontend.local {
                [] => {
                    let _ = writeln!(text, "    from elsewhere: {refused}");
                }
                local => {
                    let targets = list(local);
                    let _ = writeln!(
                        text,
                        "    from elsewhere: {targets}, with the client's address"
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One Service with a cluster IP and a load-balancer address that only some may use.
    fn dataplane(endpoints: &[&str]) -> Dataplane {
        let (node, config) = (testkit::mk_node(1).build(), testkit::mk_config().build());
        let service = testkit::mk_service("shop/cart")
            .cluster_ip("10.96.0.10")
            .load_balancer_ip("192.0.2.1")
            .source_range("198.51.100.0/24")
            .port("http", 80)
            .build();
        let mut list = testkit::mk_endpoints().tcp("http");
        for address in endpoints {
            list = list.ready(address, "node-1");
        }
        let rules = dataplane::compile(&service, &list.build(), &node, &config);
        let mut dataplane = Dataplane::new(node, config);
        dataplane.set(rules.into());
        dataplane
    }

    fn answer(question: &str, dataplane: &Dataplane) -> Option<String> {
        explain(&question.parse().expect("a question"), dataplane, |_| None)
    }

    #[test]
    fn an_address_that_drops_everything_is_not_said_to_lead_anywhere() {
        let text = answer("shop/cart", &dataplane(&["10.0.1.5:8080"])).expect("it is there");
        let (cluster_ip, load_balancer) = text.split_once("192.0.2.1").expect("both addresses");
        assert!(
            cluster_ip.contains("connections go to one of 1: 10.0.1.5:8080"),
            "{text}"
        );
        assert!(load_balancer.contains("connections are dropped"), "{text}");
        assert!(!load_balancer.contains("go to one of"), "{text}");
        assert!(
            load_balancer.contains("not honoured: spec.loadBalancerSourceRanges"),
            "{text}"
        );
    }

    #[test]
    fn a_service_without_endpoints_refuses_and_one_that_is_not_there_is_not_explained() {
        let dataplane = dataplane(&[]);
        let text = answer("shop/cart:http", &dataplane).expect("it is there");
        assert!(
            text.contains("connections are refused: the Service has no endpoint"),
            "{text}"
        );
        assert_eq!(answer("shop/cart:https", &dataplane), None);
        assert_eq!(answer("shop/till", &dataplane), None);
    }

    #[test]
    fn a_service_is_named_with_its_namespace_and_perhaps_a_port() {
        let question: Question = "shop/cart:http".parse().expect("a question");
        assert_eq!(question.service, ServiceKey::new("shop", "cart"));
        assert_eq!(question.port.as_deref(), Some("http"));
        for wrong in ["cart", "/cart", "shop/", "a/b/c"] {
            assert!(wrong.parse::<Question>().is_err(), "{wrong}");
        }
    }
}
