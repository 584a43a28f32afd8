//! Validates a profile without an API server: for an agent that reads a directory, and for an
//! object that was stored before a rule existed.
//!
//! Bounds and field names come from the same schema that the API server uses, so they cannot
//! diverge. The rules that relate fields to each other are CEL there and Rust here, with the same
//! messages; the tests check both against one table of invalid profiles.

pub mod bounds;

use std::fmt;

use serde_json::Value;

use crate::{
    address::{NodePortAddress, is_bind_address, is_ip},
    profile::{
        ProxyProfile, ProxyProfileSpec,
        detect_local::{DetectLocal, DetectLocalMode},
        node_selector::{NodeSelector, Operator, Requirement, is_label_key, is_label_value},
    },
    rule::{self, Rule},
    span::Span,
};

/// One error in one field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub struct FieldError {
    /// The path of the field, such as `spec.detectLocal.clusterCIDRs[1]`.
    pub field: String,
    /// What is wrong, and what would be valid.
    pub message: String,
}

/// Returns everything that the API server would refuse in `spec`; empty if it would accept it.
#[must_use]
pub fn check(spec: &ProxyProfileSpec) -> Vec<FieldError> {
    // A spec consists of structs, lists and maps with text keys, so it always converts to JSON.
    let mut errors = bounds::check(&serde_json::to_value(spec).unwrap_or_default());
    rules(spec, &mut errors);
    errors
}

/// Parses a profile from the JSON or YAML value of a whole object.
///
/// # Errors
///
/// Returns all errors, each with the path of its field: everything that the API server would
/// refuse, and unknown fields, which an API server would drop with a warning.
pub fn parse(object: &Value) -> Result<ProxyProfile, Vec<FieldError>> {
    let mut errors = object.get("spec").map_or_else(Vec::new, bounds::check);
    match serde_path_to_error::deserialize::<_, ProxyProfile>(object) {
        Ok(profile) => {
            if profile
                .metadata
                .name
                .as_deref()
                .unwrap_or_default()
                .is_empty()
            {
                errors.push(FieldError::new("metadata.name", "Required value"));
            }
            rules(&profile.spec, &mut errors);
            if errors.is_empty() {
                Ok(profile)
            } else {
                Err(errors)
            }
        }
        Err(error) => {
            let field = error.path().to_string();
            // The schema check has already reported this field, with the API server's own message.
            if !errors.iter().any(|known| known.field == field) {
                errors.push(FieldError::new(field, error.inner().to_string()));
            }
            Err(errors)
        }
    }
}

fn rules(spec: &ProxyProfileSpec, errors: &mut Vec<FieldError>) {
    let mut refuse_unless = |holds: bool, field: &str, rule: &Rule| {
        if !holds {
            errors.push(FieldError::new(field, rule.message));
        }
    };
    let between = |span: Span, least: Span, most: Span| (least..=most).contains(&span);

    let sync_period = spec.sync_period;
    refuse_unless(
        between(sync_period, Span::seconds(1), Span::hours(24)),
        "spec.syncPeriod",
        &rule::SYNC_PERIOD,
    );
    refuse_unless(
        spec.min_sync_period <= sync_period,
        "spec.minSyncPeriod",
        &rule::MIN_SYNC_PERIOD,
    );
    refuse_unless(
        spec.config_sync_period
            .is_none_or(|period| period >= Span::seconds(1)),
        "spec.configSyncPeriod",
        &rule::CONFIG_SYNC_PERIOD,
    );
    let addresses = spec.node_ports.addresses.as_deref().unwrap_or_default();
    refuse_unless(
        addresses.len() < 2 || !addresses.contains(&NodePortAddress::Primary),
        "spec.nodePorts.addresses",
        &rule::PRIMARY_ALONE,
    );
    refuse_unless(
        spec.rollout
            .min_ready
            .is_none_or(|span| span <= Span::hours(24)),
        "spec.rollout.minReady",
        &rule::MIN_READY,
    );
    refuse_unless(
        spec.rollout
            .progress_deadline
            .is_none_or(|deadline| between(deadline, Span::seconds(10), Span::hours(24))),
        "spec.rollout.progressDeadline",
        &rule::PROGRESS_DEADLINE,
    );
    refuse_unless(
        !spec.feature_gates.0.contains_key("AllowServiceExternalIPs"),
        "spec.featureGates",
        &rule::EXTERNAL_IPS_GATE,
    );
    let holds = |text: &Option<String>, form: fn(&str) -> bool| text.as_deref().is_none_or(form);
    refuse_unless(
        holds(&spec.bind_address, is_ip),
        "spec.bindAddress",
        &rule::BIND_ADDRESS,
    );
    refuse_unless(
        holds(&spec.healthz_bind_address, is_bind_address),
        "spec.healthzBindAddress",
        &rule::HEALTHZ_BIND_ADDRESS,
    );
    refuse_unless(
        holds(&spec.metrics_bind_address, is_bind_address),
        "spec.metricsBindAddress",
        &rule::METRICS_BIND_ADDRESS,
    );
    refuse_unless(
        holds(&spec.show_hidden_metrics_for_version, is_minor_version),
        "spec.showHiddenMetricsForVersion",
        &rule::HIDDEN_METRICS_VERSION,
    );
    detect_local(&spec.detect_local, &mut refuse_unless);
    node_selector(&spec.node_selector, &mut refuse_unless);
}

fn detect_local(detect: &DetectLocal, refuse_unless: &mut impl FnMut(bool, &str, &Rule)) {
    let mode = detect.mode;
    refuse_unless(
        mode != DetectLocalMode::ClusterCidr || !detect.cluster_cidrs.is_empty(),
        "spec.detectLocal.clusterCIDRs",
        &rule::CLUSTER_CIDRS_REQUIRED,
    );
    let one_of_each = match detect.cluster_cidrs.as_slice() {
        [first, second, ..] => first.net().addr().is_ipv4() != second.net().addr().is_ipv4(),
        _ => true,
    };
    refuse_unless(
        one_of_each,
        "spec.detectLocal.clusterCIDRs",
        &rule::CLUSTER_CIDRS_FAMILIES,
    );
    for (needed_in, name, field, rule) in [
        (
            DetectLocalMode::BridgeInterface,
            &detect.bridge_interface,
            "spec.detectLocal.bridgeInterface",
            &rule::BRIDGE_REQUIRED,
        ),
        (
            DetectLocalMode::InterfaceNamePrefix,
            &detect.interface_name_prefix,
            "spec.detectLocal.interfaceNamePrefix",
            &rule::PREFIX_REQUIRED,
        ),
    ] {
        refuse_unless(mode != needed_in || !name.is_empty(), field, rule);
        let printable = name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'/');
        refuse_unless(printable, field, &rule::INTERFACE_NAME);
    }
}

fn node_selector(selector: &NodeSelector, refuse_unless: &mut impl FnMut(bool, &str, &Rule)) {
    let labels = &selector.match_labels;
    let field = "spec.nodeSelector.matchLabels";
    refuse_unless(
        labels.keys().all(|key| is_label_key(key)),
        field,
        &rule::LABEL_KEYS,
    );
    refuse_unless(
        labels.values().all(|value| is_label_value(value)),
        field,
        &rule::LABEL_VALUES,
    );
    for (
        index,
        Requirement {
            key,
            operator,
            values,
        },
    ) in selector.match_expressions.iter().enumerate()
    {
        let field = format!("spec.nodeSelector.matchExpressions[{index}]");
        let (key_field, values_field) = (format!("{field}.key"), format!("{field}.values"));
        let compares = matches!(operator, Operator::In | Operator::NotIn);
        refuse_unless(is_label_key(key), &key_field, &rule::EXPRESSION_KEY);
        refuse_unless(
            !compares || !values.is_empty(),
            &values_field,
            &rule::EXPRESSION_VALUES_GIVEN,
        );
        refuse_unless(
            compares || values.is_empty(),
            &values_field,
            &rule::EXPRESSION_VALUES_ABSENT,
        );
        refuse_unless(
            values.iter().all(|value| is_label_value(value)),
            &values_field,
            &rule::EXPRESSION_VALUE,
        );
    }
}

/// Whether `text` is empty or `major.minor`.
fn is_minor_version(text: &str) -> bool {
    let number = |part: &str| {
        (1..=4).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    text.is_empty()
        || text
            .split_once('.')
            .is_some_and(|(major, minor)| number(major) && number(minor))
}

// === impl FieldError ===

impl FieldError {
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

#[cfg(test)]
mod tests;
