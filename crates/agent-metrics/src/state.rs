//! Gauges that are read from the agent at each scrape.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use dataplane::{Dataplane, Family, Frontend, FrontendKey, ServicePortName, TrafficPolicy};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{connections, float, iptables};
use crate::Snapshot;

/// Reads the agent at each scrape.
#[derive(Debug)]
pub(super) struct StateMetrics(pub(super) Arc<dyn Snapshot>);

// === impl StateMetrics ===

impl StateMetrics {
    fn encode_totals(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let agent = &self.0;
        let desired = agent.desired();
        let stale_for = agent.stale_since().map_or(0.0, |since| {
            let stale = SystemTime::now().duration_since(since);
            stale.unwrap_or_default().as_secs_f64()
        });
        let gauges = [
            (
                "signpost_services",
                "Services in the desired state",
                float(
                    desired
                        .as_ref()
                        .map_or(0, |dataplane| dataplane.services().len()),
                ),
            ),
            (
                "signpost_elements",
                "Elements, or iptables rules, in the kernel, as recorded",
                float(agent.elements()),
            ),
            (
                "signpost_rejections",
                "Objects, or parts of them, that are rejected or not supported, as status.rejections.total counts them",
                f64::from(agent.status().rejections.total),
            ),
            (
                "signpost_affinity_exhausted_services",
                "Services with session affinity that recently had no room for a new client",
                float(agent.exhausted_services()),
            ),
            (
                "signpost_source_stale_seconds",
                "Time since the source last answered; 0 while it answers",
                stale_for,
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value);
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        Ok(())
    }

    fn encode_no_local_endpoints(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        let report = self.0.report();
        let mut metric = encoder.encode_descriptor(
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "Service ports with policy Local that have endpoints, but none on this node",
            None,
            MetricType::Gauge,
        )?;
        for family in report.iter().flat_map(|report| &report.families) {
            let Some(programmed) = &family.programmed else {
                continue;
            };
            for (policy, ports) in without_local_endpoints(programmed, family.family) {
                let labels = [
                    ("traffic_policy", policy.to_owned()),
                    ("ip_family", family.family.to_string()),
                ];
                let gauge = ConstGauge::new(float(ports));
                gauge.encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl Collector for StateMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.encode_totals(&mut encoder)?;
        self.encode_no_local_endpoints(&mut encoder)?;
        iptables::encode_rules(&*self.0, &mut encoder)?;
        let modes = self.0.modes();
        connections::encode(&modes, &mut encoder)?;
        connections::encode_new(&modes, &mut encoder)
    }
}

/// Returns how many Service ports have endpoints, but none that a Local policy allows, for the
/// internal and the external policy.
fn without_local_endpoints(programmed: &Dataplane, family: Family) -> [(&'static str, usize); 2] {
    let mut internal = BTreeSet::<&ServicePortName>::new();
    let mut external = BTreeSet::<&ServicePortName>::new();
    let frontends = programmed.services().iter().flat_map(|(_, rules)| {
        let of_family = |(key, _): &&(FrontendKey, Arc<Frontend>)| key.family() == family;
        rules.frontends.iter().filter(of_family)
    });
    for (_, frontend) in frontends {
        if frontend.policy == TrafficPolicy::Local
            && frontend.has_endpoints
            && frontend.local.is_empty()
        {
            let ports = match frontend.is_external() {
                true => &mut external,
                false => &mut internal,
            };
            ports.insert(&frontend.service_port);
        }
    }
    [("internal", internal.len()), ("external", external.len())]
}

#[cfg(test)]
mod tests {
    use crds::NodeProxyStatus;
    use crds::node_proxy::rejections::Rejections;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::snapshot::tests::Agent;

    /// Services that the kernel refused are only in the status, not among the rejections of the
    /// objects.
    #[test]
    fn the_metric_counts_the_rejections_that_the_status_counts() {
        let agent = Arc::new(Agent::default());
        let mut registry = Registry::default();
        registry.register_collector(Box::new(StateMetrics(Arc::<Agent>::clone(&agent))));
        let rejections = Rejections {
            total: 3,
            ..Rejections::default()
        };
        agent.reports(NodeProxyStatus {
            rejections,
            ..NodeProxyStatus::default()
        });
        let mut text = String::new();
        encode(&mut text, &registry).expect("a string takes everything");
        let found = text
            .lines()
            .find(|line| line.starts_with("signpost_rejections "));
        assert_eq!(found, Some("signpost_rejections 3.0"));
    }
}
