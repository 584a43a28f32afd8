//! The engine's task.

use std::time::{Duration, Instant, SystemTime};

use agent_metrics::{AgentMetrics, ChangeCounts};
use catalog::{Change, OwnNode};
use handover::ServingState;
use health_checks::ProxyHealth;
use reconciler::{Command, CommandSender, Periods, Permission, Settings};
use runtime::CancellationToken;
use source::Delivery;
use source::addresses::WatchScope;
use tokio::sync::{mpsc, watch};

use crate::engine::{Engine, ViewSender};
use crate::engine_query::EngineQuery;
use crate::latest::{changed, post};

/// How many deliveries the engine takes in before it compiles, if they keep arriving.
const TAKEN_AT_ONCE: usize = 4096;
/// For how long the engine takes in deliveries before it compiles: as long as it then compiles. A
/// delivery of 1,000 endpoints takes one or two milliseconds.
const TAKEN_FOR: Duration = Duration::from_millis(30);

/// The engine's task: takes in deliveries and sends commands.
pub(super) struct Follower {
    pub(super) engine: Engine,
    pub(super) asked: mpsc::Receiver<EngineQuery>,
    pub(super) views: ViewSender,
    pub(super) serving_state: watch::Receiver<ServingState>,
    pub(super) commands: CommandSender,
    pub(super) metrics: AgentMetrics,
    pub(super) proxy: ProxyHealth,
    pub(super) changes: ChangeCounts,
    pub(super) own_node: watch::Sender<Option<OwnNode>>,
    pub(super) watch_scope: watch::Sender<WatchScope>,
    pub(super) settings: Option<Settings>,
}

// === impl Follower ===

impl Follower {
    pub(super) async fn follow(
        mut self,
        mut inbox: mpsc::Receiver<Delivery>,
        patience: Duration,
        stop: CancellationToken,
    ) {
        let deadline = tokio::time::sleep(patience);
        tokio::pin!(deadline);
        let mut patient = true;
        self.views.post(self.engine.view());
        let mut serving_state = self.serving_state.clone();
        // Sends the settings before there is a desired state, and so before anything is written.
        self.order();
        loop {
            // Every arm is cancel safe: a delivery is either received or left in the channel.
            tokio::select! {
                () = stop.cancelled() => return,
                () = changed(&mut serving_state) => {}
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
                // Yields, so that other tasks of this thread run between two passes.
                () = tokio::task::yield_now(), if self.engine.left() > 0 => {}
            }
            // Takes in deliveries that arrived together before compiling: a Service and its slices.
            let began = Instant::now();
            for _ in 0..TAKEN_AT_ONCE {
                match inbox.try_recv() {
                    Ok(delivery) => self.take(delivery),
                    Err(_) => break,
                }
                if began.elapsed() >= TAKEN_FOR {
                    break;
                }
            }
            self.order();
        }
    }

    fn take(&mut self, delivery: Delivery) {
        if let Delivery::Objects(change) = &delivery {
            self.changes.took(change);
        }
        let is_node = matches!(delivery, Delivery::Objects(Change::Node(_)));
        self.engine.apply(delivery, Instant::now());
        if is_node {
            post(&self.own_node, self.engine.node().cloned());
        }
    }

    fn order(&mut self) {
        let settings = self.desired_settings();
        if self.settings != Some(settings) {
            self.settings = Some(settings);
            self.commands.send(Command::Settings(settings));
        }
        post(&self.watch_scope, self.engine.watch_scope());
        let is_withdrawn = settings.permission == Permission::Withdrawn;
        if let Some(desired) = self.engine.compile(Instant::now) {
            self.metrics.compiled(desired.stamps.compile);
            if !is_withdrawn {
                self.metrics.queued(SystemTime::now());
            }
            self.changes.ordered(self.engine.left());
            self.proxy.queued(Instant::now());
            self.commands.send(Command::Desired(desired));
        } else if self.engine.is_complete() {
            self.changes.dismissed(self.engine.left());
        }
        if is_withdrawn {
            self.changes.withdrawn();
        }
        self.views.post(self.engine.view());
    }

    fn desired_settings(&self) -> Settings {
        let (min_sync_period, sync_period) = self.engine.periods();
        Settings {
            periods: Periods {
                min_sync_period,
                sync_period,
            },
            permission: match *self.serving_state.borrow() {
                ServingState::Serving | ServingState::ReleasingPorts => Permission::Active,
                ServingState::HandedBack => Permission::Withdrawn,
            },
        }
    }
}
