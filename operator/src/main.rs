//! The operator of Signpost: assigns every node its configuration and summarizes what the nodes
//! report.
//!
//! ```text
//!   ProxyProfile, Node, NodeProxy,
//!   DaemonSets, agents' Leases                       Lease
//!        | watches                                     | leader_elector
//!        v                                             v
//!   fleet_loop ----> fleet (plan, no I/O) ----> writes, only while it holds the lease
//!        ^                                             |
//!        '--------- answers to the writes -------------'
//!
//!   ConfigMap signpost-initial-profile ----> initial_profile, once
//! ```
//!
//! Nodes do not depend on the operator: without it, agents keep the configuration they were
//! assigned.

mod agent_daemon_set;
mod baseline;
mod boot_time;
mod clock_offset;
mod election;
mod fleet;
mod fleet_loop;
mod initial_profile;
mod kube_proxy_daemon_set;
mod leader_elector;
mod operator_metrics;
mod profile_events;
mod records;
mod watches;
mod write_rate_limiter;
mod writes;

use std::{env, fs, process, process::ExitCode, time::Duration};

use clap::Parser;
use kube::Client;
use operator::arguments::{Arguments, Command, RunArguments};
use runtime::{
    BindPolicy, BuildInfo, CancellationToken, Check, ClientSource, GRACE, Health, Metrics,
    RestClientMetrics, Supervisor,
};

use crate::{
    election::{Election, ElectionTimeouts},
    fleet_loop::FleetLoop,
    initial_profile::InitialProfile,
    leader_elector::{LeaderElector, LeaseLost},
    operator_metrics::OperatorMetrics,
    writes::Writer,
};

/// Writes time out after ten seconds, so a loop without progress for this long is stuck.
const STUCK: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let Arguments {
        log,
        command: Command::Run(arguments),
    } = Arguments::parse();
    runtime::run(&log, GRACE, |supervisor, _| start(arguments, supervisor))
}

async fn start(arguments: RunArguments, supervisor: Supervisor) -> anyhow::Result<()> {
    let build = BuildInfo {
        program: "signpost-operator",
        version: env!("CARGO_PKG_VERSION"),
    };
    let metrics = Metrics::new(&build);
    let health = Health::new();
    let rest_client = RestClientMetrics::register(&metrics);
    let client = runtime::open_client(
        &ClientSource::from(arguments.kubeconfig),
        &build,
        &rest_client,
    )
    .await?;

    let identity = arguments.identity.unwrap_or_else(read_identity);
    let election = Election::new(identity.clone(), ElectionTimeouts::KUBERNETES);
    let leader_elector = LeaderElector::new(
        client.clone(),
        &arguments.namespace,
        &arguments.lease_name,
        election,
    );
    let fleet_loop = FleetLoop {
        writer: Writer::new(&client, &identity, leader_elector.leadership()),
        metrics: OperatorMetrics::register(&metrics),
        heartbeat: health.heartbeat("fleet", STUCK),
        offset: leader_elector.offset(),
    };
    let initial_profile = InitialProfile::new(&client, &arguments.namespace);
    let api_server = health.check("api-server");

    let routes = metrics.router().merge(health.router());
    let http = runtime::serve(
        arguments.metrics_address,
        BindPolicy::Retry,
        routes,
        supervisor.stop(),
    );
    supervisor.spawn("http", http);
    supervisor.spawn(
        "fleet",
        lead(
            client,
            arguments.namespace,
            leader_elector,
            fleet_loop,
            initial_profile,
            api_server,
            supervisor.stop(),
        ),
    );
    Ok(())
}

/// Waits for the lease, acts while it holds the lease, and releases it at the end.
///
/// All of this is one task, so that no write follows the loss or the release of the lease: the loop
/// is dropped first.
async fn lead(
    client: Client,
    namespace: String,
    mut leader_elector: LeaderElector,
    fleet_loop: FleetLoop,
    initial_profile: InitialProfile,
    api_server: Check,
    stop: CancellationToken,
) -> Result<(), LeaseLost> {
    // A standby operator is ready: it is enough that the API server answers that another operator
    // holds the lease.
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = leader_elector.acquire(|| api_server.ready()) => {}
    }
    fleet_loop.metrics.set_leader();
    let act = async {
        tokio::join!(
            initial_profile.create(),
            fleet_loop.run(&client, &namespace)
        )
    };
    tokio::select! {
        () = stop.cancelled() => {}
        lost = leader_elector.renew_until_lost() => return Err(lost),
        _ = act => {}
    }
    leader_elector.release().await;
    Ok(())
}

/// Returns the host name, which is the name of the Pod, and the process ID, because two operators
/// on the host network may share a host name.
fn read_identity() -> String {
    let host = env::var("HOSTNAME").or_else(|_| fs::read_to_string("/proc/sys/kernel/hostname"));
    let host = host.unwrap_or_else(|_| "operator".to_owned());
    format!("{}_{}", host.trim(), process::id())
}
