//! The manifests of the agent: the example with more Services, in one mode.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use crds::profile::mode::Mode;
use dataplane::Family;
use testkit::address_plan as addresses;

use crate::node::{Place, SERVING, Setting};

/// The folder of the example.
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/demo");
/// The number of additional Services: enough for branches in the address tree of iptables.
const OTHERS: u8 = 40;

/// Returns the folder of the manifests.
pub(crate) fn folder(inside: &Path) -> PathBuf {
    inside.join("manifests")
}

/// Writes the example with the mode of `setting` and more Services.
pub(crate) fn write(inside: &Path, setting: &Setting) -> Result<PathBuf> {
    let copy = folder(inside);
    fs::create_dir(&copy)?;
    for entry in fs::read_dir(EXAMPLE)? {
        let entry = entry?;
        let mut text = fs::read_to_string(entry.path())?;
        if entry.file_name() == "profile.yaml" {
            for (there, expected) in [
                (
                    "syncPeriod: 30s",
                    format!("syncPeriod: {}", setting.sync_period),
                ),
                ("mode: nftables ", format!("mode: {} ", mode(setting.place))),
            ] {
                ensure!(text.contains(there), "the example has changed");
                text = text.replacen(there, &expected, 1);
            }
        }
        fs::write(copy.join(entry.file_name()), text)?;
    }
    fs::write(copy.join("others.yaml"), others()?)?;
    Ok(copy)
}

/// Returns the mode for a place.
pub(crate) fn mode(place: Place) -> Mode {
    match place {
        Place::Nftables => Mode::Nftables,
        Place::Iptables(_) => Mode::Iptables,
        Place::Ipvs => Mode::Ipvs,
    }
}

/// Changes the mode in the profile to that of another place.
pub(crate) fn commit_mode(inside: &Path, place: Place) -> Result<()> {
    let profile = folder(inside).join("profile.yaml");
    let text = fs::read_to_string(&profile)?;
    let lines = text.lines().map(|line| match line.starts_with("  mode: ") {
        true => format!("  mode: {}", mode(place)),
        false => line.to_owned(),
    });
    let new = inside.join("profile.yaml");
    fs::write(&new, lines.collect::<Vec<_>>().join("\n"))?;
    Ok(fs::rename(new, profile)?)
}

/// Returns the additional Services.
fn others() -> Result<String> {
    let mut text = String::new();
    for number in 0..OTHERS {
        let [ipv4, ipv6] = Family::ALL.map(|family| addresses::cluster_ip(100 + number, family));
        let endpoint = addresses::pod_address(1, SERVING[0], Family::Ipv4);
        write!(
            text,
            r#"---
apiVersion: v1
kind: Service
metadata: {{namespace: others, name: other-{number}}}
spec:
  ipFamilies: [IPv4, IPv6]
  clusterIP: {ipv4}
  clusterIPs: [{ipv4}, "{ipv6}"]
  ports: [{{name: http, protocol: TCP, port: 80}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{namespace: others, name: other-{number}, labels: {{kubernetes.io/service-name: other-{number}}}}}
addressType: IPv4
ports: [{{name: http, protocol: TCP, port: 8080}}]
endpoints: [{{addresses: [{endpoint}], nodeName: node-1, conditions: {{ready: true}}}}]
"#
        )?;
    }
    Ok(text)
}
