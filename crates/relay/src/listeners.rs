//! Decides which ports to open, to close and to retarget. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use dataplane::{Claims, Dataplane, Family, Frontend, FrontendKey, PersistentMap, ServicePortName};

use crate::{LocalPort, OpenError, Route};

type Frontends = PersistentMap<FrontendKey, Claims<Arc<Frontend>>>;

/// The desired ports, and the state of each. A port is desired as long as its Service has an
/// endpoint: without a listener the port refuses connections, as a node port without endpoints
/// does.
#[derive(Debug, Default)]
pub struct Listeners {
    /// The last frontends of each family; absent where no ports are desired.
    followed: BTreeMap<Family, Frontends>,
    ports: BTreeMap<LocalPort, DesiredPort>,
}

/// A step for a port, to take before the next call of [`Listeners`]. After an [`Open`](Step::Open)
/// the caller reports the result, by [`Listeners::opened`] or [`Listeners::refused`]; the other steps
/// cannot fail.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Listen on it.
    Open(LocalPort, Arc<Route>),
    /// Send new connections to other endpoints. The port is open already.
    Retarget(LocalPort, Arc<Route>),
    /// Stop listening on it.
    Close(LocalPort),
}

/// A desired port that cannot be listened on.
#[derive(Debug, Clone)]
pub struct ListenFailure {
    /// The port.
    pub port: LocalPort,
    /// The Service port that it belongs to.
    pub service_port: ServicePortName,
    /// The error.
    pub error: Arc<OpenError>,
}

/// Whether a failure differs from the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum ListenFailureChange {
    /// The port was not refused before, or for another reason.
    Fresh,
    /// The port is refused for the same reason as the last time.
    Stale,
}

#[derive(Debug)]
struct DesiredPort {
    route: Arc<Route>,
    listener: ListenerState,
}

#[derive(Debug)]
enum ListenerState {
    /// A step to open it is under way.
    Opening {
        /// The last error, if it was refused before.
        refused: Option<Arc<OpenError>>,
    },
    Open,
    Refused(Arc<OpenError>),
}

// === impl Listeners ===

impl Listeners {
    /// Returns the steps from the previous state of `family` to `dataplane`, or to no ports for
    /// `None`. The cost is proportional to the change.
    pub fn follow(&mut self, family: Family, dataplane: Option<&Dataplane>) -> Vec<Step> {
        let before = self.followed.remove(&family).unwrap_or_default();
        let nothing = Frontends::default();
        let after = dataplane.map_or(&nothing, Dataplane::frontends);
        let mut steps = Vec::new();
        for difference in before.differences(after) {
            let Some(port) = LocalPort::of(difference.key).filter(|port| port.family == family)
            else {
                continue;
            };
            let winner = difference.after.map(|claims| claims.winner().1);
            let route = winner.and_then(|frontend| Route::of(frontend));
            steps.extend(self.want(port, route));
        }
        if dataplane.is_some() {
            self.followed.insert(family, after.clone());
        }
        steps
    }

    /// Records that the port was opened.
    pub fn opened(&mut self, port: LocalPort) {
        if let Some(port_state) = self.ports.get_mut(&port) {
            port_state.listener = ListenerState::Open;
        }
    }

    /// Records that the port could not be opened.
    pub fn refused(&mut self, port: LocalPort, error: OpenError) -> ListenFailureChange {
        let Some(port_state) = self.ports.get_mut(&port) else {
            return ListenFailureChange::Stale;
        };
        let news = match &port_state.listener {
            ListenerState::Opening {
                refused: Some(last),
            } if last.is_like(&error) => ListenFailureChange::Stale,
            _ => ListenFailureChange::Fresh,
        };
        port_state.listener = ListenerState::Refused(Arc::new(error));
        news
    }

    /// Returns steps to retry the ports that were refused, if `room` more ports may be open: none
    /// without room, and at most `room` of those that were refused for lack of room.
    pub fn retry(&mut self, room: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut left = room;
        for (port, port_state) in &mut self.ports {
            let ListenerState::Refused(error) = &port_state.listener else {
                continue;
            };
            match **error {
                OpenError::Bind { .. } if room > 0 => {}
                OpenError::TooMany { .. } if left > 0 => left -= 1,
                OpenError::Bind { .. } | OpenError::TooMany { .. } => continue,
            }
            let refused = Some(Arc::clone(error));
            port_state.listener = ListenerState::Opening { refused };
            steps.push(Step::Open(*port, Arc::clone(&port_state.route)));
        }
        steps
    }

    /// The ports that could not be opened, in order.
    pub fn listen_failures(&self) -> impl Iterator<Item = ListenFailure> {
        self.ports.iter().filter_map(|(port, port_state)| {
            let ListenerState::Refused(error) = &port_state.listener else {
                return None;
            };
            Some(ListenFailure {
                port: *port,
                service_port: port_state.route.service_port.clone(),
                error: Arc::clone(error),
            })
        })
    }

    fn want(&mut self, port: LocalPort, route: Option<Route>) -> Option<Step> {
        let Some(route) = route.map(Arc::new) else {
            let gone = self.ports.remove(&port)?;
            return (!gone.is_refused()).then_some(Step::Close(port));
        };
        let Some(port_state) = self.ports.get_mut(&port) else {
            let listener = ListenerState::Opening { refused: None };
            let port_state = DesiredPort {
                route: Arc::clone(&route),
                listener,
            };
            self.ports.insert(port, port_state);
            return Some(Step::Open(port, route));
        };
        if port_state.route == route {
            return None;
        }
        port_state.route = Arc::clone(&route);
        (!port_state.is_refused()).then_some(Step::Retarget(port, route))
    }
}

// === impl DesiredPort ===

impl DesiredPort {
    fn is_refused(&self) -> bool {
        matches!(self.listener, ListenerState::Refused(_))
    }
}

#[cfg(test)]
mod tests;
