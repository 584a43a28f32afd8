//! Chooses the endpoint for a new connection. Pure except for the random numbers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::{Affinity, Target};

use crate::Route;

/// How long an endpoint that refused is tried last: the time until an EndpointSlice no longer lists
/// it, with a margin.
const SHUNNED: Duration = Duration::from_secs(5);
/// The maximum number of clients that are remembered for one port. A client is an address, and a
/// process that binds every address of 127.0.0.0/8 in turn must not fill the memory.
const CLIENTS: usize = 1024;

/// Chooses among the endpoints of one port.
#[derive(Debug)]
pub struct Chooser {
    route: Arc<Route>,
    dice: fastrand::Rng,
    /// The endpoint that each client returns to, and until when.
    affinity: BTreeMap<IpAddr, (Target, Instant)>,
    /// The endpoints that refused, and until when they are tried last.
    recently_refused: BTreeMap<Target, Instant>,
}

// === impl Chooser ===

impl Chooser {
    /// Creates a chooser that uses `dice` as its source of randomness.
    pub fn new(route: Arc<Route>, dice: fastrand::Rng) -> Chooser {
        Chooser {
            route,
            dice,
            affinity: BTreeMap::new(),
            recently_refused: BTreeMap::new(),
        }
    }

    /// Replaces the endpoints. Clients stay with their endpoints that remain, as long as the port
    /// belongs to the same Service and its affinity is unchanged.
    pub fn retarget(&mut self, route: Arc<Route>) {
        let same =
            self.route.service_port == route.service_port && self.route.affinity == route.affinity;
        let targets = &route.targets;
        self.affinity
            .retain(|_, (target, _)| same && targets.contains(target));
        self.recently_refused
            .retain(|target, _| targets.contains(target));
        self.route = route;
    }

    /// Whether an existing session at `target` may continue, even if the endpoint gets no new ones.
    pub fn serves(&self, target: Target) -> bool {
        self.route.serving.binary_search(&target).is_ok()
    }

    /// Returns an endpoint for `client` that is not in `tried`; `None` if there is no other.
    /// Endpoints that recently refused come last.
    pub fn choose(&mut self, client: IpAddr, tried: &[Target], now: Instant) -> Option<Target> {
        let is_free = |target: &Target| !tried.contains(target);
        let (recently_refused, good): (Vec<Target>, Vec<Target>) =
            (self.route.targets.iter().copied())
                .filter(is_free)
                .partition(|target| self.is_shunned(target, now));
        let given = self.affinity.get(&client);
        let given = given.filter(|(target, until)| now < *until && good.contains(target));
        if let Some((target, _)) = given {
            return Some(*target);
        }
        let among = if good.is_empty() {
            recently_refused
        } else {
            good
        };
        self.dice.choice(among)
    }

    /// Records that `client` was given `target`, so that it returns there if its Service has
    /// session affinity.
    pub fn given(&mut self, client: IpAddr, target: Target, now: Instant) {
        let Affinity::ClientIp { timeout } = self.route.affinity else {
            return;
        };
        // It may have been removed between the choice and the connection.
        if !self.offers(target) {
            return;
        }
        if self.affinity.len() >= CLIENTS && !self.affinity.contains_key(&client) {
            self.affinity.retain(|_, (_, until)| now < *until);
        }
        if self.affinity.len() >= CLIENTS && !self.affinity.contains_key(&client) {
            let soonest = self.affinity.iter().min_by_key(|(_, (_, until))| *until);
            if let Some(soonest) = soonest.map(|(client, _)| *client) {
                self.affinity.remove(&soonest);
            }
        }
        self.affinity.insert(client, (target, now + timeout));
    }

    /// Records that `target` does not accept connections.
    pub fn refused(&mut self, target: Target, now: Instant) {
        if self.offers(target) {
            self.recently_refused.insert(target, now + SHUNNED);
        }
    }

    /// Whether new connections may go to `target`.
    fn offers(&self, target: Target) -> bool {
        self.route.targets.contains(&target)
    }

    fn is_shunned(&self, target: &Target, now: Instant) -> bool {
        self.recently_refused
            .get(target)
            .is_some_and(|until| now < *until)
    }
}

#[cfg(test)]
mod tests;
