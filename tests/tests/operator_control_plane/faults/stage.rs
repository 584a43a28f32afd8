//! Rollouts that wait in every phase at once, and how each of them must end.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::control_plane::ADMINISTRATOR;
use tests::deadline::wait_for;
use thiserror::Error;

use super::agents::Agents;
use super::pools::{
    BETWEEN, End, FAILING, FIRST, HALTED, HANDING_BACK, HELD, MOVING, ORIGIN, PAUSED, PROVING,
    Pool, RETURNING, SECOND, SETTLED, STAMPING, TAKING_OVER, UNREPORTED,
};
use super::record::Record;
use crate::cluster::Cluster;
use crate::{DEADLINE, NODES};

/// The profile of all nodes that are in no pool.
const OTHER: &str = "other";

/// A cluster with the nodes of several pools and their agents.
pub(crate) struct Stage<'c> {
    pub(crate) agents: Agents,
    pub(crate) cluster: &'c mut Cluster,
    pools: &'static [Pool],
}

/// A phase that was over before the fault acted, so that a test has shown nothing about it.
#[derive(Debug, Error)]
#[error("the fault came too late for phase {phase}:\n{nodes}")]
pub(crate) struct PhaseOver {
    pub(crate) phase: &'static str,
    nodes: String,
}

// === impl Stage ===

impl<'c> Stage<'c> {
    /// Adds the nodes of `pools` to a cluster without profiles and operators.
    pub(crate) fn start(cluster: &'c mut Cluster, pools: &'static [Pool]) -> Result<Stage<'c>> {
        let nodes = pools.iter().flat_map(|pool| {
            (1..=pool.size).map(|number| {
                let labels = json!({"pool": pool.label(number)});
                let metadata = json!({"name": pool.node(number), "labels": labels});
                json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
            })
        });
        let nodes: Vec<Value> = nodes.collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": nodes});
        cluster.control_plane.apply(&list.to_string())?;
        if pools.iter().any(|pool| pool.name == HELD.name) {
            cluster.control_plane.apply(&kube_proxy().to_string())?;
        }
        let kubeconfig = cluster.control_plane.kubeconfig(ADMINISTRATOR)?;
        Ok(Stage {
            agents: Agents::start(&kubeconfig, pools)?,
            cluster,
            pools,
        })
    }

    /// Creates or edits the profile of `pool`, so that it asks for this configuration.
    pub(crate) fn edit(&self, pool: &Pool, period: &str) -> Result<()> {
        self.cluster.put_profile(pool.name, pool.profile(period))
    }

    /// Gives all nodes the configuration that they have before the rollout.
    pub(crate) fn settle(&self) -> Result<()> {
        for pool in self.pools {
            self.edit(pool, FIRST)?;
        }
        if self.has(&MOVING) {
            let selector = json!({"matchLabels": {"pool": ORIGIN}});
            let spec = json!({"nodeSelector": selector, "syncPeriod": FIRST});
            self.cluster.put_profile(ORIGIN, spec)?;
        }
        for pool in self.pools {
            let here = (1..=pool.size).filter(|number| pool.label(*number) == pool.name);
            self.wait_for_phase(pool, "Settled")?;
            self.wait_until_ready(pool, here.count())?;
        }
        self.agents.wait_for("reports of all nodes", |record| {
            let mut nodes = self.pools.iter().flat_map(Pool::nodes);
            nodes.all(|node| record.has_reported(&node))
        })
    }

    fn has(&self, pool: &Pool) -> bool {
        self.pools.iter().any(|other| other.name == pool.name)
    }

    /// Rolls the second configuration out in all pools, and returns when the rollout of each pool is
    /// in the phase of its name.
    pub(crate) fn reach_every_phase(&self) -> Result<()> {
        let agents = &self.agents;
        for pool in [&UNREPORTED, &PROVING, &STAMPING, &PAUSED, &FAILING, &HALTED] {
            agents.hold(pool.nodes());
        }
        let past_their_canary = [&BETWEEN, &TAKING_OVER, &HANDING_BACK, &MOVING];
        for pool in past_their_canary {
            agents.hold(pool.nodes().skip(1));
        }
        for pool in self.pools.iter().filter(|pool| pool.name != FAILING.name) {
            self.edit(pool, SECOND)?;
        }
        let (from, to) = (
            format!("--selector=pool={ORIGIN}"),
            format!("pool={}", MOVING.name),
        );
        let label = ["label", "nodes", &from, &to, "--overwrite"];
        self.cluster.control_plane.kubectl(&label)?;
        for pool in [&UNREPORTED, &PROVING, &STAMPING, &PAUSED] {
            self.wait_for_canary(pool)?;
        }
        self.wait_for_status(&HELD, "nodes to wait for kube-proxy", |status| {
            let text = status["rollout"]["waitingFor"].as_str();
            text.is_some_and(|text| text.contains("DaemonSet kube-system/kube-proxy selects"))
        })?;
        self.cluster.put_profile(PAUSED.name, PAUSED.paused())?;
        self.wait_for_phase(&PAUSED, "Paused")?;
        agents.release(PAUSED.nodes());
        agents.wait_for("a report of the canary in a pause", |record| {
            record.has_reported(&PAUSED.node(1))
        })?;
        agents.wait_for("reports on an unproven change", |record| {
            let mut nodes = RETURNING.nodes().take(3);
            nodes.all(|node| record.has(&node, SECOND) && record.has_reported(&node))
        })?;
        agents.hold(RETURNING.nodes());
        let profile = self.wait_for_phase(&RETURNING, "RollingOut")?;
        let hash = profile["status"]["targetHash"].as_str();
        let hash = hash.context("the status names the configuration")?;
        self.cluster
            .put_profile(RETURNING.name, RETURNING.aborted(hash))?;
        agents.wait_for("a node that returns", |record| {
            let mut nodes = RETURNING.nodes();
            nodes.any(|node| record.given(&node).len() == 3)
        })?;
        self.wait_for_phase(&SETTLED, "Settled")?;
        self.wait_for_phase(&HALTED, "Halted")?;
        for pool in past_their_canary {
            self.wait_for_second_wave(pool)?;
        }

        // From here on, each phase passes by itself within seconds; the deadline of this pool is the
        // latest.
        self.edit(&FAILING, SECOND)?;
        self.wait_for_canary(&FAILING)?;
        agents.release([PROVING.node(1)]);
        agents.release(second_wave());
        agents.wait_for("reports on a change in two pools", |record| {
            let mut nodes = second_wave().chain([PROVING.node(1)]);
            nodes.all(|node| record.has_reported(&node))
        })?;
        agents.release(STAMPING.nodes());
        agents.wait_for("the first stamps of a large wave", |record| {
            let mut nodes = STAMPING.nodes().skip(1);
            nodes.any(|node| record.has(&node, SECOND))
        })
    }

    fn wait_for_canary(&self, pool: &Pool) -> Result<()> {
        self.agents.wait_for("a change of the canary", |record| {
            record.given(&pool.node(1)).len() > 1
        })
    }

    /// Asserts that the rollout of each pool is still in the phase of its name. Reads nothing from
    /// the API server, so that no time passes after a fault. The error is a [`PhaseOver`].
    pub(crate) fn expect_every_phase(&self) -> Result<()> {
        let over = self.agents.look(|record| {
            let mut over = self.pools.iter().filter(|pool| !pool.is_in_phase(record));
            over.next().map(|pool| PhaseOver {
                phase: pool.name,
                nodes: record.describe(),
            })
        });
        over.map_or(Ok(()), |over| Err(over.into()))
    }

    /// Rolls the second configuration out in [`BETWEEN`], and returns when the second wave has it and
    /// has not reported.
    pub(crate) fn reach_second_wave(&self) -> Result<()> {
        self.agents.hold(BETWEEN.nodes().skip(1));
        self.edit(&BETWEEN, SECOND)?;
        self.wait_for_second_wave(&BETWEEN)
    }

    fn wait_for_second_wave(&self, pool: &Pool) -> Result<()> {
        let second = [pool.node(2), pool.node(3)];
        let what = format!("a change of the second wave of {}", pool.name);
        self.agents.wait_for(&what, |record| {
            second.iter().all(|node| record.has(node, SECOND))
        })
    }

    /// Returns what the statuses of those pools say whose rollouts do not go on while agents are held,
    /// after another plan.
    pub(crate) fn rollouts_on_hold(&self) -> Result<Vec<Value>> {
        self.wait_for_a_plan()?;
        let on_hold = [
            &UNREPORTED,
            &PAUSED,
            &SETTLED,
            &HALTED,
            &HELD,
            &TAKING_OVER,
            &HANDING_BACK,
            &MOVING,
        ];
        let rollout = |pool: &Pool| -> Result<Value> {
            let mut profile = self.profile(pool.name)?;
            Ok(profile["status"]["rollout"].take())
        };
        on_hold.into_iter().map(rollout).collect()
    }

    /// Lets all agents report, but the canary that shall not.
    pub(crate) fn release(&self) {
        let nodes = self.pools.iter().flat_map(Pool::nodes);
        let failing = FAILING.node(1);
        self.agents.release(nodes.filter(|node| *node != failing));
    }

    /// Returns once the operator has acted on an edit that is made now.
    pub(crate) fn wait_for_a_plan(&self) -> Result<()> {
        let known = self.cluster.get("proxyprofile", OTHER)?;
        let known = known.and_then(|profile| profile["metadata"]["generation"].as_i64());
        let generation = known.unwrap_or_default() + 1;
        let spec = json!({"priority": 9000 + generation});
        self.cluster.put_profile(OTHER, spec)?;
        wait_for("the operator to act on an edit", DEADLINE, || {
            let profile = self.profile(OTHER)?;
            let status = &profile["status"];
            let is_done =
                status["observedGeneration"] == generation && status["readyNodes"] == NODES.len();
            Ok(is_done.then_some(()))
        })
    }

    /// Lets all agents report, waits until every rollout has ended as it must, and asserts that each
    /// node was given every configuration once, and that it was in its turn. In the pools of the
    /// names `undone` the user has returned to the first configuration.
    pub(crate) fn expect_ends(&self, undone: &[&str]) -> Result<()> {
        self.release();
        if self.has(&PAUSED) {
            self.edit(&PAUSED, SECOND)?;
        }
        if self.has(&HELD) {
            if !undone.contains(&HELD.name) {
                let is_held = self.agents.look(|record| HELD.is_in_phase(record));
                ensure!(is_held, "a fault let held nodes go");
            }
            let delete = [
                "delete",
                "daemonset",
                "kube-proxy",
                "--namespace=kube-system",
            ];
            self.cluster.control_plane.kubectl(&delete)?;
        }
        for pool in self.pools {
            let end = match pool.end {
                End::Settled | End::Moved => "Settled",
                End::RolledBack { .. } => "RolledBack",
                End::Halted => "Halted",
            };
            let profile = self.wait_for_phase(pool, end)?;
            expect_said_once(pool, &profile["status"])
                .with_context(|| format!("the status of {}: {:#}", pool.name, profile["status"]))?;
        }
        self.agents.release([FAILING.node(1)]);
        self.agents.wait_for("all nodes to move", |record| {
            let mut moved = self.pools.iter().filter(|pool| pool.end == End::Moved);
            moved.all(|pool| pool.nodes().all(|node| record.has(&node, SECOND)))
        })?;
        for pool in self.pools {
            self.wait_until_ready(pool, pool.size)?;
        }
        self.wait_for_a_plan()?;
        self.expect_given(undone)
    }

    /// Asserts what [`Stage::expect_ends`] asserts about the nodes.
    pub(crate) fn expect_given(&self, undone: &[&str]) -> Result<()> {
        let is_as_expected = |record: &Record, pool: &Pool, number: usize| {
            let given = record.given(&pool.node(number));
            let is = |periods: &[&str]| given == in_turn(periods);
            if undone.contains(&pool.name) {
                is(&[FIRST]) || is(&[FIRST, SECOND, FIRST])
            } else {
                is(pool.expected(number))
            }
        };
        self.agents.look(|record| {
            let all = self.pools.iter().flat_map(|pool| {
                let wrong = (1..=pool.size).filter(|number| !is_as_expected(record, pool, *number));
                wrong.map(|number| pool.node(number))
            });
            let wrong: BTreeSet<String> = all.collect();
            ensure!(wrong.is_empty(), "{wrong:?} in\n{}", record.describe());
            Ok(())
        })?;
        self.expect_no_excess()
    }

    /// Asserts that never more nodes had a change without proof than may be unavailable.
    pub(crate) fn expect_no_excess(&self) -> Result<()> {
        let excesses = self.agents.look(|record| record.excesses().clone());
        ensure!(excesses.is_empty(), "without proof: {excesses:#?}");
        Ok(())
    }

    /// Returns the profile of `pool` once its status says that its present configuration is in this
    /// phase.
    pub(crate) fn wait_for_phase(&self, pool: &Pool, phase: &str) -> Result<Value> {
        let name = pool.name;
        let what = format!("the rollout of {name} to be {phase}");
        self.wait_for_status(pool, &what, |status| status["rollout"]["phase"] == phase)
    }

    /// Returns once the rollout of `pool` is in its wave of this number, counted from 1.
    pub(crate) fn wait_for_wave(&self, pool: &Pool, wave: u32) -> Result<()> {
        let what = format!("wave {wave} of {}", pool.name);
        let is_there = |status: &Value| status["rollout"]["wave"] == wave;
        self.wait_for_status(pool, &what, is_there).map(drop)
    }

    fn wait_until_ready(&self, pool: &Pool, count: usize) -> Result<()> {
        let what = format!("{count} nodes of {} to be ready", pool.name);
        let is_ready = |status: &Value| status["readyNodes"] == count;
        self.wait_for_status(pool, &what, is_ready).map(drop)
    }

    fn wait_for_status(
        &self,
        pool: &Pool,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let mut seen = Value::Null;
        let found = wait_for(what, DEADLINE, || {
            seen = self.profile(pool.name)?;
            let status = &seen["status"];
            let is_present = status["observedGeneration"] == seen["metadata"]["generation"];
            Ok((is_present && is_so(status)).then(|| seen.clone()))
        });
        found.with_context(|| {
            let nodes = self.agents.look(Record::describe);
            format!("its last status: {:#}\n{nodes}", seen["status"])
        })
    }

    fn profile(&self, name: &str) -> Result<Value> {
        let profile = self.cluster.get("proxyprofile", name)?;
        profile.with_context(|| format!("there is no profile {name}"))
    }
}

/// Returns the DaemonSet of kube-proxy, for the nodes of [`HELD`].
fn kube_proxy() -> Value {
    let labels = json!({"k8s-app": "kube-proxy"});
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
        "spec": {"selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels},
            "spec": {
                "nodeSelector": {"pool": HELD.name},
                "containers": [{"name": "p", "image": "any:1"}],
            },
        }},
    })
}

/// Returns what a node was given, if its NodeProxy has had these configurations one after another.
pub(crate) fn in_turn<'a>(periods: &[&'a str]) -> Vec<(i64, &'a str)> {
    (1..).zip(periods.iter().copied()).collect()
}

/// Returns the nodes of the second wave of [`BETWEEN`].
pub(crate) fn second_wave() -> impl Iterator<Item = String> {
    [2, 3].into_iter().map(|number| BETWEEN.node(number))
}

/// Asserts that the history has each configuration once, and that there is a verdict if the rollout
/// failed.
fn expect_said_once(pool: &Pool, status: &Value) -> Result<()> {
    let history = status["history"].as_array().context("a history")?;
    let hashes: BTreeSet<Option<&str>> = history
        .iter()
        .map(|revision| revision["configHash"].as_str())
        .collect();
    let expected = match pool.end {
        End::Moved => 1,
        _ => 2,
    };
    ensure!(
        history.len() == expected && hashes.len() == expected,
        "{} revisions",
        history.len()
    );
    ensure!(history[0]["phase"] == status["rollout"]["phase"]);
    let verdict = &status["rollout"]["verdict"];
    let is_expected = match pool.end {
        End::Settled | End::Moved => verdict.is_null(),
        End::Halted => verdict["failedNodes"] == 1 && verdict["node"] == pool.node(1),
        End::RolledBack { .. } if pool.name == FAILING.name => {
            verdict["failedNodes"] == 1 && verdict["node"] == pool.node(1)
        }
        End::RolledBack { .. } => verdict["failedNodes"] == 0 && verdict["reason"] == "Aborted",
    };
    ensure!(is_expected, "an unexpected verdict");
    Ok(())
}
