//! Whether this kernel has IPVS.

use anyhow::{Context, Result};
use demo::network::Network;
use netlink::ipvs::{IpvsSocket, SchedulerName, SchedulerSupport};
use netlink::nf_tables::Family;

/// Returns why virtual servers with these schedulers cannot be tested; `None` if they can. Requests
/// one scheduler after another: if two processes load a module concurrently, the rig's busybox
/// reports it to one of them as loaded before it is.
pub fn find_ipvs(schedulers: &[&str]) -> Result<Option<String>> {
    let mut network = Network::new()?;
    let [namespace] = network.add_namespaces(["ipvs"])?;
    let mut socket = namespace.enter(|| IpvsSocket::open(backend_ipvs::MARKS))??;
    for name in schedulers {
        let scheduler = SchedulerName::new(name);
        let scheduler = scheduler.with_context(|| format!("{name} is no name of a scheduler"))?;
        match socket.check_scheduler(Family::Ipv4, &scheduler) {
            Ok(SchedulerSupport::Present) => {}
            Ok(SchedulerSupport::Missing) => {
                let module = scheduler.module();
                return Ok(Some(format!("the kernel has no {module}")));
            }
            Err(error) => return Ok(Some(error.to_string())),
        }
    }
    Ok(None)
}
