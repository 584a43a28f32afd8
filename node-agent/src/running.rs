//! `signpost-agent run`: what runs, and what it is wired to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ::conntrack::Feed;
use anyhow::Context;
use backend::Recovery;
use kube::api::Api;
use reconciler::{
    Activity, Clock, Command, Domain, Mailbox, Orders, Outcome, Periods, Permission, Reconciler,
    Round, Settings, mailbox,
};
use runtime::{
    BuildInfo, ClientSource, Health, Heartbeat, Metrics, RestClientMetrics, Stop, Supervisor,
    chain, open_client,
};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::arguments::Run;
use crate::board::Board;
use crate::duty::{Duty, HandbackMark};
use crate::engine::{Engine, Silence};
use crate::events::{Announcement, Events, Journal, Regarding, Severity};
use crate::handover::Server;
use crate::health_proxy::ProxyHealth;
use crate::inquiry::{Inquiries, Inquiry};
use crate::last_good::LastGood;
use crate::mechanism::{self, Mechanisms, Variants};
use crate::metrics::{AgentMetrics, ChangeCounts, register_lock_waits};
use crate::reporter::Destination;
use crate::servers::Answers;
use crate::source::{self, Delivery};
use crate::{conntrack, drift, foreign_proxy, relay, reporter};

/// How many deliveries may wait for the engine. A full list of 10,000 Services and their slices
/// streams through it; a source that is faster waits.
const DELIVERIES: usize = 4096;
/// How many deliveries are taken in before compiling, when they do not stop coming.
const TAKEN_AT_ONCE: usize = 4096;
/// How long a round may take before the probe says that it hangs. Slow rounds that succeed are
/// reported, never killed (kubernetes#83263): this is an order of magnitude above the slowest known.
const HANGS_AFTER: Duration = Duration::from_secs(3600);

/// How often in a row a cause that passes must have made rounds fail for that to be worth a line.
const WORTH_TELLING: u32 = 4;

/// Where the engine's deliveries come from.
enum Source {
    Kubernetes(kube::Client),
    Manifests(std::path::PathBuf),
}

/// Starts everything. What ends, ends the process.
pub(crate) async fn start(supervisor: Supervisor, arguments: Run) -> anyhow::Result<()> {
    let build = BuildInfo {
        program: "signpost-agent",
        version: env!("CARGO_PKG_VERSION"),
    };
    let metrics = Metrics::new(&build);
    let health = Health::new();
    let board = Arc::new(Board::new());
    let (inquiries, asked) = Inquiries::new();
    let node = arguments.node.clone();

    let mark = HandbackMark::within(&arguments.state, &node);
    board.post_duty(mark.observe().unwrap_or_else(|error| {
        warn!(error = %chain(&error), "serving, whether or not this node was handed back");
        Duty::Serving
    }));

    let (events, announcements) = Events::register(&metrics);
    let proxy = ProxyHealth::default();
    let changes = ChangeCounts::register(&metrics);
    let readiness = health.check("programmed");
    let answers = Answers {
        board: Arc::clone(&board),
        proxy: proxy.clone(),
        health: health.clone(),
        metrics: metrics.clone(),
        inquiries,
        events: events.clone(),
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
            journal = Journal::cluster(client.clone(), &node);
            Source::Kubernetes(client)
        }
    };
    destinations.extend(arguments.status.clone().map(Destination::File));

    let last_good = LastGood::within(&arguments.state);
    let kept = last_good.observe(&node).unwrap_or_else(|error| {
        warn!(error = %chain(&error), "starting without the last good configuration");
        None
    });
    let silence = match source {
        Source::Kubernetes(_) => Silence::MayEnd,
        Source::Manifests(_) => Silence::IsAnAnswer,
    };
    let engine = Engine::new(&node, kept, silence);
    let (nftables, disturbances) =
        backend_nftables::open_with_disturbances().context("nftables cannot be programmed here")?;
    let lock = mechanism::lock_at(&arguments.xtables_lock);
    let (variants, listeners) = Variants::new(lock, register_lock_waits(&metrics));
    let backends = Mechanisms::open(nftables, variants);

    let (deliveries, inbox) = mpsc::channel(DELIVERIES);
    let (orders, loop_inbox) = mailbox();
    let addresses = source::addresses::watch(deliveries.clone(), supervisor.stop());
    supervisor.spawn("addresses", addresses);
    match source {
        Source::Kubernetes(client) => {
            let watch =
                source::kubernetes::watch(client, node.clone(), deliveries, supervisor.stop());
            supervisor.spawn("API server", watch);
        }
        Source::Manifests(directory) => {
            let watch =
                source::manifests::watch(directory, node.clone(), deliveries, supervisor.stop());
            supervisor.spawn("manifests", watch);
        }
    }
    let agent_metrics = AgentMetrics::register(&metrics, Arc::clone(&board));
    let follower = Follower {
        engine,
        asked,
        board: Arc::clone(&board),
        orders: orders.clone(),
        metrics: agent_metrics.clone(),
        proxy: proxy.clone(),
        changes: changes.clone(),
        node: node.clone(),
        last_good,
        settings: None,
    };
    supervisor.spawn(
        "engine",
        follower.follow(inbox, arguments.configuration_deadline, supervisor.stop()),
    );
    let connections = conntrack::start(&supervisor, &metrics, &board, arguments.sysctls.clone());
    let heartbeat = health.heartbeat("reconciler", HANGS_AFTER);
    let posted = Arc::clone(&board);
    supervisor.spawn_thread("reconciler", move |_| {
        reconcile(
            backends,
            loop_inbox,
            posted,
            connections,
            Followed {
                metrics: agent_metrics,
                changes,
                proxy,
            },
            heartbeat,
        );
    });
    let (watched, told, runtime) = (Arc::clone(&board), orders.clone(), Handle::current());
    supervisor.spawn_thread("drift", move |stop| {
        drift::watch(disturbances, &watched, &told, &runtime, &stop)
    });
    let (watched, told, runtime) = (Arc::clone(&board), orders.clone(), Handle::current());
    supervisor.spawn_thread("iptables drift", move |stop| {
        drift::watch_iptables(&listeners, &watched, &told, &runtime, &stop)
    });
    supervisor.spawn(
        "drift announcements",
        drift::announce(Arc::clone(&board), events.clone(), supervisor.stop()),
    );
    supervisor.spawn(
        "iptables variants",
        mechanism::watch(Arc::clone(&board), supervisor.stop()),
    );
    supervisor.spawn(
        "other proxies",
        foreign_proxy::watch(Arc::clone(&board), events.clone(), supervisor.stop()),
    );
    let handovers = Server::within(&arguments.state, Arc::clone(&board), mark);
    supervisor.spawn("handovers", handovers.serve(supervisor.stop()));
    // The loop waits for commands, not for signals: it is told.
    let stop = supervisor.stop();
    supervisor.spawn("reconciler's end", async move {
        stop.stopped().await;
        orders.send(Command::Stop);
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
        severity: Severity::Normal,
        reason: "Starting",
        note: format!("{} {}", build.program, build.version),
    });
    info!(%node, "started");
    Ok(())
}

/// Who wants to know at once what the loop has done.
struct Followed {
    metrics: AgentMetrics,
    changes: ChangeCounts,
    proxy: ProxyHealth,
}

/// The engine's task: deliveries in, commands out.
struct Follower {
    engine: Engine,
    asked: mpsc::Receiver<Inquiry>,
    board: Arc<Board>,
    orders: Orders,
    metrics: AgentMetrics,
    proxy: ProxyHealth,
    changes: ChangeCounts,
    node: String,
    last_good: LastGood,
    settings: Option<Settings>,
}

// === impl Follower ===

impl Follower {
    async fn follow(mut self, mut inbox: mpsc::Receiver<Delivery>, patience: Duration, stop: Stop) {
        let deadline = tokio::time::sleep(patience);
        tokio::pin!(deadline);
        let mut patient = true;
        self.board.post_view(self.engine.view());
        let mut duty = self.board.duty();
        // Known before anything is wanted, and so before anything is written.
        self.order();
        loop {
            // Every arm is cancel safe: a delivery is taken out of the channel or it is not.
            tokio::select! {
                () = stop.stopped() => return,
                changed = duty.changed() => if changed.is_err() { return },
                () = &mut deadline, if patient => {
                    patient = false;
                    self.engine.go_without_assignment(Instant::now());
                }
                Some(inquiry) = self.asked.recv() => {
                    inquiry.answer(|question| self.engine.tell(question));
                    continue;
                }
                delivery = inbox.recv() => match delivery {
                    Some(delivery) => self.take(delivery),
                    None => return,
                },
            }
            // Whatever came with it belongs together: a Service and its slices.
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
            // A node without a disk to write to serves all the same.
            if let Err(error) = self.last_good.commit(&self.node, assignment) {
                warn!(error = %chain(&error), "a restart without operator would not know this configuration");
            }
        }
        if let Delivery::Objects(change) = &delivery {
            self.changes.took(change);
        }
        self.engine.apply(delivery, Instant::now());
    }

    fn order(&mut self) {
        let settings = self.wanted_settings();
        if self.settings != Some(settings) {
            self.settings = Some(settings);
            self.orders.send(Command::Settings(settings));
        }
        if let Some(desired) = self.engine.compile(Instant::now) {
            self.metrics.compiled(desired.stamps.compile);
            self.metrics.queued(SystemTime::now());
            self.changes.ordered();
            self.proxy.queued(Instant::now());
            self.orders.send(Command::Desired(desired));
        } else if self.engine.is_complete() {
            self.changes.dismissed();
        }
        self.board.post_view(self.engine.view());
    }

    fn wanted_settings(&self) -> Settings {
        let (min_sync_period, sync_period) = self.engine.periods();
        Settings {
            periods: Periods {
                min_sync_period,
                sync_period,
            },
            permission: match *self.board.duty().borrow() {
                Duty::Serving | Duty::Yielding => Permission::Active,
                Duty::HandedBack => Permission::Withdrawn,
            },
        }
    }
}

/// The loop's thread.
fn reconcile(
    backends: [Mechanisms; 2],
    mut inbox: Mailbox,
    board: Arc<Board>,
    connections: Feed,
    followed: Followed,
    heartbeat: Heartbeat,
) {
    let mut reconciler = Reconciler::new(backends.into());
    let settings = Settings {
        periods: Periods {
            min_sync_period: Duration::ZERO,
            sync_period: Duration::from_secs(30),
        },
        permission: Permission::Active,
    };
    reconciler::run(
        &mut reconciler,
        settings,
        &mut inbox,
        &SystemClock,
        |report, domains: &[Domain<Mechanisms>]| {
            match report.activity {
                Activity::Running { .. } => heartbeat.busy(),
                Activity::Waiting | Activity::Paused | Activity::Withdrawn => heartbeat.idle(),
            }
            let carried: BTreeMap<_, _> = domains
                .iter()
                .map(|domain| (domain.family(), domain.backend().standing()))
                .collect();
            for round in &report.finished {
                let wanted = carried.get(&round.family).and_then(|family| family.wanted);
                let family = report.families.iter().find(|f| f.family == round.family);
                let failing = family.and_then(|family| family.failing.as_ref());
                log_round(round, failing.map_or(0, |failing| failing.rounds));
                followed.metrics.finished(round, wanted.unwrap_or_default());
            }
            for latency in &report.latencies {
                followed.metrics.arrived(latency);
            }
            followed.changes.reported(&report);
            followed.proxy.reported(&report);
            conntrack::post(&connections, &report);
            let held = domains.iter().filter_map(|domain| {
                let believed = domain.believed()?;
                Some((domain.family(), believed.rules.clone()))
            });
            let held: BTreeMap<_, _> = held.collect();
            board.post_report(report, held, carried, Instant::now());
        },
    );
}

/// `failures` of them in a row, this one included.
fn log_round(round: &Round, failures: u32) {
    match &round.outcome {
        Outcome::Unchanged => tracing::debug!("{round}"),
        Outcome::Committed => info!("{round}"),
        // A kernel that is busy is no longer so when this is read (kubernetes#122604).
        Outcome::Failed(failure)
            if failure.recovery == Recovery::Retry && failures < WORTH_TELLING =>
        {
            tracing::debug!("{round}");
        }
        Outcome::Failed(_) => warn!("{round}"),
    }
}

/// The machine's clocks.
struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wall_time(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// The kernel's release, as `uname -r` prints it.
fn observe_kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| String::new(), |release| release.trim().to_owned())
}
