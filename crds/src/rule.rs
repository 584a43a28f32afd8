//! The validation rules: each is one CEL expression for the API server and one message for the
//! user.
//!
//! The agent implements every rule again in Rust ([`crate::check`]), because a directory of
//! manifests is not checked by an API server. Both use the message from here, so that a user reads
//! the same message from either.

use serde_json::{Value, json};

/// One rule of the API.
#[derive(Debug)]
pub(crate) struct Rule {
    /// The CEL expression; `self` is the value that the rule is attached to.
    pub(crate) cel: &'static str,
    /// The message if the expression is false; it names the field.
    pub(crate) message: &'static str,
    /// The invalid field, relative to the value that the rule is attached to; empty for that value
    /// itself.
    pub(crate) field: &'static str,
}

/// Returns the rules in the form of `x-kubernetes-validations`.
pub(crate) fn list(rules: &[&Rule]) -> Value {
    rules
        .iter()
        .map(|rule| {
            let mut entry = json!({"rule": rule.cel, "message": rule.message});
            if !rule.field.is_empty() {
                entry["fieldPath"] = rule.field.into();
            }
            entry
        })
        .collect()
}

const fn of_value(cel: &'static str, message: &'static str) -> Rule {
    Rule {
        cel,
        message,
        field: "",
    }
}

const fn of_field(field: &'static str, cel: &'static str, message: &'static str) -> Rule {
    Rule {
        cel,
        message,
        field,
    }
}

pub(crate) const SPAN_TOO_LONG: Rule = of_value(
    "duration(self) <= duration('99999h')",
    "a duration must not be longer than 99999h",
);

pub(crate) const MIN_SYNC_PERIOD: Rule = of_field(
    ".minSyncPeriod",
    "duration(self.minSyncPeriod) <= duration(self.syncPeriod)",
    "minSyncPeriod must not be longer than syncPeriod",
);
pub(crate) const SYNC_PERIOD: Rule = of_value(
    "duration(self) >= duration('1s') && duration(self) <= duration('24h')",
    "syncPeriod must be between 1s and 24h",
);
pub(crate) const CONFIG_SYNC_PERIOD: Rule = of_value(
    "duration(self) >= duration('1s')",
    "configSyncPeriod must be at least 1s",
);

pub(crate) const CIDR: Rule = of_value(
    "isCIDR(self)",
    "must be a CIDR such as 10.0.0.0/8 or 2001:db8::/32",
);
pub(crate) const NODE_PORT_ADDRESS: Rule = of_value(
    "self == 'primary' || isCIDR(self)",
    "nodePorts.addresses takes CIDRs such as 10.0.0.0/8, or the single word primary",
);
pub(crate) const PRIMARY_ALONE: Rule = of_value(
    "size(self) < 2 || !self.exists(address, address == 'primary')",
    "nodePorts.addresses must not mix primary with anything else",
);

pub(crate) const CLUSTER_CIDRS_REQUIRED: Rule = of_field(
    ".clusterCIDRs",
    "self.mode != 'ClusterCIDR' || (has(self.clusterCIDRs) && size(self.clusterCIDRs) > 0)",
    "detectLocal.clusterCIDRs is required in detectLocal.mode ClusterCIDR",
);
pub(crate) const CLUSTER_CIDRS_FAMILIES: Rule = of_field(
    ".clusterCIDRs",
    "!has(self.clusterCIDRs) || size(self.clusterCIDRs) < 2 || !self.clusterCIDRs.all(c, isCIDR(c)) \
     || cidr(self.clusterCIDRs[0]).ip().family() != cidr(self.clusterCIDRs[1]).ip().family()",
    "detectLocal.clusterCIDRs takes at most one CIDR of each address family",
);
pub(crate) const BRIDGE_REQUIRED: Rule = of_field(
    ".bridgeInterface",
    "self.mode != 'BridgeInterface' || (has(self.bridgeInterface) && self.bridgeInterface != '')",
    "detectLocal.bridgeInterface is required in detectLocal.mode BridgeInterface",
);
pub(crate) const PREFIX_REQUIRED: Rule = of_field(
    ".interfaceNamePrefix",
    "self.mode != 'InterfaceNamePrefix' || (has(self.interfaceNamePrefix) && self.interfaceNamePrefix != '')",
    "detectLocal.interfaceNamePrefix is required in detectLocal.mode InterfaceNamePrefix",
);
pub(crate) const INTERFACE_NAME: Rule = of_value(
    "self.matches('^[!-.0-~]*$')",
    "an interface name has printable ASCII letters and neither spaces nor slashes",
);

pub(crate) const INTERFACE_PATTERN: Rule = of_value(
    "self.matches('^([!-)+-.0-~]{1,15}|[!-)+-.0-~]{0,14}[*])$')",
    "an interface pattern is a name of 1 to 15 printable ASCII letters without spaces and slashes, or the beginning of names followed by *",
);

pub(crate) const MAX_UNAVAILABLE: Rule = of_value(
    "string(self).matches('^([1-9][0-9]{0,8}|(100|[1-9][0-9]?)%)$')",
    "rollout.maxUnavailable and rollout.maxFailures take a number of nodes from 1, or a percentage from 1% to 100%",
);
pub(crate) const MIN_READY: Rule = of_value(
    "duration(self) <= duration('24h')",
    "rollout.minReady must be between 0s and 24h",
);
pub(crate) const PROGRESS_DEADLINE: Rule = of_value(
    "duration(self) >= duration('10s') && duration(self) <= duration('24h')",
    "rollout.progressDeadline must be between 10s and 24h",
);

/// An IPv4 address or a bracketed IPv6 address, a colon, and a port.
macro_rules! bind_address_cel {
    () => {
        "self == '' || (self.matches('^([0-9.]+|[\\\\[][0-9a-fA-F]*:[0-9a-fA-F:.]*[\\\\]]):[0-9]{1,5}$') \
         && isIP(self.substring(0, self.lastIndexOf(':')).replace('[', '').replace(']', '')) \
         && int(self.substring(self.lastIndexOf(':') + 1)) >= 1 \
         && int(self.substring(self.lastIndexOf(':') + 1)) <= 65535)"
    };
}
pub(crate) const HEALTHZ_BIND_ADDRESS: Rule = of_value(
    bind_address_cel!(),
    "healthzBindAddress must be IP:port with a port from 1 to 65535, or empty for no server",
);
pub(crate) const METRICS_BIND_ADDRESS: Rule = of_value(
    bind_address_cel!(),
    "metricsBindAddress must be IP:port with a port from 1 to 65535, or empty for no server",
);
pub(crate) const BIND_ADDRESS: Rule = of_value("isIP(self)", "bindAddress must be an IP address");

pub(crate) const HIDDEN_METRICS_VERSION: Rule = of_value(
    "self.matches('^([0-9]{1,4}[.][0-9]{1,4})?$')",
    "showHiddenMetricsForVersion must be a release as major.minor, such as 1.36, or empty",
);
pub(crate) const EXTERNAL_IPS_GATE: Rule = of_value(
    "!('AllowServiceExternalIPs' in self)",
    "featureGates must not name AllowServiceExternalIPs: set allowServiceExternalIPs instead",
);

pub(crate) const LABEL_KEYS: Rule = of_value(
    "self.all(key, !format.qualifiedName().validate(key).hasValue())",
    "nodeSelector.matchLabels has a key that is not a label key",
);
pub(crate) const LABEL_VALUES: Rule = of_value(
    "self.all(key, !format.labelValue().validate(self[key]).hasValue())",
    "nodeSelector.matchLabels has a value that is not a label value",
);
pub(crate) const EXPRESSION_KEY: Rule = of_field(
    ".key",
    "!format.qualifiedName().validate(self.key).hasValue()",
    "nodeSelector.matchExpressions has a key that is not a label key",
);
pub(crate) const EXPRESSION_VALUES_GIVEN: Rule = of_field(
    ".values",
    "!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)",
    "nodeSelector.matchExpressions needs values with operators In and NotIn",
);
pub(crate) const EXPRESSION_VALUES_ABSENT: Rule = of_field(
    ".values",
    "self.operator in ['In', 'NotIn'] || !has(self.values) || size(self.values) == 0",
    "nodeSelector.matchExpressions takes no values with operators Exists and DoesNotExist",
);
pub(crate) const EXPRESSION_VALUE: Rule = of_field(
    ".values",
    "!has(self.values) || self.values.all(value, !format.labelValue().validate(value).hasValue())",
    "nodeSelector.matchExpressions has a value that is not a label value",
);
