//! Which ports to open, to close, and to send elsewhere. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use dataplane::{Claims, Dataplane, Family, Frontend, FrontendKey, PersistentMap, ServicePortName};

use crate::{LocalPort, OpenError, Route};

type Frontends = PersistentMap<FrontendKey, Claims<Arc<Frontend>>>;

/// The ports that are wanted, and how each stands. A port is wanted as long as its Service has an
/// endpoint: one that nobody listens on refuses connections as a node port without endpoints does.
#[derive(Debug, Default)]
pub struct Listeners {
    /// What each family was last brought to; absent where nothing is wanted.
    followed: BTreeMap<Family, Frontends>,
    ports: BTreeMap<LocalPort, Wanted>,
}

/// Something to do to a port, before anything more is asked of [`Listeners`]. Whoever does an
/// [`Open`](Step::Open) says how it went, by [`Listeners::opened`] or [`Listeners::refused`]; the
/// others cannot fail.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Listen on it.
    Open(LocalPort, Arc<Route>),
    /// Send what is new somewhere else. It is listened on already.
    Retarget(LocalPort, Arc<Route>),
    /// Stop listening on it.
    Close(LocalPort),
}

/// A port that is wanted and cannot be listened on.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// Which.
    pub port: LocalPort,
    /// Whose it is.
    pub service_port: ServicePortName,
    /// Why not.
    pub error: Arc<OpenError>,
}

/// Whether there is something new about a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum News {
    /// The port was not refused before, or for another reason.
    Fresh,
    /// It is refused as it was the last time.
    Stale,
}

#[derive(Debug)]
struct Wanted {
    route: Arc<Route>,
    standing: Standing,
}

#[derive(Debug)]
enum Standing {
    /// A step to open it is on its way.
    Opening {
        /// Why it was refused the last time, if it was.
        refused: Option<Arc<OpenError>>,
    },
    Open,
    Refused(Arc<OpenError>),
}

// === impl Listeners ===

impl Listeners {
    /// The steps from what `family` was brought to before to `dataplane`; without one, to nothing.
    /// Costs what changed in between.
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

    /// The port is listened on.
    pub fn opened(&mut self, port: LocalPort) {
        if let Some(wanted) = self.ports.get_mut(&port) {
            wanted.standing = Standing::Open;
        }
    }

    /// The port cannot be listened on.
    pub fn refused(&mut self, port: LocalPort, error: OpenError) -> News {
        let Some(wanted) = self.ports.get_mut(&port) else {
            return News::Stale;
        };
        let news = match &wanted.standing {
            Standing::Opening {
                refused: Some(last),
            } if last.is_like(&error) => News::Stale,
            _ => News::Fresh,
        };
        wanted.standing = Standing::Refused(Arc::new(error));
        news
    }

    /// Steps to open what was refused before, where `room` more ports may be open: none without
    /// room, and no more of those that only want for room than there is.
    pub fn retry(&mut self, room: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut left = room;
        for (port, wanted) in &mut self.ports {
            let Standing::Refused(error) = &wanted.standing else {
                continue;
            };
            match **error {
                OpenError::Bind { .. } if room > 0 => {}
                OpenError::TooMany { .. } if left > 0 => left -= 1,
                OpenError::Bind { .. } | OpenError::TooMany { .. } => continue,
            }
            let refused = Some(Arc::clone(error));
            wanted.standing = Standing::Opening { refused };
            steps.push(Step::Open(*port, Arc::clone(&wanted.route)));
        }
        steps
    }

    /// The ports that cannot be listened on, in their order.
    pub fn refusals(&self) -> impl Iterator<Item = Refusal> {
        self.ports.iter().filter_map(|(port, wanted)| {
            let Standing::Refused(error) = &wanted.standing else {
                return None;
            };
            Some(Refusal {
                port: *port,
                service_port: wanted.route.service_port.clone(),
                error: Arc::clone(error),
            })
        })
    }

    fn want(&mut self, port: LocalPort, route: Option<Route>) -> Option<Step> {
        let Some(route) = route.map(Arc::new) else {
            let gone = self.ports.remove(&port)?;
            return (!gone.is_refused()).then_some(Step::Close(port));
        };
        let Some(wanted) = self.ports.get_mut(&port) else {
            let standing = Standing::Opening { refused: None };
            let wanted = Wanted {
                route: Arc::clone(&route),
                standing,
            };
            self.ports.insert(port, wanted);
            return Some(Step::Open(port, route));
        };
        if wanted.route == route {
            return None;
        }
        wanted.route = Arc::clone(&route);
        (!wanted.is_refused()).then_some(Step::Retarget(port, route))
    }
}

// === impl Wanted ===

impl Wanted {
    fn is_refused(&self) -> bool {
        matches!(self.standing, Standing::Refused(_))
    }
}

#[cfg(test)]
mod tests;
