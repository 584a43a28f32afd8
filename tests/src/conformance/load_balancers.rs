//! A router in front of the cluster that balances load, in the role of a cloud or a BGP router for
//! Services of type LoadBalancer.
//!
//! ```text
//!   client 198.51.100.1 on control -- route to 203.0.113.N --> each node that is healthy
//! ```
//!
//! A packet reaches a node with its original destination (`ipMode: VIP`) and source, and the proxy
//! there handles the rest. For a Service with a health-check node port, the router polls the nodes
//! there; for any other Service, all nodes count as healthy. The finalizer is that of
//! k8s.io/cloud-provider, service/helpers/helper.go.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Service;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::control_plane::client;
use crate::network::Namespace;
use crate::real_cluster::{self, RealCluster, lan};

/// The source address of clients on the control plane's machine for load balancers. It belongs to
/// no node's network, so that a test can check whether it was preserved.
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// The range of load balancer addresses.
const ADDRESSES: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(203, 0, 113, 0), 24);
/// The finalizer that keeps a Service until its load balancer is removed.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// The polling interval for Services and for the health of nodes.
const PERIOD: Duration = Duration::from_millis(500);
/// The timeout of a node's health check.
const HEALTH_DEADLINE: Duration = Duration::from_secs(1);

/// Provides load balancers until it is dropped.
#[derive(Debug)]
pub struct LoadBalancers {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The present state of the router.
struct Router {
    services: Client,
    network: Namespace,
    nodes: Vec<Ipv4Addr>,
    /// The nodes to which each address is routed.
    routes: BTreeMap<Ipv4Addr, BTreeSet<Ipv4Addr>>,
}

/// A load balancer requested by a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wish {
    /// The health-check node port; without one, all nodes count as healthy.
    health_check: Option<u16>,
    spread: Spread,
}

/// How the connections of one client are spread over the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spread {
    /// Each connection may go to any node.
    EveryNode,
    /// All connections go to one node, whose proxy provides session affinity: nodes do not share
    /// their choice of an endpoint.
    OneNode,
}

// === impl LoadBalancers ===

impl LoadBalancers {
    /// Starts to serve the Services of a cluster. Later errors are printed to standard error, and
    /// the failed step is retried.
    pub fn start(cluster: &RealCluster) -> Result<LoadBalancers> {
        let network = cluster.lan().control().clone();
        // Several connections of one client must reach several nodes.
        network.set_sysctls(&[("net/ipv4/fib_multipath_hash_policy", "1")])?;
        // Remove the routes of an earlier instance.
        network.configure(&format!(
            "addr replace {CLIENT}/32 dev lo\nlink set lo up\nroute flush root {ADDRESSES}\n"
        ))?;
        let mut nodes = Vec::new();
        for node in cluster.nodes() {
            let via = lan::CONTROL;
            let back = format!("route replace {CLIENT}/32 via {via}\n");
            node.namespace().configure(&back)?;
            if let [IpAddr::V4(address), _] = lan::node_addresses(node.number()) {
                nodes.push(address);
            }
        }
        let kubeconfig = real_cluster::kubeconfig(cluster)?;
        let ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ended);
        let thread = thread::spawn(move || {
            let inside = network.clone();
            let served = inside.enter(|| serve(&kubeconfig, network, nodes, &flag));
            if let Err(error) = served.and_then(|result| result) {
                eprintln!("load balancers: {error:#}");
            }
        });
        Ok(LoadBalancers {
            ended,
            thread: Some(thread),
        })
    }
}

impl Drop for LoadBalancers {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread has already reported its error.
            drop(thread.join());
        }
    }
}

fn serve(
    kubeconfig: &Path,
    network: Namespace,
    nodes: Vec<Ipv4Addr>,
    ended: &AtomicBool,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to prepare for connections")?;
    runtime.block_on(async {
        let mut router = Router {
            services: client(kubeconfig).await?,
            network,
            nodes,
            routes: BTreeMap::new(),
        };
        let mut reported = String::new();
        while !ended.load(Ordering::Relaxed) {
            let problem = router.look().await.err();
            let problem = problem.map_or_else(String::new, |error| format!("{error:#}"));
            if problem != reported && !problem.is_empty() {
                eprintln!("load balancers: {problem}");
            }
            reported = problem;
            tokio::time::sleep(PERIOD).await;
        }
        Ok(())
    })
}

// === impl Router ===

impl Router {
    /// Updates the load balancer of every Service to its present spec.
    async fn look(&mut self) -> Result<()> {
        let all = Api::<Service>::all(self.services.clone());
        let services = all.list(&ListParams::default()).await;
        let services = services.context("failed to list Services")?.items;
        let mut routes = BTreeMap::new();
        let mut taken: BTreeSet<Ipv4Addr> = services.iter().filter_map(address_of).collect();
        let mut granted = Vec::new();
        for service in &services {
            let Some(wish) = Wish::of(service) else {
                continue;
            };
            let mut nodes = match wish.health_check {
                None => self.nodes.iter().copied().collect(),
                Some(port) => self.observe_healthy(port).await,
            };
            if wish.spread == Spread::OneNode {
                // The router picks the same node for all clients, which is sufficient because there
                // is one client.
                nodes = nodes.pop_first().into_iter().collect();
            }
            let address = address_of(service).or_else(|| first_free(&taken));
            let address = address.context("all addresses of load balancers are taken")?;
            taken.insert(address);
            routes.insert(address, nodes);
            granted.push((service, address));
        }
        self.configure(routes)?;
        for (service, address) in granted {
            self.grant(service, address).await?;
        }
        for service in services
            .iter()
            .filter(|service| Wish::of(service).is_none())
        {
            self.withdraw(service).await?;
        }
        Ok(())
    }

    /// Returns the nodes that report an endpoint on this port.
    async fn observe_healthy(&self, port: u16) -> BTreeSet<Ipv4Addr> {
        let mut healthy = BTreeSet::new();
        for node in &self.nodes {
            let asked = timeout(HEALTH_DEADLINE, ask_for_health(*node, port)).await;
            // A node that does not answer is not healthy.
            if matches!(asked, Ok(Ok(true))) {
                healthy.insert(*node);
            }
        }
        healthy
    }

    /// Replaces the routes by the given ones.
    fn configure(&mut self, routes: BTreeMap<Ipv4Addr, BTreeSet<Ipv4Addr>>) -> Result<()> {
        let mut lines = String::new();
        for (address, nodes) in &routes {
            if self.routes.get(address) == Some(nodes) {
                continue;
            }
            if nodes.is_empty() {
                lines.push_str(&format!("route replace unreachable {address}/32\n"));
                continue;
            }
            let hops = nodes.iter().map(|node| format!(" nexthop via {node}"));
            let hops: String = hops.collect();
            lines.push_str(&format!("route replace {address}/32 src {CLIENT}{hops}\n"));
        }
        for address in self
            .routes
            .keys()
            .filter(|address| !routes.contains_key(address))
        {
            // Not `del`, which fails if an earlier attempt was interrupted after it.
            lines.push_str(&format!("route flush {address}/32\n"));
        }
        if !lines.is_empty() {
            self.network
                .configure(&lines)
                .context("failed to set routes")?;
        }
        self.routes = routes;
        Ok(())
    }

    /// Writes the address of its load balancer to a Service that does not have it.
    async fn grant(&self, service: &Service, address: Ipv4Addr) -> Result<()> {
        if !has_finalizer(service) {
            let mut finalizers = service.finalizers().to_vec();
            finalizers.push(FINALIZER.to_owned());
            self.set_finalizers(service, finalizers).await?;
        }
        if address_of(service) == Some(address) {
            return Ok(());
        }
        let ingress = json!([{"ip": address, "ipMode": "VIP"}]);
        self.set_ingress(service, ingress).await
    }

    /// Removes the load balancer from the status of a Service that has one.
    async fn withdraw(&self, service: &Service) -> Result<()> {
        if !has_finalizer(service) {
            return Ok(());
        }
        if address_of(service).is_some() {
            self.set_ingress(service, Value::Null).await?;
        }
        let others = service
            .finalizers()
            .iter()
            .filter(|name| *name != FINALIZER);
        self.set_finalizers(service, others.cloned().collect())
            .await
    }

    async fn set_finalizers(&self, service: &Service, finalizers: Vec<String>) -> Result<()> {
        // With the resource version, so that a concurrently added finalizer is not lost.
        let version = service.resource_version();
        let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}});
        let patched = self
            .api(service)
            .patch(
                &service.name_any(),
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await;
        gone_or(patched.map(drop), service)
    }

    async fn set_ingress(&self, service: &Service, ingress: Value) -> Result<()> {
        let patch = json!({"status": {"loadBalancer": {"ingress": ingress}}});
        let patched = self
            .api(service)
            .patch_status(
                &service.name_any(),
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await;
        gone_or(patched.map(drop), service)
    }

    fn api(&self, service: &Service) -> Api<Service> {
        let namespace = service.namespace().unwrap_or_default();
        Api::namespaced(self.services.clone(), &namespace)
    }
}

// === impl Wish ===

impl Wish {
    fn of(service: &Service) -> Option<Wish> {
        let spec = service.spec.as_ref()?;
        let is_served = spec.type_.as_deref() == Some("LoadBalancer")
            && spec.load_balancer_class.is_none()
            && service.metadata.deletion_timestamp.is_none();
        let port = spec.health_check_node_port.filter(|port| *port != 0);
        is_served.then_some(Wish {
            health_check: port.and_then(|port| u16::try_from(port).ok()),
            spread: match spec.session_affinity.as_deref() {
                Some("ClientIP") => Spread::OneNode,
                _ => Spread::EveryNode,
            },
        })
    }
}

/// Treats a write as successful if the Service was deleted or changed meanwhile: the next poll
/// handles that.
fn gone_or(written: kube::Result<()>, service: &Service) -> Result<()> {
    match written {
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        written => written.with_context(|| format!("failed to write {}", service.name_any())),
    }
}

fn has_finalizer(service: &Service) -> bool {
    service.finalizers().iter().any(|name| name == FINALIZER)
}

/// Returns the address in a Service's status.
fn address_of(service: &Service) -> Option<Ipv4Addr> {
    let balancer = service.status.as_ref()?.load_balancer.as_ref()?;
    let ingress = balancer.ingress.as_ref()?.first()?;
    ingress.ip.as_ref()?.parse().ok()
}

fn first_free(taken: &BTreeSet<Ipv4Addr>) -> Option<Ipv4Addr> {
    ADDRESSES.hosts().find(|address| !taken.contains(address))
}

async fn ask_for_health(node: Ipv4Addr, port: u16) -> Result<bool> {
    let mut stream = TcpStream::connect(SocketAddr::new(node.into(), port)).await?;
    let request = format!("GET / HTTP/1.1\r\nHost: {node}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer.starts_with(b"HTTP/1.1 200 "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(object: Value) -> Service {
        serde_json::from_value(object).expect("it is a Service")
    }

    #[test]
    fn services_get_what_they_ask_for() {
        let wish = |spec: Value| Wish::of(&service(json!({"metadata": {}, "spec": spec})));
        assert_eq!(wish(json!({"type": "ClusterIP"})), None);
        let elsewhere = json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/other"});
        assert_eq!(wish(elsewhere), None);
        let usual = Wish {
            health_check: None,
            spread: Spread::EveryNode,
        };
        assert_eq!(wish(json!({"type": "LoadBalancer"})), Some(usual));
        let local = json!({
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
        });
        let health_check = Some(32000);
        assert_eq!(
            wish(local),
            Some(Wish {
                health_check,
                ..usual
            })
        );
        let sticky = json!({"type": "LoadBalancer", "sessionAffinity": "ClientIP"});
        let spread = Spread::OneNode;
        assert_eq!(wish(sticky), Some(Wish { spread, ..usual }));
    }

    #[test]
    fn a_service_that_is_deleted_asks_for_nothing() {
        let deleted = service(json!({
            "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FINALIZER]},
            "spec": {"type": "LoadBalancer"},
        }));
        assert_eq!(Wish::of(&deleted), None);
        assert!(has_finalizer(&deleted));
    }

    #[test]
    fn no_two_services_get_one_address() {
        let first = first_free(&BTreeSet::new()).expect("there are addresses");
        let second = first_free(&BTreeSet::from([first])).expect("there are more");
        assert_ne!(first, second);
    }
}
