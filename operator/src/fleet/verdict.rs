//! Why a rollout failed, as written in its profile's status.

use crds::{condition::reason::ABORTED, profile::progress::RolloutVerdict};

use crate::fleet::{
    node_failure::NodeFailure, node_progress::NodeProgress, profile_node::ProfileNode,
};

/// The maximum number of names in one message.
const MOST_NAMED: usize = 5;

/// The maximum numbers of characters that the schema of [`RolloutVerdict`] allows.
const LONGEST_REASON: usize = 128;
const LONGEST_MESSAGE: usize = 32_768;

/// Returns the failing nodes.
pub(super) fn failed_nodes<'a>(
    members: &'a [ProfileNode<'_>],
    node_progress: &'a [NodeProgress],
) -> impl Iterator<Item = (&'a str, &'a NodeFailure)> {
    let failure = |(member, progress): (&'a ProfileNode<'_>, &'a NodeProgress)| match progress {
        NodeProgress::Failed(failure) => Some((member.name(), failure)),
        _ => None,
    };
    members.iter().zip(node_progress).filter_map(failure)
}

/// Returns the verdict of an aborted rollout after this many nodes have failed.
pub(super) fn aborted(failed: usize) -> RolloutVerdict {
    RolloutVerdict {
        failed_nodes: u32::try_from(failed).unwrap_or(u32::MAX),
        node: String::new(),
        reason: ABORTED.name.to_owned(),
        message: "aborted: rollout.abort of the profile names this configuration".to_owned(),
    }
}

/// Returns the verdict of a rollout of `total` nodes of which these fail.
pub(super) fn verdict(failed_nodes: &[(&str, &NodeFailure)], total: usize) -> RolloutVerdict {
    let count = failed_nodes.len();
    let first = failed_nodes.first();
    let mut text = format!("{count} of {total} nodes failed");
    for (index, (name, failure)) in failed_nodes.iter().take(MOST_NAMED).enumerate() {
        text += if index == 0 { ": " } else { "; " };
        text += &format!("{name} ({})", failure.message);
    }
    if count > MOST_NAMED {
        text += &format!("; and {} more", count - MOST_NAMED);
    }
    RolloutVerdict {
        failed_nodes: u32::try_from(count).unwrap_or(u32::MAX),
        node: first.map_or_else(String::new, |(name, _)| (*name).to_owned()),
        reason: cut(
            first.map_or("", |(_, failure)| failure.reason.as_str()),
            LONGEST_REASON,
        ),
        message: cut(&text, LONGEST_MESSAGE),
    }
}

/// Returns the beginning of `text` that the schema accepts. A status that it refuses would not be
/// written at all.
fn cut(text: &str, longest: usize) -> String {
    text.chars().take(longest).collect()
}
