//! `rollout`: shows, pauses, resumes or reverts a change of a profile.

mod commands;
mod edit;
mod history;
mod progress;

use std::time::{Duration, Instant};

use crds::ProxyProfile;
use crds::condition::{ACCEPTED, PROGRESSING, reason::SETTLED};
use crds::profile::progress::{RolloutPhase, RolloutStatus};
use crds::profile::undo::ROLLOUT_UNDO;
use jiff::Timestamp;
use kube::ResourceExt;
use runtime::chain;
use serde::Serialize;
use serde_json::json;

use crate::arguments::{Access, RolloutStatusOptions, RolloutStep};
use crate::cluster::Cluster;
use crate::ending::Ending;
use crate::output::Paint;
use crate::rollout::edit::Edit;
use crate::rollout::progress::{Progress, SEPARATOR};
use crate::status::{
    POLL, ProfileReport, read_operator_absence, render_operator_absence, render_trouble,
};
use crate::trouble::{ConditionProblem, Weight};
use crate::{print, program_name};
pub(crate) use commands::{NextCommand, commands, flags};

/// The stage of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Stage {
    /// In progress.
    Going,
    /// Complete: every node has the change.
    Finished,
    /// Stopped, with the reason: it does not continue by itself.
    Stopped(ConditionProblem),
}

/// How often an edit is decided if another program changes the profile at the same time.
const ATTEMPTS: usize = 5;

/// Runs one of the subcommands.
pub(crate) async fn run(
    access: &Access,
    step: &RolloutStep,
    paint: Paint,
) -> anyhow::Result<Ending> {
    let cluster = Cluster::open(access).await?;
    match step {
        RolloutStep::Status(options) => follow(&cluster, options, paint).await,
        RolloutStep::Pause(profile) => set_paused(&cluster, &profile.name, true).await,
        RolloutStep::Resume(profile) => set_paused(&cluster, &profile.name, false).await,
        RolloutStep::Abort(profile) => apply(&cluster, &profile.name, edit::abort).await,
        RolloutStep::Retry(profile) => apply(&cluster, &profile.name, edit::retry).await,
        RolloutStep::History(profile) => {
            let profile: ProxyProfile = cluster.read_one(&profile.name).await?;
            let status = profile.status.unwrap_or_default();
            print(&history::render(&status.history, Timestamp::now(), paint))?;
            Ok(Ending::Success)
        }
        RolloutStep::Undo(options) => {
            let undo = |profile: &ProxyProfile| edit::undo(profile, options.to);
            apply(&cluster, &options.profile.name, undo).await
        }
    }
}

async fn follow(
    cluster: &Cluster,
    options: &RolloutStatusOptions,
    paint: Paint,
) -> anyhow::Result<Ending> {
    let begun = Instant::now();
    let mut progress = Progress::on_standard_output();
    let mut is_answered = false;
    let mut absence_is_said = false;
    loop {
        let read = cluster
            .read_one::<ProxyProfile>(&options.profile.name)
            .await;
        let profile = match read {
            Ok(profile) => profile,
            // The API server answered before, so it may be restarting.
            Err(error)
                if error.is_passing() && is_answered && begun.elapsed() < options.timeout =>
            {
                progress.leave();
                eprintln!("{}: {}; trying again", program_name(), chain(&error));
                tokio::time::sleep(POLL).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        is_answered = true;
        let report = ProfileReport::of(&profile);
        let stage = stage(&report);
        let is_late = begun.elapsed() >= options.timeout;
        let clauses = clauses(&report);
        match stage == Stage::Going && !options.once && !is_late {
            true => progress.show(&clauses, begun.elapsed())?,
            false => progress.finish(&clauses)?,
        }
        match stage {
            Stage::Finished => return Ok(Ending::Success),
            Stage::Stopped(trouble) => {
                print(&render_trouble(&trouble, paint))?;
                return Ok(Ending::ProblemFound);
            }
            Stage::Going => {}
        }
        // The API server answered just now; what it does not answer here, it may the next time.
        let absent_since = read_operator_absence(cluster).await.ok().flatten();
        if let Some(since) = absent_since.filter(|_| !absence_is_said) {
            absence_is_said = true;
            progress.leave();
            eprint!("{}: {}", program_name(), render_operator_absence(since));
        }
        if options.once {
            return Ok(Ending::ProblemFound);
        }
        if is_late {
            let text = describe_delay(options.timeout, absent_since);
            eprintln!("{}: {text}", program_name());
            return Ok(Ending::ProblemFound);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Says that a rollout has not ended after `timeout`, and what to do next.
fn describe_delay(timeout: Duration, operator_absent_since: Option<Timestamp>) -> String {
    let (why, next) = match operator_absent_since {
        Some(_) => (
            "no operator moves it on",
            "`kubectl signpost check` says whether Pods of the operator are ready",
        ),
        None => (
            "it continues without this command",
            "`kubectl signpost nodes --not-ready` names the nodes that are not ready, and why",
        ),
    };
    let seconds = timeout.as_secs();
    format!("the rollout has not ended after {seconds} s; {why}\n  next: {next}")
}

async fn set_paused(cluster: &Cluster, name: &str, paused: bool) -> anyhow::Result<Ending> {
    let profile: ProxyProfile = cluster.read_one(name).await?;
    let name = profile.name_any();
    let word = if paused { "paused" } else { "resumed" };
    if profile.spec.paused == paused {
        print(&format!("proxyprofile/{name} was {word} already\n"))?;
        return Ok(Ending::Success);
    }
    let change = json!({"spec": {"paused": paused}});
    cluster.merge::<ProxyProfile>(&name, &change).await?;
    print(&format!("proxyprofile/{name} {word}\n"))?;
    Ok(Ending::Success)
}

/// Applies the edit that `decide` returns for the present profile, or prints why there is none. Decides
/// again if the profile changes meanwhile, as each report of the operator changes it.
async fn apply(
    cluster: &Cluster,
    name: &str,
    decide: impl Fn(&ProxyProfile) -> Result<Edit, String>,
) -> anyhow::Result<Ending> {
    let mut attempt = 1;
    loop {
        let profile: ProxyProfile = cluster.read_one(name).await?;
        let name = profile.name_any();
        let Edit { mut change, done } = match decide(&profile) {
            Ok(edit) => edit,
            Err(reason) => {
                print(&format!("proxyprofile/{name} is unchanged: {reason}\n"))?;
                return Ok(Ending::ProblemFound);
            }
        };
        // The decision is valid only for this version of the profile.
        change["metadata"] = json!({"resourceVersion": profile.resource_version()});
        match cluster.merge::<ProxyProfile>(&name, &change).await {
            Ok(_) => {
                print(&format!("proxyprofile/{name} {done}\n"))?;
                return Ok(Ending::Success);
            }
            Err(error) if error.is_conflict() && attempt < ATTEMPTS => attempt += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the stage of the rollout of the profile's current generation.
pub(crate) fn stage(report: &ProfileReport) -> Stage {
    // The nodes' readiness and degradation may predate the rollout and do not count. Neither does a
    // note to a rollout that has settled.
    let of_rollout = |trouble: &&ConditionProblem| {
        [PROGRESSING, ACCEPTED, "observedGeneration"].contains(&trouble.condition.as_str())
            && trouble.reason != SETTLED.name
    };
    let mut troubles = report.troubles.iter().filter(of_rollout);
    if troubles
        .clone()
        .any(|trouble| trouble.condition == "observedGeneration")
    {
        // The rest of the status is about an earlier generation.
        return Stage::Going;
    }
    let unfinished = report.nodes.updated < report.nodes.matched;
    match troubles.next() {
        None => Stage::Finished,
        Some(trouble) => match trouble.weight {
            Weight::Pending => Stage::Going,
            Weight::Fault => Stage::Stopped(trouble.clone()),
            // A pause that holds no node back.
            Weight::Note if !unfinished => Stage::Finished,
            Weight::Note => Stage::Stopped(ConditionProblem {
                weight: Weight::Pending,
                ..trouble.clone()
            }),
        },
    }
}

/// Describes the rollout in one line.
pub(crate) fn describe(report: &ProfileReport) -> String {
    clauses(report).join(SEPARATOR) + "\n"
}

/// Describes the rollout in clauses: how far it is, the wave in progress, the nodes it waits for, and
/// what `rollout.undo` does. The wave and its nodes go once it has ended.
fn clauses(report: &ProfileReport) -> Vec<String> {
    let nodes = report.nodes;
    let why = report
        .troubles
        .iter()
        .find(|trouble| [PROGRESSING, "observedGeneration"].contains(&trouble.condition.as_str()));
    let reason = why.map_or("Settled", |trouble| trouble.reason.as_str());
    let mut clauses = vec![format!(
        "{} generation {}: {reason}, {} of {} nodes updated, {} ready, {} degraded",
        report.name, report.generation, nodes.updated, nodes.matched, nodes.ready, nodes.degraded,
    )];
    clauses.extend(report.rollout.as_ref().map(wave).unwrap_or_default());
    let messages = report.troubles.iter().map(|trouble| &*trouble.message);
    let undo = messages.filter_map(|message| Some(&message[message.find(ROLLOUT_UNDO)?..]));
    clauses.extend(undo.take(1).map(str::to_owned));
    clauses
}

/// Describes the wave in progress and the nodes it waits for; empty once the rollout has ended.
fn wave(rollout: &RolloutStatus) -> Vec<String> {
    if rollout.phase != RolloutPhase::RollingOut {
        return Vec::new();
    }
    let index = usize::try_from(rollout.wave).unwrap_or_default();
    let current = rollout.waves.get(index.saturating_sub(1));
    let mut text = format!("wave {} of {}", rollout.wave, rollout.waves.len());
    if let Some(wave) = current {
        text += &format!(
            ", {} of its {} nodes available, {} failed",
            wave.available, wave.nodes, wave.failed
        );
    }
    let mut clauses = vec![text];
    if !rollout.waiting_for.is_empty() {
        clauses.push(format!("waits for {}", rollout.waiting_for));
    }
    clauses
}

#[cfg(test)]
mod tests;
