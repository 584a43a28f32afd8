//! Which endpoint a new connection gets. Pure but for the dice.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::{Affinity, Target};

use crate::Route;

/// How long an endpoint that refused is tried last: the time an EndpointSlice takes
/// to say that it has gone, with room to spare.
const SHUNNED: Duration = Duration::from_secs(5);
/// How many clients are remembered for one port. A client is an address, and a process that binds
/// every address of 127.0.0.0/8 in turn must not fill the memory.
const CLIENTS: usize = 1024;

/// Chooses among the endpoints of one port.
#[derive(Debug)]
pub struct Chooser {
    route: Arc<Route>,
    dice: fastrand::Rng,
    /// Where clients return to, and until when.
    affinity: BTreeMap<IpAddr, (Target, Instant)>,
    /// Endpoints that refused, and until when that counts.
    shunned: BTreeMap<Target, Instant>,
}

// === impl Chooser ===

impl Chooser {
    /// One that throws `dice`.
    pub fn new(route: Arc<Route>, dice: fastrand::Rng) -> Chooser {
        Chooser {
            route,
            dice,
            affinity: BTreeMap::new(),
            shunned: BTreeMap::new(),
        }
    }

    /// Chooses among other endpoints from now on. Clients stay with those that are still there, as
    /// long as the port is that of the same Service and its affinity is as it was.
    pub fn retarget(&mut self, route: Arc<Route>) {
        let same =
            self.route.service_port == route.service_port && self.route.affinity == route.affinity;
        let targets = &route.targets;
        self.affinity
            .retain(|_, (target, _)| same && targets.contains(target));
        self.shunned.retain(|target, _| targets.contains(target));
        self.route = route;
    }

    /// Whether a session at `target` may stay there, whether or not new ones may go there.
    pub fn serves(&self, target: Target) -> bool {
        self.route.serving.binary_search(&target).is_ok()
    }

    /// An endpoint for `client` that is none of those it has `tried`; `None` when there is no other.
    /// Those that refused of late come last.
    pub fn choose(&mut self, client: IpAddr, tried: &[Target], now: Instant) -> Option<Target> {
        let is_free = |target: &Target| !tried.contains(target);
        let (shunned, good): (Vec<Target>, Vec<Target>) = (self.route.targets.iter().copied())
            .filter(is_free)
            .partition(|target| self.is_shunned(target, now));
        let given = self.affinity.get(&client);
        let given = given.filter(|(target, until)| now < *until && good.contains(target));
        if let Some((target, _)) = given {
            return Some(*target);
        }
        let among = if good.is_empty() { shunned } else { good };
        self.dice.choice(among)
    }

    /// `client` was given `target`, and will return to it if its Service asks for that.
    pub fn given(&mut self, client: IpAddr, target: Target, now: Instant) {
        let Affinity::ClientIp { timeout } = self.route.affinity else {
            return;
        };
        // It may have gone between the choice and the connection.
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

    /// `target` does not take connections.
    pub fn refused(&mut self, target: Target, now: Instant) {
        if self.offers(target) {
            self.shunned.insert(target, now + SHUNNED);
        }
    }

    /// Whether `target` is one to choose.
    fn offers(&self, target: Target) -> bool {
        self.route.targets.contains(&target)
    }

    fn is_shunned(&self, target: &Target, now: Instant) -> bool {
        self.shunned.get(target).is_some_and(|until| now < *until)
    }
}

#[cfg(test)]
mod tests;
