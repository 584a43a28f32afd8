//! `signpost-agent run`: the tasks of the agent and how they are connected.

mod follower;
mod kept_files;
mod syncs;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use agent_metrics::{AgentMetrics, ChangeCounts, register_lock_waits};
use anyhow::Context;
use conntrack::ConntrackState;
use crds::{NodeProxyStatus, event};
use events::{Announcement, EventObject, EventSink, Events};
use handover::{HandbackMark, Server, ServingState};
use health_checks::ProxyHealth;
use kube::api::Api;
use modes::{VariantScan, Variants};
use reconciler::{Command, command_receiver};
use runtime::{
    BuildInfo, ClientSource, Health, Log, Metrics, RestClientMetrics, Supervisor, chain,
    open_client,
};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use crate::api_service::ApiServiceState;
use crate::arguments::Run;
use crate::debug::DebugState;
use crate::engine::{AppliedConfig, Engine, MissingAssignment, ViewSender};
use crate::engine_query::EngineQueries;
use crate::foreign_proxies::ForeignProxies;
use crate::handover_agent::HandoverAgent;
use crate::node_lock::NodeLock;
use crate::programmed::Programmed;
use crate::reporter::{ComposeInputs, Destination, ReportInputs};
use crate::servers::Answers;
use crate::snapshot::ScrapedAgent;
use crate::{
    affinity, api_service, debug, drift, foreign_proxy_watch, heartbeat, relay, reporter,
    variant_scan,
};
use follower::Follower;
use kept_files::KeptFiles;
use source::last_good::LastGood;
use source::last_node::LastNode;
use syncs::{SyncSubscribers, reconcile};

/// How many deliveries may wait for the engine. A full list of 10,000 Services and their slices
/// streams through it; a faster source waits. With large, decoded slices, the queue takes half a
/// megabyte.
const DELIVERIES: usize = 128;
/// How long a sync may take before the liveness probe reports a hang. Slow syncs that succeed are
/// reported, never killed (kubernetes#83263): this is an order of magnitude above the slowest
/// known.
const HANGS_AFTER: Duration = Duration::from_secs(3600);

/// The source of the engine's deliveries.
enum Source {
    Kubernetes(kube::Client),
    Manifests(std::path::PathBuf),
}

/// Starts all tasks, once no other agent runs on this node. If one task ends, the process ends.
pub(crate) async fn start(
    supervisor: Supervisor,
    arguments: Run,
    lock: NodeLock,
    log: Log,
) -> anyhow::Result<()> {
    // Taken before this process reads, listens or writes, so that an agent that waits for the lock
    // has no effect.
    lock.take(&supervisor, &arguments.node).await?;
    let build = BuildInfo {
        program: "signpost-agent",
        version: env!("CARGO_PKG_VERSION"),
    };
    let metrics = Metrics::new(&build);
    let health = Health::new();
    let (queries, asked) = EngineQueries::new();
    let node = arguments.node.clone();

    let mark = HandbackMark::within(&arguments.state, &node);
    let serving_state = watch::Sender::new(mark.observe().unwrap_or_else(|error| {
        warn!(error = %chain(&error), "unable to read whether this node was handed back: serving its Services");
        ServingState::Serving
    }));
    // What tasks post. Each task gets what it reads, and the one that posts it the sender.
    let views = ViewSender::new();
    let programmed = Arc::new(Programmed::new());
    let foreign_proxies = Arc::new(ForeignProxies::new());
    let status = watch::Sender::new(Arc::<NodeProxyStatus>::default());
    let status_in_api = watch::Sender::new(Value::Null);
    let renewed_since = watch::Sender::new(None);
    let connections_state = watch::Sender::new(ConntrackState::default());
    let not_relayed = watch::Sender::new(Vec::new());
    let full_affinity_maps = watch::Sender::new(BTreeSet::new());
    let variants_seen = watch::Sender::new(VariantScan::default());
    let handover_refusal = watch::Sender::new(None);
    let api_service_state = watch::Sender::new(ApiServiceState::default());
    let own_node = watch::Sender::new(None);

    let (events, announcements) = Events::register(&metrics);
    let proxy = ProxyHealth::default();
    let changes = ChangeCounts::register(&metrics);
    let readiness = health.check("programmed");
    let debug_state = DebugState {
        view: views.view(),
        programmed: Arc::clone(&programmed),
        status: status.subscribe(),
        renewed_since: renewed_since.subscribe(),
    };
    let inquiries = debug::router(debug_state.clone(), queries.clone()).merge(metrics.router());
    let answers = Answers {
        state: debug_state,
        applied_config: views.applied_config(),
        serving_state: serving_state.subscribe(),
        proxy: proxy.clone(),
        health: health.clone(),
        metrics: metrics.clone(),
        queries,
        events: events.clone(),
        log,
    };
    answers.start(&supervisor, &arguments);

    let mut destinations = Vec::new();
    let mut sink = EventSink::Log;
    let source = match &arguments.manifests {
        Some(directory) => Source::Manifests(directory.clone()),
        None => {
            let rest = RestClientMetrics::register(&metrics);
            let source = ClientSource::from(arguments.kubeconfig.clone());
            let client = open_client(&source, &build, &rest).await?;
            destinations.push(Destination::Api(Box::new(Api::all(client.clone()))));
            let heartbeat = heartbeat::report(
                client.clone(),
                arguments.namespace.clone(),
                node.clone(),
                views.applied_config(),
                status.subscribe(),
                renewed_since.clone(),
                supervisor.stop(),
            );
            supervisor.spawn("heartbeat", heartbeat);
            let check = api_service::check(
                views.view(),
                status.subscribe(),
                api_service_state.clone(),
                client.clone(),
                supervisor.stop(),
            );
            supervisor.spawn("check of the API server's Service", check);
            sink = EventSink::cluster(client.clone(), &node);
            Source::Kubernetes(client)
        }
    };
    destinations.extend(arguments.status.clone().map(Destination::File));

    let last_good = LastGood::within(&arguments.state);
    let kept = last_good.observe(&node).unwrap_or_else(|error| {
        warn!(error = %chain(&error), "unable to read the last good configuration: starting without it");
        None
    });
    let silence = match source {
        Source::Kubernetes(_) => MissingAssignment::MayEnd,
        Source::Manifests(_) => MissingAssignment::IsAnAnswer,
    };
    let mut engine = Engine::new(&node, kept, silence);
    let mut last_node = LastNode::within(&arguments.state);
    match last_node.observe(&node) {
        Ok(Some(known)) => engine.recall_node(known),
        Ok(None) => {}
        Err(error) => {
            warn!(error = %chain(&error), "unable to read the last known addresses of the Node: starting without them");
        }
    }
    let lock = modes::lock_at(&arguments.xtables_lock);
    let (variants, listeners) = Variants::new(lock, register_lock_waits(&metrics));
    let (families, listener, interruption) =
        modes::open(variants, &arguments.sysctls).context("nftables cannot be programmed here")?;

    let (deliveries, inbox) = mpsc::channel(DELIVERIES);
    let (commands, loop_inbox) = command_receiver();
    let watch_scope = watch::Sender::new(engine.watch_scope());
    let addresses = source::addresses::watch(
        deliveries.clone(),
        watch_scope.subscribe(),
        supervisor.stop(),
    );
    supervisor.spawn("addresses", addresses);
    match source {
        Source::Kubernetes(client) => {
            let watch = source::kubernetes::watch(
                client,
                node.clone(),
                deliveries,
                status_in_api.clone(),
                supervisor.stop(),
            );
            supervisor.spawn("API server", watch);
        }
        Source::Manifests(directory) => {
            let watch =
                source::manifests::watch(directory, node.clone(), deliveries, supervisor.stop());
            supervisor.spawn("manifests", watch);
        }
    }
    let scraped = ScrapedAgent {
        view: views.view(),
        programmed: Arc::clone(&programmed),
        status: status.subscribe(),
        serving_state: serving_state.subscribe(),
        full_affinity_maps: full_affinity_maps.subscribe(),
    };
    let agent_metrics = AgentMetrics::register(&metrics, Arc::new(scraped));
    let handovers = HandoverAgent {
        view: views.view(),
        applied_config: views.applied_config(),
        programmed: Arc::clone(&programmed),
        variants: variants_seen.subscribe(),
        status: status.subscribe(),
        foreign_proxies: Arc::clone(&foreign_proxies),
        serving_state: serving_state.clone(),
        refusal: handover_refusal.clone(),
    };
    let compose_inputs = ComposeInputs {
        view: views.view(),
        programmed: Arc::clone(&programmed),
        report: programmed.report(),
        not_relayed: not_relayed.subscribe(),
        full_affinity_maps: full_affinity_maps.subscribe(),
        conntrack: connections_state.subscribe(),
        serving_state: serving_state.subscribe(),
        scan: foreign_proxies.scan(),
        variants: variants_seen.subscribe(),
        handover_refusal: handover_refusal.subscribe(),
        api_service: api_service_state.subscribe(),
        kernel: observe_kernel(),
    };
    let report_inputs = ReportInputs {
        status: status.subscribe(),
        applied_config: views.applied_config(),
        renewed_since: renewed_since.subscribe(),
        in_api: status_in_api.subscribe(),
    };
    let (view, applied_config) = (views.view(), views.applied_config());
    let follower = Follower {
        engine,
        asked,
        views,
        serving_state: serving_state.subscribe(),
        commands: commands.clone(),
        metrics: agent_metrics.clone(),
        proxy: proxy.clone(),
        changes: changes.clone(),
        own_node: own_node.clone(),
        watch_scope,
        settings: None,
    };
    let files = KeptFiles {
        node: node.clone(),
        last_good,
        last_node,
        written: None,
    };
    let writes = files.follow(
        applied_config.clone(),
        own_node.subscribe(),
        supervisor.stop(),
    );
    supervisor.spawn("kept files", writes);
    supervisor.spawn(
        "engine",
        follower.follow(inbox, arguments.configuration_deadline, supervisor.stop()),
    );
    let connections = conntrack::start(
        &supervisor,
        &metrics,
        conntrack::Inputs {
            config: applied_config.clone(),
            settings: |config: &AppliedConfig| config.effective.conntrack.clone(),
            report: programmed.report(),
            sysctls: arguments.sysctls.clone(),
            state: connections_state,
        },
    );
    let heartbeat = health.heartbeat("reconciler", HANGS_AFTER);
    let posted = Arc::clone(&programmed);
    supervisor.spawn_thread(drift::WRITER, move |_| {
        reconcile(
            families,
            loop_inbox,
            posted,
            connections,
            SyncSubscribers {
                metrics: agent_metrics,
                changes,
                proxy,
            },
            heartbeat,
        );
    });
    let (reports, proxies) = (Arc::clone(&programmed), Arc::clone(&foreign_proxies));
    let (drifted, runtime) = (commands.clone(), Handle::current());
    supervisor.spawn_thread("drift", move |stop| {
        drift::watch(listener, &reports, &proxies, &drifted, &runtime, &stop)
    });
    let (reports, proxies) = (Arc::clone(&programmed), Arc::clone(&foreign_proxies));
    let (drifted, runtime) = (commands.clone(), Handle::current());
    supervisor.spawn_thread("iptables drift", move |stop| {
        drift::watch_iptables(&listeners, &reports, &proxies, &drifted, &runtime, &stop)
    });
    supervisor.spawn(
        "drift announcements",
        drift::announce(programmed.report(), events.clone(), supervisor.stop()),
    );
    supervisor.spawn(
        "iptables variants",
        variant_scan::watch(applied_config.clone(), variants_seen, supervisor.stop()),
    );
    supervisor.spawn(
        "other proxies",
        foreign_proxy_watch::watch(
            foreign_proxies,
            serving_state.subscribe(),
            events.clone(),
            supervisor.stop(),
        ),
    );
    supervisor.spawn(
        "affinity",
        affinity::watch(
            view,
            applied_config.clone(),
            full_affinity_maps,
            supervisor.stop(),
        ),
    );
    let handovers = Server::within(
        &arguments.state,
        Arc::new(handovers),
        mark,
        inquiries,
        modes::lock_at(&arguments.xtables_lock),
    );
    let handovers = Arc::new(handovers);
    supervisor.spawn("handovers", Arc::clone(&handovers).serve(supervisor.stop()));
    supervisor.spawn(
        "desired handover",
        handovers.follow_profile(supervisor.stop()),
    );
    // The kernel may send no notification for days, so the nf_tables listener is interrupted. The
    // iptables thread waits for listeners from the reconciler, and ends with it.
    let stop = supervisor.stop();
    supervisor.spawn("drift's end", async move {
        stop.cancelled().await;
        interruption.begin();
    });
    // The loop waits for commands, not for signals: send it a stop.
    let stop = supervisor.stop();
    supervisor.spawn("reconciler's end", async move {
        stop.cancelled().await;
        commands.send(Command::Stop);
    });

    let counts = relay::register(&metrics);
    supervisor.spawn(
        "localhost node ports",
        relay::serve(
            applied_config,
            programmed.report(),
            not_relayed,
            counts,
            supervisor.stop(),
        ),
    );

    supervisor.spawn(
        "status",
        reporter::compose(compose_inputs, status, readiness, supervisor.stop()),
    );
    for destination in destinations {
        let inputs = report_inputs.clone();
        supervisor.spawn(
            "report",
            reporter::report(destination, node.clone(), inputs, supervisor.stop()),
        );
    }
    supervisor.spawn(
        "events",
        announcements.publish(node.clone(), sink, supervisor.stop()),
    );
    events.announce(Announcement {
        regarding: EventObject::Node,
        reason: event::STARTING,
        note: format!("{} {}", build.program, build.version),
    });
    info!(%node, "started");
    Ok(())
}

/// The kernel's release, as `uname -r` prints it.
fn observe_kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| String::new(), |release| release.trim().to_owned())
}
