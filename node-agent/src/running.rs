//! `signpost-agent run`: the tasks of the agent and how they are connected.

mod syncs;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use agent_metrics::{AgentMetrics, ChangeCounts, register_lock_waits};
use anyhow::Context;
use catalog::Change;
use crds::event;
use events::{Announcement, Events, Journal, Regarding};
use handover::{HandbackMark, Server, ServingState};
use health_checks::ProxyHealth;
use kube::api::Api;
use modes::Variants;
use reconciler::{Command, CommandSender, Periods, Permission, Settings, command_receiver};
use runtime::{
    BuildInfo, CancellationToken, ClientSource, Health, Log, Metrics, RestClientMetrics,
    Supervisor, chain, open_client,
};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::arguments::Run;
use crate::board::Board;
use crate::engine::{AppliedConfig, Engine, MissingAssignment};
use crate::engine_query::{EngineQueries, EngineQuery};
use crate::node_lock::NodeLock;
use crate::reporter::Destination;
use crate::servers::Answers;
use crate::{
    affinity, api_service, debug, drift, foreign_proxy_watch, heartbeat, relay, reporter,
    variant_scan,
};
use source::Delivery;
use source::last_good::LastGood;
use source::last_node::LastNode;
use syncs::{SyncSubscribers, reconcile};

/// How many deliveries may wait for the engine. A full list of 10,000 Services and their slices
/// streams through it; a faster source waits. With large, decoded slices, the queue takes half a
/// megabyte.
const DELIVERIES: usize = 128;
/// How many deliveries the engine takes in before it compiles, if they keep arriving.
const TAKEN_AT_ONCE: usize = 4096;
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
    let board = Arc::new(Board::new());
    let (queries, asked) = EngineQueries::new();
    let node = arguments.node.clone();

    let mark = HandbackMark::within(&arguments.state, &node);
    board.post_serving_state(mark.observe().unwrap_or_else(|error| {
        warn!(error = %chain(&error), "unable to read whether this node was handed back: serving its Services");
        ServingState::Serving
    }));

    let (events, announcements) = Events::register(&metrics);
    let proxy = ProxyHealth::default();
    let changes = ChangeCounts::register(&metrics);
    let readiness = health.check("programmed");
    let inquiries = debug::router(Arc::clone(&board), queries.clone()).merge(metrics.router());
    let answers = Answers {
        board: Arc::clone(&board),
        proxy: proxy.clone(),
        health: health.clone(),
        metrics: metrics.clone(),
        queries,
        events: events.clone(),
        log,
    };
    answers.start(&supervisor, &arguments);

    let mut destinations = Vec::new();
    let mut journal = Journal::Log;
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
                Arc::clone(&board),
                supervisor.stop(),
            );
            supervisor.spawn("heartbeat", heartbeat);
            let board = Arc::clone(&board);
            supervisor.spawn(
                "check of the API server's Service",
                api_service::check(board, client.clone(), supervisor.stop()),
            );
            journal = Journal::cluster(client.clone(), &node);
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
    let addresses = source::addresses::watch(deliveries.clone(), supervisor.stop());
    supervisor.spawn("addresses", addresses);
    match source {
        Source::Kubernetes(client) => {
            let watch = source::kubernetes::watch(
                client,
                node.clone(),
                deliveries,
                board.status_in_api().clone(),
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
    let agent_metrics = AgentMetrics::register(&metrics, Arc::<Board>::clone(&board));
    let follower = Follower {
        engine,
        asked,
        board: Arc::clone(&board),
        commands: commands.clone(),
        metrics: agent_metrics.clone(),
        proxy: proxy.clone(),
        changes: changes.clone(),
        node: node.clone(),
        last_good,
        last_node,
        settings: None,
    };
    supervisor.spawn(
        "engine",
        follower.follow(inbox, arguments.configuration_deadline, supervisor.stop()),
    );
    let connections = conntrack::start(
        &supervisor,
        &metrics,
        conntrack::Inputs {
            config: board.applied_config(),
            settings: |config: &AppliedConfig| config.effective.conntrack.clone(),
            report: board.report(),
            sysctls: arguments.sysctls.clone(),
            state: board.conntrack_state().clone(),
        },
    );
    let heartbeat = health.heartbeat("reconciler", HANGS_AFTER);
    let posted = Arc::clone(&board);
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
    let (watched, reported, runtime) = (Arc::clone(&board), commands.clone(), Handle::current());
    supervisor.spawn_thread("drift", move |stop| {
        drift::watch(listener, &watched, &reported, &runtime, &stop)
    });
    let (watched, reported, runtime) = (Arc::clone(&board), commands.clone(), Handle::current());
    supervisor.spawn_thread("iptables drift", move |stop| {
        drift::watch_iptables(&listeners, &watched, &reported, &runtime, &stop)
    });
    supervisor.spawn(
        "drift announcements",
        drift::announce(Arc::clone(&board), events.clone(), supervisor.stop()),
    );
    supervisor.spawn(
        "iptables variants",
        variant_scan::watch(Arc::clone(&board), supervisor.stop()),
    );
    supervisor.spawn(
        "other proxies",
        foreign_proxy_watch::watch(Arc::clone(&board), events.clone(), supervisor.stop()),
    );
    supervisor.spawn(
        "affinity",
        affinity::watch(Arc::clone(&board), supervisor.stop()),
    );
    let handovers = Server::within(
        &arguments.state,
        Arc::<Board>::clone(&board),
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
        relay::serve(Arc::clone(&board), counts, supervisor.stop()),
    );

    let kernel = observe_kernel();
    supervisor.spawn(
        "status",
        reporter::compose(Arc::clone(&board), readiness, kernel, supervisor.stop()),
    );
    for destination in destinations {
        let board = Arc::clone(&board);
        supervisor.spawn(
            "report",
            reporter::report(destination, node.clone(), board, supervisor.stop()),
        );
    }
    supervisor.spawn(
        "events",
        announcements.publish(node.clone(), journal, supervisor.stop()),
    );
    events.announce(Announcement {
        regarding: Regarding::Node,
        reason: event::STARTING,
        note: format!("{} {}", build.program, build.version),
    });
    info!(%node, "started");
    Ok(())
}

/// The engine's task: takes in deliveries and sends commands.
struct Follower {
    engine: Engine,
    asked: mpsc::Receiver<EngineQuery>,
    board: Arc<Board>,
    commands: CommandSender,
    metrics: AgentMetrics,
    proxy: ProxyHealth,
    changes: ChangeCounts,
    node: String,
    last_good: LastGood,
    last_node: LastNode,
    settings: Option<Settings>,
}

// === impl Follower ===

impl Follower {
    async fn follow(
        mut self,
        mut inbox: mpsc::Receiver<Delivery>,
        patience: Duration,
        stop: CancellationToken,
    ) {
        let deadline = tokio::time::sleep(patience);
        tokio::pin!(deadline);
        let mut patient = true;
        self.board.post_view(self.engine.view());
        let mut serving_state = self.board.serving_state();
        // Sends the settings before there is a desired state, and so before anything is written.
        self.order();
        loop {
            // Every arm is cancel safe: a delivery is either received or left in the channel.
            tokio::select! {
                () = stop.cancelled() => return,
                changed = serving_state.changed() => if changed.is_err() { return },
                () = &mut deadline, if patient => {
                    patient = false;
                    self.engine.go_without_assignment(Instant::now());
                }
                Some(query) = self.asked.recv() => {
                    query.answer(|question| self.engine.query(question));
                    continue;
                }
                delivery = inbox.recv() => match delivery {
                    Some(delivery) => self.take(delivery),
                    None => return,
                },
            }
            // Takes in deliveries that arrived together before compiling: a Service and its slices.
            for _ in 0..TAKEN_AT_ONCE {
                match inbox.try_recv() {
                    Ok(delivery) => self.take(delivery),
                    Err(_) => break,
                }
            }
            self.order();
        }
    }

    fn take(&mut self, delivery: Delivery) {
        if let Delivery::Configuration(Some(assignment)) = &delivery {
            // A node without a writable disk is served all the same.
            if let Err(error) = self.last_good.commit(&self.node, assignment) {
                warn!(error = %chain(&error), "unable to save the configuration for a restart without the operator");
            }
        }
        if let Delivery::Objects(change) = &delivery {
            self.changes.took(change);
        }
        let is_node = matches!(delivery, Delivery::Objects(Change::Node(_)));
        self.engine.apply(delivery, Instant::now());
        if is_node
            && let Some(node) = self.engine.node()
            && let Err(error) = self.last_node.commit(node)
        {
            warn!(error = %chain(&error), "unable to save the addresses of the Node for a restart while the Node has none");
        }
    }

    fn order(&mut self) {
        let settings = self.desired_settings();
        if self.settings != Some(settings) {
            self.settings = Some(settings);
            self.commands.send(Command::Settings(settings));
        }
        if let Some(desired) = self.engine.compile(Instant::now) {
            self.metrics.compiled(desired.stamps.compile);
            self.metrics.queued(SystemTime::now());
            self.changes.ordered();
            self.proxy.queued(Instant::now());
            self.commands.send(Command::Desired(desired));
        } else if self.engine.is_complete() {
            self.changes.dismissed();
        }
        self.board.post_view(self.engine.view());
    }

    fn desired_settings(&self) -> Settings {
        let (min_sync_period, sync_period) = self.engine.periods();
        Settings {
            periods: Periods {
                min_sync_period,
                sync_period,
            },
            permission: match *self.board.serving_state().borrow() {
                ServingState::Serving | ServingState::ReleasingPorts => Permission::Active,
                ServingState::HandedBack => Permission::Withdrawn,
            },
        }
    }
}

/// The kernel's release, as `uname -r` prints it.
fn observe_kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| String::new(), |release| release.trim().to_owned())
}
