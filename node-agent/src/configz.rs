//! The configuration in force in the form that kube-proxy prints at `/configz`: a
//! KubeProxyConfiguration of `kubeproxy.config.k8s.io/v1alpha1`
//! (staging/src/k8s.io/kube-proxy/config/v1alpha1/types.go).

use std::fmt::Write;
use std::time::Duration;

use crds::EffectiveConfig;
use crds::span::Span;
use runtime::{LogFormat, LogOptions};
use serde_json::{Value, json};

/// Returns the document under its key in `/configz`. Leaves out fields that only apply to Windows,
/// and fields that a profile does not have.
pub(crate) fn render_configz(node: &str, config: &EffectiveConfig, log: &LogOptions) -> Value {
    json!({"kubeproxy.config.k8s.io": kube_proxy_configuration(node, config, log)})
}

fn kube_proxy_configuration(node: &str, config: &EffectiveConfig, log: &LogOptions) -> Value {
    let (detect, conntrack) = (&config.detect_local, &config.conntrack);
    let cluster_cidrs: Vec<String> = detect
        .cluster_cidrs
        .iter()
        .map(ToString::to_string)
        .collect();
    let node_ports: Vec<String> = config
        .node_port_addresses
        .iter()
        .map(ToString::to_string)
        .collect();
    let mut gates = config.feature_gates.0.clone();
    gates.insert(
        "AllowServiceExternalIPs".to_owned(),
        config.allow_service_external_ips,
    );
    // The command line decides fields that the profile does not set. Several verbosities map to one
    // log level.
    let verbosity = match LogOptions::filter_of(config.logging.verbosity) == log.filter {
        true => config.logging.verbosity,
        false => log.verbosity(),
    };
    let format = match log.format {
        LogFormat::Text => "text",
        LogFormat::Json => "json",
    };
    let mut logging = json!({
        "format": format,
        "flushFrequency": go_duration(config.logging.flush_frequency),
        "verbosity": verbosity,
    });
    // kube-proxy leaves out an empty one.
    if !config.logging.vmodule.is_empty() {
        logging["vmodule"] = json!(config.logging.vmodule);
    }
    json!({
        "kind": "KubeProxyConfiguration",
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "featureGates": gates,
        "clientConnection": {
            "kubeconfig": "",
            "acceptContentTypes": config.client_connection.accept_content_types,
            "contentType": config.client_connection.content_type,
            "qps": config.client_connection.qps,
            "burst": config.client_connection.burst,
        },
        "logging": logging,
        "hostnameOverride": node,
        "bindAddress": config.bind_address,
        "healthzBindAddress": config.healthz_bind_address,
        "metricsBindAddress": config.metrics_bind_address,
        "bindAddressHardFail": config.bind_address_hard_fail,
        "enableProfiling": config.enable_profiling,
        "showHiddenMetricsForVersion": config.show_hidden_metrics_for_version,
        "mode": config.mode,
        "iptables": {
            "masqueradeBit": config.masquerade.mark_bit,
            "masqueradeAll": config.masquerade.all,
            "localhostNodePorts": config.iptables.localhost_node_ports,
            "syncPeriod": go_duration(config.sync_period),
            "minSyncPeriod": go_duration(config.min_sync_period),
        },
        "ipvs": {
            "syncPeriod": go_duration(config.sync_period),
            "minSyncPeriod": go_duration(config.min_sync_period),
            "scheduler": config.scheduler,
            "excludeCIDRs": config.ipvs.exclude_cidrs,
            "strictARP": config.ipvs.strict_arp,
            "tcpTimeout": go_duration(config.ipvs.tcp_timeout),
            "tcpFinTimeout": go_duration(config.ipvs.tcp_fin_timeout),
            "udpTimeout": go_duration(config.ipvs.udp_timeout),
        },
        "nftables": {
            "masqueradeBit": config.masquerade.mark_bit,
            "masqueradeAll": config.masquerade.all,
            "syncPeriod": go_duration(config.sync_period),
            "minSyncPeriod": go_duration(config.min_sync_period),
        },
        "detectLocalMode": detect.mode,
        "detectLocal": {
            "bridgeInterface": detect.bridge_interface,
            "interfaceNamePrefix": detect.interface_name_prefix,
        },
        "clusterCIDR": cluster_cidrs.join(","),
        "nodePortAddresses": node_ports,
        "oomScoreAdj": config.oom_score_adj,
        "conntrack": {
            "maxPerCore": conntrack.max_per_core,
            "min": conntrack.min,
            "tcpEstablishedTimeout": go_duration(conntrack.tcp_established_timeout),
            "tcpCloseWaitTimeout": go_duration(conntrack.tcp_close_wait_timeout),
            "tcpBeLiberal": conntrack.tcp_be_liberal,
            "udpTimeout": go_duration(conntrack.udp_timeout),
            "udpStreamTimeout": go_duration(conntrack.udp_stream_timeout),
        },
        "configSyncPeriod": go_duration(config.config_sync_period),
        "portRange": "",
    })
}

/// Prints a duration as Go does: `24h0m0s`, `1m30s`, `10ms`, `0s` (time.Duration.String).
fn go_duration(span: Span) -> String {
    let duration: Duration = span.duration();
    let milliseconds = duration.subsec_millis();
    let seconds = duration.as_secs();
    if seconds == 0 && milliseconds > 0 {
        return format!("{milliseconds}ms");
    }
    let mut text = String::new();
    // Writing to a String cannot fail.
    if seconds >= 3600 {
        let _ = write!(text, "{}h", seconds / 3600);
    }
    if seconds >= 60 {
        let _ = write!(text, "{}m", seconds / 60 % 60);
    }
    let _ = write!(text, "{}", seconds % 60);
    if milliseconds > 0 {
        let _ = write!(
            text,
            ".{}",
            format!("{milliseconds:03}").trim_end_matches('0')
        );
    }
    text.push('s');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for (milliseconds, expected) in [
            (0, "0s"),
            (10, "10ms"),
            (1000, "1s"),
            (1500, "1.5s"),
            (90_000, "1m30s"),
            (900_000, "15m0s"),
            (86_400_000, "24h0m0s"),
        ] {
            assert_eq!(go_duration(Span::milliseconds(milliseconds)), expected);
        }
    }

    fn log(filter: &str) -> LogOptions {
        LogOptions {
            filter: filter.to_owned(),
            format: LogFormat::Json,
            modules: Vec::new(),
        }
    }

    #[test]
    fn the_log_is_shown_as_it_is_whatever_decided() {
        let shown = |verbosity: u8, log: &LogOptions| {
            let mut config = EffectiveConfig::default();
            config.logging.verbosity = verbosity;
            let document = render_configz("node-1", &config, log);
            let logging = &document["kubeproxy.config.k8s.io"]["logging"];
            assert_eq!(logging["format"], "json");
            logging["verbosity"].clone()
        };
        assert_eq!(shown(2, &log(LogOptions::filter_of(2))), 2);
        assert_eq!(shown(0, &log("info,reconciler=debug")), 4);
    }

    #[test]
    fn a_profile_that_says_nothing_is_kube_proxys_default_in_nftables_mode() {
        let document = render_configz("node-1", &EffectiveConfig::default(), &log("warn"));
        let config = &document["kubeproxy.config.k8s.io"];
        assert_eq!(config["kind"], "KubeProxyConfiguration");
        assert_eq!(config["apiVersion"], "kubeproxy.config.k8s.io/v1alpha1");
        assert_eq!(config["mode"], "nftables");
        assert_eq!(config["healthzBindAddress"], "0.0.0.0:10256");
        assert_eq!(config["nftables"]["syncPeriod"], "30s");
        assert_eq!(config["nftables"]["masqueradeBit"], 14);
        assert_eq!(config["conntrack"]["tcpEstablishedTimeout"], "24h0m0s");
        assert_eq!(config["conntrack"]["maxPerCore"], 32768);
        assert_eq!(config["oomScoreAdj"], -999);
        assert_eq!(config["nodePortAddresses"], json!(["primary"]));
    }
}
