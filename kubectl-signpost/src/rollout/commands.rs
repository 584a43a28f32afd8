//! The commands with which a user moves a rollout on. Pure.

use std::path::absolute;

use crds::ProxyProfile;
use crds::condition::ACCEPTED;
use crds::condition::reason::PAUSED;
use kube::ResourceExt;
use serde::Serialize;

use super::{Stage, edit};
use crate::arguments::Access;

/// A command to type, and what it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct NextCommand {
    command: String,
    effect: String,
}

/// Returns the commands that would do something now. Each ends with `flags`, which select the
/// cluster.
pub(crate) fn commands(profile: &ProxyProfile, stage: &Stage, flags: &str) -> Vec<NextCommand> {
    let name = profile.name_any();
    let next = |command: &str, effect: &str| NextCommand {
        command: format!("kubectl {command} {name}{flags}"),
        effect: effect.to_owned(),
    };
    let abort = || {
        let what = "takes the change back from nodes that have it";
        let possible = edit::abort(profile).ok();
        possible.map(|_| next("signpost rollout abort", what))
    };
    match stage {
        Stage::Finished => Vec::new(),
        Stage::Going => abort().into_iter().collect(),
        Stage::Stopped(found) if found.reason == PAUSED.name => {
            let resume = next("signpost rollout resume", "lets the change go on");
            [resume].into_iter().chain(abort()).collect()
        }
        Stage::Stopped(_) => {
            let undo = edit::undo(profile, None).ok();
            let undo = undo.map(|edit| next("signpost rollout undo", &edit.done));
            let correct = next("edit proxyprofile", "opens the profile, to correct it");
            // No attempt begins with a profile that is invalid or conflicts.
            let retry = edit::retry(profile).ok().filter(|_| !is_refused(profile));
            let retry = retry.map(|edit| next("signpost rollout retry", &edit.done));
            undo.into_iter().chain([correct]).chain(retry).collect()
        }
    }
}

fn is_refused(profile: &ProxyProfile) -> bool {
    let status = profile.status.iter();
    let mut conditions = status.flat_map(|status| &status.conditions);
    conditions.any(|condition| condition.type_ == ACCEPTED && condition.status == "False")
}

/// Returns the flags that select the cluster of `access`, for a shell in any directory; each begins
/// with a space. `current` is the context of the kubeconfig when the page began: a user may change
/// it, and `rollout undo default` would act on another cluster.
pub(crate) fn flags(access: &Access, current: Option<&str>) -> String {
    let file = access.kubeconfig.as_deref();
    let file = file.map(|file| absolute(file).unwrap_or_else(|_| file.to_owned()));
    let file = file.map(|file| format!(" --kubeconfig={}", quoted(&file.display().to_string())));
    let context = access.context.as_deref().or(current);
    let context = context.map(|context| format!(" --context={}", quoted(context)));
    [file, context].into_iter().flatten().collect()
}

fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:@".contains(letter);
    match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use crds::profile::history::Revision;
    use serde_json::{Value, json};

    use super::*;
    use crate::arguments::Arguments;
    use crate::rollout::stage;
    use crate::status::ProfileReport;

    /// Returns the commands for a profile whose rollout is in this phase, without `kubectl`.
    fn offered(phase: &str, (status, reason): (&str, &str), paused: bool) -> Vec<String> {
        let revision = |generation: i64, spec: Value| {
            let spec = serde_json::from_value(spec).expect("a spec");
            json!({
                "generation": generation, "configHash": format!("{generation}"), "phase": phase,
                "since": "2026-01-01T00:00:00Z", "spec": Revision::fields(&spec),
            })
        };
        let spec = json!({"mode": "iptables", "paused": paused});
        let profile: ProxyProfile = serde_json::from_value(json!({
            "metadata": {"name": "default", "generation": 2}, "spec": spec,
            "status": {
                "observedGeneration": 2, "matchedNodes": 3, "updatedNodes": 1,
                "rollout": {"configHash": "2", "generation": 2, "phase": phase, "since": "2026-01-01T00:00:00Z", "wave": 1},
                "history": [revision(2, spec), revision(1, json!({}))],
                "conditions": [{
                    "type": "Progressing", "status": status, "reason": reason, "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            },
        }))
        .expect("a profile");
        let found = commands(&profile, &stage(&ProfileReport::of(&profile)), "");
        let found = found.into_iter().map(|next| next.command);
        found
            .map(|text| text.trim_start_matches("kubectl ").to_owned())
            .collect()
    }

    #[test]
    fn t232_only_commands_that_would_do_something_are_offered() {
        let stopped = ["undo", "retry"].map(|verb| format!("signpost rollout {verb} default"));
        for phase in ["Halted", "RolledBack"] {
            let found = offered(phase, ("False", phase), false);
            assert_eq!(
                found,
                [&stopped[0], "edit proxyprofile default", &stopped[1]]
            );
        }
        let found = offered("RollingOut", ("True", "RollingOut"), false);
        assert_eq!(found, ["signpost rollout abort default"]);
        let found = offered("Paused", ("False", "Paused"), true);
        let expected = ["resume", "abort"].map(|verb| format!("signpost rollout {verb} default"));
        assert_eq!(found, expected);
        // Pausing holds a rollout that goes on, and changes nothing of one that has failed.
        let found = offered("Halted", ("False", "Halted"), true);
        assert_eq!(found.first(), Some(&stopped[0]), "{found:?}");
        let found = offered("Settled", ("False", "Settled"), false);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn t232_commands_are_about_the_cluster_of_the_page() {
        let flags = |more: &[&str]| {
            let arguments = [&["kubectl-signpost", "dashboard"], more].concat();
            flags(&Arguments::parse_from(arguments).access, Some("here"))
        };
        assert_eq!(flags(&[]), " --context=here");
        let found = flags(&["--kubeconfig=/etc/admin.conf", "--context=it's a test"]);
        assert_eq!(
            found,
            r" --kubeconfig=/etc/admin.conf --context='it'\''s a test'"
        );
    }
}
