//! Metrics of this node's status, as in its NodeProxy. Read from the agent at each scrape.
//!
//! There is one series for each condition, with its current status and reason, and one for each
//! named value. The number of series at one time is bounded, whatever the node has reported before.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::Snapshot;

/// Reads the agent at each scrape.
#[derive(Debug)]
pub(super) struct OfNode(pub(super) Arc<dyn Snapshot>);

/// The labels of one series.
type Labels = Vec<(&'static str, String)>;

/// A gauge and its series.
struct Gauge {
    name: &'static str,
    help: &'static str,
    series: Vec<(Labels, f64)>,
}

// === impl OfNode ===

impl OfNode {
    fn gauges(&self) -> [Gauge; 5] {
        let status = self.0.status();
        let desired = self.0.desired_hash();
        let is = |labels: Labels| (labels, 1.0);
        let conditions = status.conditions.iter().map(|condition| {
            is(vec![
                ("type", condition.type_.clone()),
                ("status", condition.status.clone()),
                ("reason", condition.reason.clone()),
            ])
        });
        let variant = status.iptables.map(|iptables| iptables.variant.to_string());
        let mode = status.mode.map(|mode| {
            is(vec![
                ("mode", mode.to_string()),
                ("variant", variant.unwrap_or_default()),
            ])
        });
        let hashes = [
            ("desired", desired),
            ("applied", status.applied_hash.clone()),
        ];
        let hashes = hashes.into_iter().filter_map(|(state, hash)| {
            let labels = vec![("state", state.to_owned()), ("hash", hash?.to_string())];
            Some(is(labels))
        });
        let owner = if self.0.serves() { 1.0 } else { 0.0 };
        [
            Gauge {
                name: "signpost_node_condition",
                help: "Conditions of this node's NodeProxy with status and reason; always 1",
                series: conditions.collect(),
            },
            Gauge {
                name: "signpost_node_mode",
                help: "The mode in force, and the variant of iptables where it has one; always 1",
                series: mode.into_iter().collect(),
            },
            Gauge {
                name: "signpost_node_configuration",
                help: "Hashes of the configuration that is desired and of the one that is applied; always 1",
                series: hashes.collect(),
            },
            Gauge {
                name: "signpost_node_serving",
                help: "Whether Signpost serves this node's Services: 1, or 0 once they are handed back to another proxy",
                series: vec![(Vec::new(), owner)],
            },
            Gauge {
                name: "signpost_endpoints",
                help: "Endpoints of the Services in the desired state",
                series: vec![(Vec::new(), f64::from(status.counts.endpoints))],
            },
        ]
    }
}

impl Collector for OfNode {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for Gauge { name, help, series } in self.gauges() {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            match &series[..] {
                [(labels, value)] if labels.is_empty() => ConstGauge::new(*value).encode(metric)?,
                series => {
                    for (labels, value) in series {
                        ConstGauge::new(*value).encode(metric.encode_family(labels)?)?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crds::condition::{FEATURES_HONOURED, Finding, READY, Status, reason, set_condition};
    use crds::effective::hash::ConfigHash;
    use crds::{EffectiveConfig, NodeProxyStatus};
    use jiff::Timestamp;
    use runtime::{BuildInfo, Metrics};

    use super::*;
    use crate::snapshot::tests::Agent;

    #[test]
    fn a_condition_is_one_series_with_what_it_is_now() {
        let agent = Arc::new(Agent::default());
        let metrics = Metrics::new(&BuildInfo {
            program: "test",
            version: "0",
        });
        let collector = OfNode(Arc::<Agent>::clone(&agent));
        metrics.register_with(|registry| registry.register_collector(Box::new(collector)));
        let hash = ConfigHash::of(&EffectiveConfig::default());
        let configuration =
            format!(r#"signpost_node_configuration{{state="applied",hash="{hash}"}} 1.0"#);
        let mut status = NodeProxyStatus {
            applied_hash: Some(hash.clone()),
            ..NodeProxyStatus::default()
        };
        let mut say = |kind, holds, reason| {
            let finding = Finding::new(kind, holds, reason, String::new());
            set_condition(&mut status.conditions, finding, Timestamp::UNIX_EPOCH);
            agent.reports(status.clone());
            metrics.scrape().expect("numbers can be written")
        };
        say(FEATURES_HONOURED, Status::False, reason::MODE_NOT_HONOURED);
        say(READY, Status::False, reason::STARTING);
        let scrape = say(READY, Status::True, reason::HANDED_BACK);
        let ready: Vec<&str> = scrape
            .lines()
            .filter(|line| line.contains("type=\"Ready\""))
            .collect();
        assert_eq!(
            ready,
            [r#"signpost_node_condition{type="Ready",status="True",reason="HandedBack"} 1.0"#]
        );
        for line in [
            r#"signpost_node_condition{type="FeaturesHonoured",status="False",reason="ModeNotHonoured"} 1.0"#,
            &configuration,
            "signpost_node_serving 1.0",
            "signpost_endpoints 0.0",
        ] {
            assert!(scrape.lines().any(|have| have == line), "{line}: {scrape}");
        }
        agent.hands_back();
        let scrape = metrics.scrape().expect("numbers can be written");
        assert!(scrape.contains("signpost_node_serving 0.0"), "{scrape}");
    }
}
