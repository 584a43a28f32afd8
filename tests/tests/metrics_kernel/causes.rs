//! The events that change each metric.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::condition::IPV4_PROGRAMMED;
use crds::condition::reason::XTABLES_LOCK_HELD;
use dataplane::{Family, Protocol};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use testkit::address_plan as addresses;
use tests::network::{Outcome, Probe, Process, probe};

use crate::manifests::{
    self, DEAD_NODE_PORT, NODE_PORT, endpoints, profile, service, triggered, web,
};
use crate::stage::{METRICS, SERVED, Stage};

/// An event and the metrics that it changes.
pub(crate) struct Cause {
    pub(crate) what: &'static str,
    pub(crate) happens: fn(&mut Stage) -> Result<()>,
    pub(crate) moves: &'static [&'static str],
}

/// The events in order, on one node, after its agent has become ready.
pub(crate) const CAUSES: &[Cause] = &[
    Cause {
        what: "the agent starts",
        happens: |_| Ok(()),
        moves: &[
            "signpost_build_info",
            "process_cpu_seconds_total",
            "process_resident_memory_bytes",
            "process_virtual_memory_bytes",
            "process_start_time_seconds",
            "process_open_fds",
            "process_max_fds",
            "signpost_events_total",
            "signpost_conntrack_entries",
            "signpost_conntrack_limit",
            "signpost_services",
            "signpost_node_condition",
            "signpost_node_mode",
            "signpost_node_configuration",
            "signpost_node_serving",
            "signpost_endpoints",
            "signpost_elements",
            "signpost_elements_written_total",
            "signpost_syncs_total",
            "signpost_phase_duration_seconds",
            "kubeproxy_sync_proxy_rules_duration_seconds",
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
            "kubeproxy_conntrack_reconciler_sync_duration_seconds",
        ],
    },
    Cause {
        what: "a second goes by",
        happens: |_| Ok(()),
        moves: &["signpost_kernel_compared_timestamp_seconds"],
    },
    Cause {
        what: "a Service and endpoints come",
        happens: |stage| {
            let slices = endpoints("far", &[None, None], SERVED, "TCP");
            stage.apply("far-endpoints", &triggered(slices))?;
            stage.apply("far", &service("far", 11, &json!({})))
        },
        moves: &[
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
            "kubeproxy_sync_proxy_rules_service_changes_total",
            "kubeproxy_sync_proxy_rules_endpoint_changes_total",
            "kubeproxy_network_programming_duration_seconds",
        ],
    },
    Cause {
        what: "a pod connects to a Service, at its port and at another",
        happens: |stage| {
            for (port, expected) in [(80, "an answer"), (81, "a refusal")] {
                let question = Probe {
                    protocol: Protocol::Tcp,
                    source: None,
                    destination: SocketAddr::new(addresses::cluster_ip(10, Family::Ipv4), port),
                    deadline: Duration::from_secs(1),
                };
                stage.wait_until(expected, || {
                    let outcomes = probe(stage.client()?, &question, 1)?;
                    Ok(match outcomes[..] {
                        [Outcome::Answered { .. }] => port == 80,
                        [Outcome::Refused] => port == 81,
                        _ => false,
                    })
                })?;
            }
            Ok(())
        },
        moves: &[
            "signpost_new_connections_total",
            "signpost_refused_packets_total",
        ],
    },
    Cause {
        what: "changes come faster than the kernel may be written to",
        happens: |stage| {
            stage.apply(
                "profile",
                &profile(&json!({"syncPeriod": "3s", "minSyncPeriod": "2s"})),
            )?;
            for number in 20..23 {
                let name = format!("more-{number}");
                let slices = endpoints(&name, &[None], SERVED, "TCP");
                stage.apply(&format!("{name}-endpoints"), &slices)?;
                stage.apply(&name, &service(&name, number, &json!({})))?;
            }
            Ok(())
        },
        moves: &[
            "kubeproxy_sync_proxy_rules_service_changes_pending",
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
        ],
    },
    Cause {
        what: "a client finds no room for session affinity",
        happens: |stage| {
            let sticky = json!({"sessionAffinity": "ClientIP"});
            stage.apply("sticky", &service("sticky", 13, &sticky))?;
            // In the kernel's own format.
            stage.nft(
                "add element ip signpost crowded { 10.96.0.13 . tcp . 80 timeout 10m : 8080 . 0x0 }",
            )
        },
        moves: &["signpost_affinity_exhausted_services"],
    },
    Cause {
        what: "another program deletes a table",
        happens: |stage| {
            // The next periodic check would find that the kernel agrees again. It must come later
            // than all requests here.
            stage.apply("profile", &profile(&json!({"syncPeriod": "30s"})))?;
            stage.wait_until("the profile to be in force", || {
                let configuration = stage.ask(&format!("{METRICS}/configz"))?.body;
                let configuration: Value = serde_json::from_str(&configuration)?;
                let period = &configuration["kubeproxy.config.k8s.io"]["nftables"]["syncPeriod"];
                Ok(period == "30s")
            })?;
            stage.nft("delete table ip signpost")
        },
        moves: &[
            "signpost_drift_total",
            "signpost_drift_repair_seconds",
            "signpost_kernel_agrees",
        ],
    },
    Cause {
        what: "another program owns a table of the name of Signpost's",
        happens: |stage| {
            let mut command = stage.node()?.command("nft");
            command.arg("-i");
            let mut owner = Process::start("nft", command)?;
            owner
                .write_line("delete table ip6 signpost; add table ip6 signpost { flags owner; }")?;
            let log = "IPv6 sync";
            stage.wait_until("a sync to fail", || {
                Ok(stage
                    .agent
                    .log()
                    .lines()
                    .any(|line| line.contains(log) && line.contains("permit")))
            })?;
            // The table is removed with its owner.
            drop(owner);
            Ok(())
        },
        // The next attempt is at the periodic check.
        moves: &[
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
            "signpost_failed_syncs",
        ],
    },
    Cause {
        what: "a policy is Local and the endpoints are elsewhere",
        happens: |stage| {
            let local = json!({"internalTrafficPolicy": "Local"});
            stage.apply("far", &service("far", 11, &local))
        },
        moves: &["kubeproxy_sync_proxy_rules_no_local_endpoints_total"],
    },
    Cause {
        what: "a Service asks for what cannot be",
        happens: |stage| {
            let odd = json!({"externalIPs": ["not-an-address"]});
            stage.apply("odd", &service("odd", 12, &odd))
        },
        moves: &["signpost_rejections"],
    },
    Cause {
        what: "load balancers and monitors ask",
        happens: |stage| {
            for path in ["/healthz", "/livez"] {
                stage.ask(&format!("127.0.0.1:10256{path}"))?;
            }
            Ok(())
        },
        moves: &[
            "kubeproxy_proxy_healthz_total",
            "kubeproxy_proxy_livez_total",
        ],
    },
    Cause {
        what: "node ports are relayed on localhost, and one cannot be",
        happens: |stage| {
            let taken = SocketAddr::from((Ipv4Addr::LOCALHOST, NODE_PORT));
            let taken = stage.node()?.enter(|| TcpListener::bind(taken))?;
            stage.taken.push(taken.context("the port is free")?);
            let ports = json!([{
                "name": "http", "protocol": "TCP", "port": 80, "nodePort": DEAD_NODE_PORT,
            }]);
            let dead = json!({"type": "NodePort", "ports": ports});
            stage.apply("dead", &service("dead", 13, &dead))?;
            let slices = endpoints("dead", &[Some(addresses::NODE)], 9, "TCP");
            stage.apply("dead-endpoints", &slices)?;
            let relayed = json!({"nodePorts": {"localhost": "userspace"}});
            stage.apply("profile", &profile(&relayed))
        },
        moves: &[
            "kubeproxy_nftables_localhost_nodeport_listeners",
            "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
        ],
    },
    Cause {
        what: "a relayed connection finds no server",
        happens: |stage| {
            let dead = SocketAddr::from((Ipv4Addr::LOCALHOST, DEAD_NODE_PORT));
            stage.wait_until("the port to be relayed", || {
                Ok(stage.node()?.enter(|| TcpStream::connect(dead))?.is_ok())
            })
        },
        moves: &["kubeproxy_nftables_localhost_nodeport_rejected_packets_total"],
    },
    Cause {
        what: "the endpoint of a UDP client goes",
        happens: |stage| {
            let ports = json!([{"name": "http", "protocol": "UDP", "port": 53}]);
            let mut dns = service("dns", 14, &json!({}));
            dns["spec"]["ports"] = ports;
            stage.apply("dns", &dns)?;
            let slices = endpoints("dns", &[Some(addresses::NODE)], SERVED, "UDP");
            stage.apply("dns-endpoints", &slices)?;
            let question = Probe {
                protocol: Protocol::Udp,
                source: None,
                destination: SocketAddr::new(addresses::cluster_ip(14, Family::Ipv4), 53),
                deadline: Duration::from_secs(1),
            };
            stage.wait_until("an answer", || {
                let outcomes = probe(stage.client()?, &question, 1)?;
                Ok(matches!(outcomes[..], [Outcome::Answered { .. }]))
            })?;
            stage.apply("dns-endpoints", &endpoints("dns", &[None], SERVED, "UDP"))
        },
        moves: &["kubeproxy_conntrack_reconciler_deleted_entries_total"],
    },
    Cause {
        what: "a profile asks for mode iptables where others use the legacy variant",
        happens: |stage| {
            stage.use_legacy_iptables()?;
            let iptables = json!({"mode": "iptables", "iptables": {"localhostNodePorts": false}});
            stage.apply("profile", &profile(&iptables))
        },
        moves: &[
            "kubeproxy_sync_proxy_rules_iptables_total",
            "kubeproxy_sync_proxy_rules_iptables_last",
            "signpost_xtables_lock_wait_seconds",
        ],
    },
    Cause {
        what: "another program holds the lock of iptables when endpoints go",
        happens: |stage| {
            let lock = File::open(stage.xtables_lock()?).context("the agent has made it")?;
            flock(&lock, FlockOperation::LockExclusive)?;
            stage.apply("web-endpoints", &endpoints("web", &[None], SERVED, "TCP"))?;
            stage.wait_until("a sync to fail", || {
                let condition = stage.agent.condition(IPV4_PROGRAMMED)?;
                Ok(condition.is_some_and(|said| said.reason == XTABLES_LOCK_HELD.name))
            })
        },
        moves: &[
            "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
            "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
        ],
    },
    Cause {
        what: "the directory of manifests is not there",
        happens: |stage| {
            let [manifests, elsewhere] = stage.directories();
            fs::rename(manifests, elsewhere)?;
            Ok(())
        },
        moves: &["signpost_source_stale_seconds"],
    },
    Cause {
        what: "an API server does not answer",
        happens: |stage| {
            stage.follow_missing_api_server()?;
            stage.wait_until("the other agent to answer", || {
                let answer = stage.ask(&format!("{METRICS}/livez"));
                Ok(answer.is_ok_and(|answer| answer.status == 200))
            })
        },
        moves: &[
            "rest_client_requests_total",
            "rest_client_request_duration_seconds",
        ],
    },
];

/// A metric that no test can change here.
pub(crate) struct Unmoved {
    pub(crate) name: &'static str,
    /// Its labels. A scrape has them only if it has a series.
    pub(crate) labels: &'static [&'static str],
}

/// The metrics that no test can change here: the limit of the table belongs to the machine, and no
/// namespace may lower it. T153 fills the table and moves `drop`; T178 moves those of mode ipvs, on
/// a kernel that has it. A unit test of the agent compares the labels of these with the page.
pub(crate) const UNMOVED: &[Unmoved] = &[
    Unmoved {
        name: "signpost_conntrack_insert_failed_total",
        labels: &[],
    },
    Unmoved {
        name: "signpost_conntrack_drop_total",
        labels: &[],
    },
    Unmoved {
        name: "signpost_conntrack_early_drop_total",
        labels: &[],
    },
    Unmoved {
        name: "signpost_ipvs_new_connections_total",
        labels: &[],
    },
    Unmoved {
        name: "signpost_ipvs_connections",
        labels: &["ip_family", "state"],
    },
    Unmoved {
        name: "signpost_ipvs_endpoint_connections",
        labels: &[
            "endpoint",
            "namespace",
            "port",
            "protocol",
            "service",
            "state",
        ],
    },
];

/// Checks the health check servers at the addresses that load balancers use.
pub(crate) fn health_checks() -> Result<()> {
    let stage = Stage::start()?;
    let asked = |family: Family| {
        [
            addresses::node_address(1, family),
            addresses::load_balancer_ip(10, family),
        ]
    };
    // Like the agents of balancers that preserve the destination: the address belongs to the node.
    for family in Family::ALL {
        let [_, balancer] = asked(family);
        stage
            .node()?
            .configure(&format!("addr add {balancer} dev lo"))?;
    }
    let port = manifests::HEALTH_CHECK;
    let expect = |what: &str, status: u16, weight: &str| -> Result<()> {
        for address in Family::ALL.into_iter().flat_map(asked) {
            stage.wait_until(&format!("{status} at {address} {what}"), || {
                let answer = stage.ask_from_outside(address, port, "/");
                Ok(answer.is_ok_and(|answer| {
                    answer.status == status && answer.weight.as_deref() == Some(weight)
                }))
            })?;
        }
        Ok(())
    };
    expect("with a pod on this node", 200, "1")?;
    stage.apply("web-endpoints", &endpoints("web", &[None], SERVED, "TCP"))?;
    expect("when the last pod of this node is gone", 503, "0")?;
    let here = endpoints("web", &[Some(addresses::NODE)], SERVED, "TCP");
    stage.apply("web-endpoints", &here)?;
    expect("when there is one again", 200, "1")?;

    let node = addresses::node_address(1, Family::Ipv4);
    let healthz = |status: u16| {
        stage.wait_until(&format!("/healthz to be {status}"), || {
            let answer = stage.ask_from_outside(node, 10256, "/healthz");
            Ok(answer.is_ok_and(|answer| answer.status == status))
        })
    };
    healthz(200)?;
    let taint = json!({"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"});
    stage.apply(
        "node",
        &manifests::node(&json!({"spec": {"taints": [taint]}})),
    )?;
    healthz(503)?;
    expect("on a node that is about to go", 200, "1")?;
    stage.apply("node", &manifests::node(&json!({})))?;
    healthz(200)?;

    let mut moved = web();
    moved["spec"]["healthCheckNodePort"] = json!(port + 1);
    stage.apply("web", &moved)?;
    stage.wait_until("the other port", || {
        Ok(stage.ask_from_outside(node, port + 1, "/").is_ok())
    })?;
    stage.wait_until("the port before to be closed", || {
        Ok(stage.ask_from_outside(node, port, "/").is_err())
    })
}

/// Checks the settings of a profile that concern the process itself.
pub(crate) fn process_settings() -> Result<()> {
    let stage = Stage::start()?;
    let answers = |place: &str| {
        let answer = stage.ask(place);
        answer.is_ok_and(|answer| answer.status == 200)
    };
    ensure!(stage.ask(&format!("{METRICS}/healthz"))?.body == "ok");
    ensure!(stage.ask(&format!("{METRICS}/proxyMode"))?.body == "nftables");
    let moved = json!({
        "healthzBindAddress": "127.0.0.1:20256", "metricsBindAddress": "127.0.0.1:20249",
        "oomScoreAdj": 500,
    });
    stage.apply("profile", &profile(&moved))?;
    stage.wait_until("the servers to move", || {
        Ok(answers("127.0.0.1:20256/healthz") && answers("127.0.0.1:20249/metrics"))
    })?;
    for place in ["127.0.0.1:10256/healthz", "127.0.0.1:10249/metrics"] {
        ensure!(!answers(place), "{place} still answers");
    }
    stage.wait_until("oomScoreAdj to be set", || {
        let file = format!("/proc/{}/oom_score_adj", stage.agent.process_id());
        Ok(fs::read_to_string(file)?.trim() == "500")
    })?;
    let document = stage.ask("127.0.0.1:20249/configz")?.body;
    let document: serde_json::Value = serde_json::from_str(&document)?;
    let config = &document["kubeproxy.config.k8s.io"];
    ensure!(
        config["healthzBindAddress"] == "127.0.0.1:20256",
        "{config}"
    );
    ensure!(config["nftables"]["syncPeriod"] == "1s", "{config}");

    // On a non-loopback address the metrics are public, but names of Services only for the node
    // itself.
    let open = json!({"metricsBindAddress": "0.0.0.0:20249"});
    stage.apply("profile", &profile(&open))?;
    let node = addresses::node_address(1, Family::Ipv4);
    let asked = |port, path: &str| {
        let answer = stage.ask_from_outside(node, port, path);
        answer.map(|answer| answer.status)
    };
    stage.wait_until("metrics to be served everywhere", || {
        Ok(asked(20249, "/metrics").is_ok_and(|status| status == 200))
    })?;
    for (path, status) in [
        ("/debug/dataplane", 403),
        ("/debug/explain?about=10.96.0.10", 403),
        ("/configz", 403),
        ("/proxyMode", 200),
    ] {
        let answered = asked(20249, path)?;
        ensure!(answered == status, "{path} answers {answered} to others");
    }
    for path in ["/debug/dataplane", "/configz"] {
        ensure!(answers(&format!("127.0.0.1:20249{path}")), "no {path}");
    }

    stage.apply("profile", &profile(&json!({"healthzBindAddress": ""})))?;
    stage.wait_until("one server to go and the other to come back", || {
        Ok(!answers("127.0.0.1:20256/healthz") && answers("127.0.0.1:10249/metrics"))
    })?;
    ensure!(
        !answers("127.0.0.1:10256/healthz"),
        "it is at its old place"
    );
    // With any profile, the scrape server serves only metrics.
    for (path, status) in [("/metrics", 200), ("/debug", 404), ("/configz", 404)] {
        let answered = asked(10263, path)?;
        ensure!(answered == status, "{path} answers {answered} to scrapers");
    }
    // The profile does not move the server of the Pod's own probes either.
    for path in ["/livez", "/readyz"] {
        ensure!(answers(&format!("127.0.0.1:10261{path}")), "no {path}");
    }
    Ok(())
}
