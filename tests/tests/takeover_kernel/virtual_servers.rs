//! What kube-proxy's mode ipvs has on a node beside its chains: virtual servers, sets, a device.

use anyhow::Result;
use netlink::ip_set::IpSetSocket;
use netlink::ipvs::AddressedServerSocket;
use netlink::link::LinkSocket;
use tests::network::Namespace;

/// The device that has the addresses of virtual servers.
const DEVICE: &str = "kube-ipvs0";

/// Removes the device, every virtual server selected by address, and every set.
pub(crate) fn clear(node: &Namespace) -> Result<()> {
    node.enter(|| {
        let mut links = LinkSocket::open()?;
        if let Some(link) = links.observe(DEVICE)? {
            links.commit_removal(link.index)?;
        }
        let mut servers = AddressedServerSocket::open()?;
        for server in servers.observe()? {
            servers.commit_removal(server)?;
        }
        let mut sets = IpSetSocket::open()?;
        for name in sets.observe_names()? {
            sets.commit_removal(&name)?;
        }
        Ok(())
    })?
}

/// Lists the virtual servers selected by address, one in each line, as `ipvsadm` does.
pub(crate) fn list(node: &Namespace) -> Result<String> {
    let servers =
        node.enter(|| Ok::<_, anyhow::Error>(AddressedServerSocket::open()?.observe()?))??;
    Ok(servers.iter().map(|server| format!("{server}\n")).collect())
}

/// Lists the names of all sets, one in each line.
pub(crate) fn list_sets(node: &Namespace) -> Result<String> {
    let names = node.enter(|| Ok::<_, anyhow::Error>(IpSetSocket::open()?.observe_names()?))??;
    Ok(names.iter().map(|name| format!("{name}\n")).collect())
}

/// Lists the connections of all virtual servers, for error messages.
pub(crate) fn list_connections(node: &Namespace) -> Result<String> {
    let file = "/proc/thread-self/net/ip_vs_conn";
    Ok(node.enter(|| std::fs::read_to_string(file))??)
}

/// Whether the node has the device.
pub(crate) fn has_device(node: &Namespace) -> Result<bool> {
    node.enter(|| Ok(LinkSocket::open()?.observe(DEVICE)?.is_some()))?
}
