//! A host port of a CNI plugin has the same number as a Service's port. Failure story T92.

use anyhow::{Context, Result, ensure};
use backend::Backend;
use dataplane::{Packet, Port};
use tests::network::{Namespace, start_server};
use tests::scenario::{RealKernel, Script};
use xtables::Variant;

use crate::stage::{connect, packets, play};

pub(crate) const STORY: &str = r#"
apply   web slice
packet  outside 203.0.113.2 -> node:8443/tcp    = 10.0.2.7:8080 masqueraded
packet  pod 10.0.1.9 -> node:8443/tcp           = 10.0.2.7:8080 masqueraded
packet  node 192.168.0.1 -> node:8443/tcp       = 10.0.2.7:8080 masqueraded
packet  pod 10.0.1.9 -> 10.96.0.10:8443/tcp     = 10.0.2.7:8080
packet  node 192.168.0.1 -> 10.96.0.10:8443/tcp = 10.0.2.7:8080
packet  pod 10.0.1.8 -> 10.96.0.10:8443/tcp     = 10.0.2.7:8080

-- web --
kind: Service
metadata: {namespace: shop, name: web}
spec: {type: NodePort, clusterIP: 10.96.0.10, ports: [{port: 8443, nodePort: 8443}]}
-- slice --
kind: EndpointSlice
metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [10.0.2.7], nodeName: node-2}]
"#;

/// The destination of host ports: a pod that belongs to no Service.
const MAPPED: &str = "10.0.1.8:9090";
/// A host port whose number no Service uses.
const OF_NO_SERVICE: u16 = 8444;

/// How a port map is written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Written {
    /// In a separate table with the priority of DNAT: backend `nftables` of the CNI plugin portmap.
    InItsOwnTable,
    /// After the other rules of table nat: backend `iptables` of the same plugin.
    With(Variant),
}

/// The Service must answer on its ports, and the host port on the other ones, independently of
/// whether the port map was written before or after the rules of Services.
pub(crate) fn services_come_first<B: Backend + Send>(
    build: impl Fn(&Script) -> Result<RealKernel<B>>,
    written: Written,
) -> Result<()> {
    let before = |script: &Script| {
        let kernel = build(script)?;
        map_ports(kernel.node()?, written)?;
        Ok(kernel)
    };
    let (kernel, script) = play(STORY, before)?;
    asked(kernel, &script).with_context(|| format!("{written:?}, attached before"))?;

    let (kernel, script) = play(STORY, build)?;
    map_ports(kernel.node()?, written)?;
    asked(kernel, &script).with_context(|| format!("{written:?}, attached after"))
}

fn asked<B: Backend + Send>(mut kernel: RealKernel<B>, script: &Script) -> Result<()> {
    let server = start_server(kernel.pod(1, 8)?, "mapped", &[MAPPED.parse()?])?;
    let packets = packets(script);
    for packet in &packets {
        let outcome = connect(&mut kernel, packet)?;
        let is_served = outcome.starts_with("10.0.2.7:8080");
        ensure!(is_served, "{packet} = {outcome}: not the Service");
    }
    for packet in packets.iter().take(2) {
        let packet = Packet {
            port: Port::new(OF_NO_SERVICE).context("it is a port")?,
            ..packet.clone()
        };
        let outcome = connect(&mut kernel, &packet)?;
        let is_mapped = outcome.starts_with(MAPPED);
        ensure!(is_mapped, "{packet} = {outcome}: not the host port");
    }
    drop(server);
    Ok(())
}

/// Creates a host port with the number of the Service's ports, and another one.
fn map_ports(node: &Namespace, written: Written) -> Result<()> {
    for port in [8443, OF_NO_SERVICE] {
        match written {
            Written::InItsOwnTable => {
                // A non-local destination is mapped too, except for packets from the node itself.
                let table = format!(
                    "table ip cni_hostport {{ \
                        chain hostports {{ tcp dport {port} dnat to {MAPPED}; }}; \
                        chain prerouting {{ type nat hook prerouting priority dstnat; \
                            tcp dport {port} jump hostports; }}; \
                        chain output {{ type nat hook output priority -100; \
                            tcp dport {port} fib daddr type local jump hostports; }}; }}"
                );
                let _ = node.nft(&[&table])?;
            }
            Written::With(variant) => {
                let program = match variant {
                    Variant::NfTables => "iptables-nft",
                    Variant::Legacy => "iptables-legacy",
                };
                let local = "-m addrtype --dst-type LOCAL -p tcp --dport";
                for chain in ["PREROUTING", "OUTPUT"] {
                    let rule = format!(
                        "-w -t nat -A {chain} {local} {port} -j DNAT --to-destination {MAPPED}"
                    );
                    let output = node.command(program).args(rule.split(' ')).output()?;
                    let errors = String::from_utf8_lossy(&output.stderr);
                    ensure!(output.status.success(), "{program} {rule}: {errors}");
                }
            }
        }
    }
    Ok(())
}

// === impl Written ===

impl Written {
    /// The name of the test.
    pub(crate) fn test(self) -> &'static str {
        match self {
            Written::InItsOwnTable => {
                "t92_a_service_comes_before_a_host_port_in_a_table_of_its_own"
            }
            Written::With(Variant::NfTables) => {
                "t92_a_service_comes_before_a_host_port_of_iptables_nft"
            }
            Written::With(Variant::Legacy) => {
                "t92_a_service_comes_before_a_host_port_of_iptables_legacy"
            }
        }
    }
}
