//! Whether the page shows the present state of the API server. Pure.

use jiff::Timestamp;
use runtime::chain;
use serde::Serialize;

use crate::cluster::ClusterError;

/// The state of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WatchState {
    /// The first list is in progress.
    Pending,
    /// The watch reports every change.
    Follows,
    /// The API server does not answer or denies the request.
    Fails(Failure),
}

/// Why a watch reports no changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) since: Timestamp,
    pub(super) text: String,
    pub(super) advice: Option<&'static str>,
    /// Whether the user lacks permission to read these objects.
    pub(super) is_forbidden: bool,
}

/// The state of all watches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Connection {
    /// The address of the API server.
    pub(super) server: String,
    /// The default namespace for names without one.
    pub(super) namespace: String,
    pub(super) state: State,
    /// The state in words.
    pub(super) text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<&'static str>,
}

/// The combined state of all watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum State {
    /// The first lists are in progress.
    Loading,
    /// Every change is shown.
    Live,
    /// The page may be out of date.
    Lost,
}

// === impl WatchState ===

impl WatchState {
    /// Records a failure. The first of consecutive failures sets the time.
    pub(super) fn fail(&mut self, error: &ClusterError, now: Timestamp) {
        let since = match self {
            WatchState::Fails(before) => before.since,
            WatchState::Pending | WatchState::Follows => now,
        };
        *self = WatchState::Fails(Failure {
            since,
            text: chain(error).to_string(),
            advice: Some(error.advice()),
            is_forbidden: error.is_forbidden(),
        });
    }
}

// === impl Connection ===

impl Connection {
    /// Combines the watches of profiles, NodeProxies and Nodes. Nodes are optional, as for
    /// `status`: they are used only to list nodes without a configuration, and a user who may read
    /// Signpost's objects may lack permission to read them.
    pub(super) fn of(
        (server, namespace): (&str, &str),
        required: [&WatchState; 2],
        nodes: &WatchState,
    ) -> Connection {
        let watches = required.into_iter().chain([nodes]);
        let failures = watches.clone().filter_map(|watch| match watch {
            WatchState::Fails(failure) => Some(failure),
            WatchState::Pending | WatchState::Follows => None,
        });
        let leaves_out = |failure: &&Failure| {
            failure.is_forbidden && *nodes == WatchState::Fails((*failure).clone())
        };
        let failure = failures
            .clone()
            .filter(|failure| !leaves_out(failure))
            .min_by_key(|failure| failure.since);
        let (state, text) = match failure {
            Some(failure) => (State::Lost, failure.text.clone()),
            None if watches.clone().any(|known| *known == WatchState::Pending) => {
                (State::Loading, "reading objects".to_owned())
            }
            None => match failures.clone().find(leaves_out) {
                Some(_) => (
                    State::Live,
                    "live, without the right to read Nodes".to_owned(),
                ),
                None => (State::Live, "live".to_owned()),
            },
        };
        Connection {
            server: server.to_owned(),
            namespace: namespace.to_owned(),
            state,
            text,
            since: failure.map(|failure| failure.since),
            advice: failure.and_then(|failure| failure.advice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(since: i64, is_forbidden: bool) -> WatchState {
        WatchState::Fails(Failure {
            since: Timestamp::from_second(since).expect("a time"),
            text: format!("failed at {since}"),
            advice: None,
            is_forbidden,
        })
    }

    fn of(profiles: WatchState, proxies: WatchState, nodes: WatchState) -> (State, String) {
        let found = Connection::of(("https://api", "default"), [&profiles, &proxies], &nodes);
        (found.state, found.text)
    }

    #[test]
    fn a_page_is_live_once_every_watch_follows_and_lost_since_the_first_that_fails() {
        use WatchState::{Follows, Pending};
        assert_eq!(of(Follows, Pending, Follows).0, State::Loading);
        assert_eq!(of(Follows, Follows, Follows).0, State::Live);
        let lost = of(failing(7, false), failing(5, false), Pending);
        assert_eq!(lost, (State::Lost, "failed at 5".to_owned()));
        assert_eq!(of(Follows, Follows, failing(5, false)).0, State::Lost);
        assert_eq!(of(failing(5, true), Follows, Follows).0, State::Lost);
    }

    #[test]
    fn a_user_who_may_not_read_nodes_is_reported_and_sees_the_rest() {
        let found = of(WatchState::Follows, WatchState::Follows, failing(5, true));
        let text = "live, without the right to read Nodes".to_owned();
        assert_eq!(found, (State::Live, text));
    }
}
