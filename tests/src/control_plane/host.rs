//! A control plane on the host of another kernel, in place of one inside.
//!
//! Its programs take seconds to start on the host, and minutes where each instruction is emulated.
//! `tests/kernel-rig/run` starts the kernel with a network card, whose other end is in the network
//! namespace in which the API server listens: qemu, or a tap device.
//!
//! ```text
//!  nodes --veth--> namespace of the control plane --card--> other end --> kube-apiserver
//!  '---------------- the other kernel ------------------'   '--------- host ---------'
//! ```

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::setting::Setting;
use crate::network::Namespace;

/// The environment variable with the folder of the host's control plane. Its API server has the
/// address that the test in the machine asks for.
pub const FOLDER_ON_HOST: &str = "SIGNPOST_TESTS_CONTROL_PLANE";

/// The network card, in the namespace of the machine's first process, its address, and that of its
/// other end, which are those of qemu (`-netdev user`).
const CARD: &str = "host0";
const OWN: &str = "10.0.2.15";
const HOST: &str = "10.0.2.2";

/// Returns the folder of the host's control plane, if this is a machine that has one.
pub(super) fn folder() -> Option<PathBuf> {
    env::var_os(FOLDER_ON_HOST).map(PathBuf::from)
}

/// Moves the network card into the namespace of the control plane, which forwards to it what nodes
/// send to the API server.
pub(super) fn connect(setting: &Setting) -> Result<()> {
    for user in &setting.options.users {
        let known = setting.folder.kubeconfig(&user.name).exists();
        ensure!(known, "the host's control plane knows no {}", user.name);
    }
    let control = setting.options.network.as_ref();
    let control = control.context("the host's API server has an address that is not loopback")?;
    // `ip -n` takes no path.
    let mut ip = Namespace::of_process(1).command("ip");
    ip.args(["link", "set", CARD, "netns", control.name()]);
    ensure!(ip.status()?.success(), "{ip:?} failed");
    let address = setting.address.ip();
    // Nodes look for the address on their links, where this namespace answers in its place.
    control.configure(&format!(
        "addr del {address}/32 dev lo\n\
         link set {CARD} up\n\
         addr add {OWN}/24 dev {CARD}\n\
         route add default via {HOST}\n"
    ))?;
    control.set_sysctls(&[
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv4/conf/all/proxy_arp", "1"),
    ])?;
    // The host knows one address behind the card.
    control.nft(&[&format!(
        "table ip control {{
            chain postrouting {{
                type nat hook postrouting priority srcnat;
                oifname {CARD} masquerade
            }}
        }}"
    )])?;
    Ok(())
}
