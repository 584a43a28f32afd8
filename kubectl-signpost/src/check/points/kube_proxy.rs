//! Whether kube-proxy runs, and in which mode. Pure.

use k8s_openapi::api::core::v1::ConfigMap;

use super::{Evidence, Point, Verdict};
use crate::advice::page;
use crate::output::counted;

pub(super) fn check(evidence: &Evidence) -> Point {
    let status = evidence
        .kube_proxy
        .as_ref()
        .and_then(|set| set.status.as_ref());
    let ready = status.map_or(0, |status| status.number_ready);
    if ready == 0 {
        return Point {
            verdict: Verdict::Note,
            text: "no Pods of a DaemonSet kube-system/kube-proxy run".to_owned(),
            next: concat!(
                "if kube-proxy is started in another way (k3s, RKE2, GKE), see ",
                page!("migrate.md")
            ),
        };
    }
    let mode = evidence.kube_proxy_configuration.as_ref().and_then(mode_of);
    let mode = mode.map_or_else(
        || "; its mode is not known: no ConfigMap kube-system/kube-proxy with a KubeProxyConfiguration".to_owned(),
        |mode| format!(", in mode {mode}"),
    );
    let next = concat!(
        "`kubectl signpost config import` makes a profile of its configuration; then follow ",
        page!("migrate.md")
    );
    Point {
        verdict: Verdict::Note,
        text: format!("kube-proxy runs on {}{mode}", counted(ready, "node")),
        next,
    }
}

/// Returns the mode in a ConfigMap of the form that kubeadm writes; `None` if it has no
/// KubeProxyConfiguration.
fn mode_of(map: &ConfigMap) -> Option<String> {
    let texts = map.data.as_ref()?.values();
    let mut parsed =
        texts.filter_map(|text| serde_saphyr::from_str::<serde_json::Value>(text).ok());
    let configuration = parsed.find(|value| value["kind"] == "KubeProxyConfiguration")?;
    let mode = configuration["mode"]
        .as_str()
        .filter(|mode| !mode.is_empty());
    Some(mode.unwrap_or("iptables, the default").to_owned())
}
