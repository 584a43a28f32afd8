//! Fields and values that the API accepts but that are not supported yet, so that a node reports
//! them.

use serde_json::Value;

use crate::{
    address::NodePortAddress,
    condition::reason::{FIELD_NOT_HONOURED, Reason},
    effective::EffectiveConfig,
    profile::{ProxyProfileSpec, forwarding::LocalhostNodePorts, mode::Mode},
};

/// An unsupported field of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedField {
    /// The path of the field below spec, such as `ipvs.strictARP`.
    pub field: String,
    /// The reason for condition FeaturesHonoured.
    pub reason: Reason,
    /// What happens instead.
    pub message: String,
}

/// The unsupported fields, and sections in which every field is unsupported. The documentation of
/// each says so.
pub const UNREAD_FIELDS: &[&str] = &[
    "bindAddress",
    "clientConnection",
    "configSyncPeriod",
    "enableProfiling",
    "featureGates",
    "logging.flushFrequency",
    "showHiddenMetricsForVersion",
];

/// The paths below spec of every field in `spec` that concerns nodes and differs from the defaults
/// of the API itself, sorted by name. Fields that only the operator reads (selector, priority,
/// pause, rollout) are left out: they change nothing for a node, and must not cause a write to
/// every node. A field of a section without such defaults counts whenever it is set, whatever its
/// value.
#[must_use]
pub fn written_fields(spec: &ProxyProfileSpec) -> Vec<String> {
    let json = |spec: &ProxyProfileSpec| serde_json::to_value(spec).unwrap_or_default();
    let default = ProxyProfileSpec::default();
    let of_node = ProxyProfileSpec {
        node_selector: default.node_selector.clone(),
        priority: default.priority,
        paused: default.paused,
        rollout: default.rollout.clone(),
        ..spec.clone()
    };
    let mut paths = Vec::new();
    collect(&json(&of_node), &json(&default), "", &mut paths);
    // Within the bounds of NodeProxySpec::written_fields: gates may have names of any length.
    paths.retain(|path| path.len() <= 256);
    paths.truncate(256);
    paths
}

/// What `config` requests that is not supported yet; `written` is [`written_fields`] of the profile
/// it was made from.
#[must_use]
pub fn unsupported_fields(config: &EffectiveConfig, written: &[String]) -> Vec<UnsupportedField> {
    let loopback = (config.localhost_node_ports == LocalhostNodePorts::None)
        .then(|| loopback_blocks(&config.node_port_addresses))
        .filter(|blocks| !blocks.is_empty())
        .map(|blocks| UnsupportedField {
            field: "nodePorts.addresses".to_owned(),
            reason: FIELD_NOT_HONOURED,
            message: format!(
                "{} opens no node port: the kernel refuses replies to a loopback address. \
                 nodePorts.localhost: userspace opens them there",
                blocks.join(", ")
            ),
        });
    let fields = written
        .iter()
        .filter(|field| is_unread(field))
        .map(|field| UnsupportedField {
            field: field.clone(),
            reason: FIELD_NOT_HONOURED,
            message: match field.as_str() {
                "logging.flushFrequency" => "it has no effect: no log line is buffered",
                _ => "it has no effect yet",
            }
            .to_owned(),
        });
    let needless = match config.mode {
        Mode::Ipvs => needless_in_mode_ipvs(config),
        Mode::Nftables | Mode::Iptables => Vec::new(),
    };
    let all = loopback.into_iter().chain(flowtable(config));
    all.chain(fields).chain(needless).collect()
}

/// The flowtable in a mode that has none.
fn flowtable(config: &EffectiveConfig) -> Option<UnsupportedField> {
    let is_asked = !config.nftables.flowtable_interfaces.is_empty();
    (is_asked && config.mode != Mode::Nftables).then(|| UnsupportedField {
        field: "nftables.flowtableInterfaces".to_owned(),
        reason: FIELD_NOT_HONOURED,
        message: format!(
            "mode {} has no flowtable: established connections go through all rules",
            config.mode
        ),
    })
}

/// The fields that have no effect in mode ipvs, because what they prevent does not happen there.
fn needless_in_mode_ipvs(config: &EffectiveConfig) -> Vec<UnsupportedField> {
    let strict_arp = config.ipvs.strict_arp.then_some((
        "ipvs.strictARP",
        "it changes no setting, because no address of a Service is on a device of the node; set arp_ignore and \
         arp_announce with sysctl if the node needs them for other reasons",
    ));
    let exclude_cidrs = (!config.ipvs.exclude_cidrs.is_empty()).then_some((
        "ipvs.excludeCIDRs",
        "it has no effect, because Signpost changes only its own virtual servers, which have \
         packet marks instead of addresses",
    ));
    let needless = strict_arp.into_iter().chain(exclude_cidrs);
    needless
        .map(|(field, message)| UnsupportedField {
            field: field.to_owned(),
            reason: FIELD_NOT_HONOURED,
            message: message.to_owned(),
        })
        .collect()
}

/// The blocks that contain only loopback addresses.
fn loopback_blocks(addresses: &[NodePortAddress]) -> Vec<String> {
    let blocks = addresses.iter().filter_map(|entry| match entry {
        NodePortAddress::Within(cidr) => Some(cidr),
        NodePortAddress::Primary => None,
    });
    blocks
        .filter(|cidr| {
            let net = cidr.net();
            net.network().is_loopback() && net.broadcast().is_loopback()
        })
        .map(ToString::to_string)
        .collect()
}

/// Whether the field at this path below spec is unsupported.
#[must_use]
pub fn is_unread(field: &str) -> bool {
    UNREAD_FIELDS.iter().any(|unread| {
        let below = field.strip_prefix(unread);
        below.is_some_and(|below| below.is_empty() || below.starts_with('.'))
    })
}

/// Collects the leaves of `value` that differ from `default`. A list is a leaf: part of a list has
/// no meaning.
fn collect(value: &Value, default: &Value, path: &str, paths: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort();
            for name in names {
                let below = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                collect(&fields[name], &default[name], &below, paths);
            }
        }
        leaf if leaf != default => paths.push(path.to_owned()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: Value) -> ProxyProfileSpec {
        serde_json::from_value(json).expect("a spec")
    }

    fn fields(spec: &ProxyProfileSpec) -> Vec<String> {
        let unsupported_fields =
            unsupported_fields(&EffectiveConfig::of(spec), &written_fields(spec));
        unsupported_fields
            .into_iter()
            .map(|entry| format!("{}/{}", entry.reason.name, entry.field))
            .collect()
    }

    #[test]
    fn an_empty_profile_has_no_unsupported_field() {
        assert_eq!(
            written_fields(&ProxyProfileSpec::default()),
            Vec::<String>::new()
        );
        assert_eq!(fields(&ProxyProfileSpec::default()), Vec::<String>::new());
    }

    #[test]
    fn an_unsupported_field_is_named_even_when_it_is_set_to_its_default() {
        let spec = spec(serde_json::json!({
            "priority": 5,
            "paused": true,
            "nodeSelector": {"matchLabels": {"role": "edge"}},
            "rollout": {"canary": 1},
            "minSyncPeriod": "1ms",
            "conntrack": {"maxPerCore": 32768},
            "iptables": {"localhostNodePorts": false},
            "ipvs": {"strictARP": true},
            "logging": {"verbosity": 4, "flushFrequency": "1s"},
        }));
        assert_eq!(
            written_fields(&spec),
            [
                "conntrack.maxPerCore",
                "iptables.localhostNodePorts",
                "ipvs.strictARP",
                "logging.flushFrequency",
                "logging.verbosity",
            ]
        );
        assert_eq!(fields(&spec), ["FieldNotHonoured/logging.flushFrequency"]);
    }

    #[test]
    fn a_loopback_block_that_opens_nothing_is_named() {
        let named = |json: Value| {
            let spec = spec(json);
            let mut all = unsupported_fields(&EffectiveConfig::of(&spec), &written_fields(&spec));
            all.pop()
                .map(|entry| format!("{}: {}", entry.field, entry.message))
        };
        let list = serde_json::json!(["10.0.0.0/8", "127.0.0.0/8", "::1/128"]);
        let message = "nodePorts.addresses: 127.0.0.0/8, ::1/128 opens no node port: the kernel refuses replies \
                       to a loopback address. nodePorts.localhost: userspace opens them there";
        for profile in [
            serde_json::json!({"nodePorts": {"addresses": list}}),
            serde_json::json!({
                "mode": "iptables", "iptables": {"localhostNodePorts": false}, "nodePorts": {"addresses": list},
            }),
        ] {
            assert_eq!(named(profile).as_deref(), Some(message));
        }
        for profile in [
            serde_json::json!({"nodePorts": {"addresses": list, "localhost": "userspace"}}),
            serde_json::json!({"mode": "iptables", "nodePorts": {"addresses": list}}),
            serde_json::json!({"nodePorts": {"addresses": ["0.0.0.0/0", "::/0"]}}),
            serde_json::json!({"nodePorts": {"addresses": ["126.0.0.0/7"]}}),
        ] {
            assert_eq!(named(profile), None);
        }
    }

    #[test]
    fn every_mode_is_supported() {
        for mode in ["nftables", "iptables", "ipvs"] {
            assert_eq!(
                fields(&spec(serde_json::json!({"mode": mode}))),
                Vec::<String>::new(),
                "{mode}"
            );
        }
    }

    #[test]
    fn only_mode_nftables_has_a_flowtable() {
        let section = serde_json::json!({"flowtableInterfaces": ["eth0", "veth*"]});
        let of = |mode: &str| {
            fields(&spec(
                serde_json::json!({"mode": mode, "nftables": section}),
            ))
        };
        assert_eq!(of("nftables"), Vec::<String>::new());
        for mode in ["iptables", "ipvs"] {
            assert_eq!(of(mode), ["FieldNotHonoured/nftables.flowtableInterfaces"]);
        }
        let off = serde_json::json!({"mode": "ipvs", "nftables": {"flowtableInterfaces": []}});
        assert_eq!(fields(&spec(off)), Vec::<String>::new());
    }

    #[test]
    fn fields_that_mode_ipvs_does_not_need_are_named_in_that_mode() {
        let section = serde_json::json!({
            "strictARP": true, "excludeCIDRs": ["10.9.0.0/16"], "tcpTimeout": "15m", "udpTimeout": "30s",
        });
        let of = |mode: &str| fields(&spec(serde_json::json!({"mode": mode, "ipvs": section})));
        assert_eq!(
            of("ipvs"),
            [
                "FieldNotHonoured/ipvs.strictARP",
                "FieldNotHonoured/ipvs.excludeCIDRs"
            ]
        );
        assert_eq!(of("nftables"), Vec::<String>::new());
        let left_out =
            serde_json::json!({"mode": "ipvs", "ipvs": {"strictARP": false, "excludeCIDRs": []}});
        assert_eq!(fields(&spec(left_out)), Vec::<String>::new());
    }
}
