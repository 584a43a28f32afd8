//! Detects schedulers that the kernel lacks, and replaces them.
//!
//! A Service may ask for any scheduler. If the kernel lacks it, only that Service loses its
//! scheduler: the mode and the connections of all other Services are not affected.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use backend::{CommitError, Effect, Recovery};
use dataplane::{Dataplane, ServiceKey};
use netlink::ipvs::{SchedulerName, SchedulerSupport, VirtualServer, VirtualServerFlags};

use super::recovery::of_servers;
use super::{Connection, Ipvs};
use crate::diff::Change;
use crate::plan::virtual_server;
use crate::rules::{Rules, Server};

/// The replacement for all others. The mode is not started without it.
pub(super) const FIRST: &str = "rr";

/// The results of the checks in one family so far.
#[derive(Debug, Default)]
pub(super) struct Schedulers(BTreeMap<SchedulerName, SchedulerSupport>);

/// A scheduler that the kernel lacks.
#[derive(Debug, thiserror::Error)]
#[error("the kernel has no IPVS scheduler {scheduler} (module {})", scheduler.module())]
struct Lacking {
    scheduler: SchedulerName,
}

// === impl Schedulers ===

impl Schedulers {
    /// Replaces the schedulers that the kernel is known to lack.
    pub(super) fn replace_missing(&self, rules: Rules) -> Rules {
        if self.missing().next().is_none() {
            return rules;
        }
        replace(rules, |_, server| self.is_missing(&server.server.scheduler))
    }

    /// The replacements for schedulers that Services of `programmed` need and the kernel lacks, as
    /// messages.
    pub(super) fn replacements(&self, programmed: &Dataplane) -> impl Iterator<Item = String> {
        self.missing().filter_map(|scheduler| {
            let services = services_with(scheduler, programmed);
            let first = services.first()?;
            let others = match services.len() - 1 {
                0 => String::new(),
                more => format!(" and {more} others"),
            };
            let module = scheduler.module();
            Some(format!(
                "Service {first}{others}: {FIRST} in the place of scheduler {scheduler}, because the kernel has no \
                 module {module}: load it and restart the agent"
            ))
        })
    }

    /// Discards the results, so that the kernel is checked again.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    fn missing(&self) -> impl Iterator<Item = &SchedulerName> {
        let missing = self.0.iter();
        missing
            .filter(|(_, support)| **support == SchedulerSupport::Missing)
            .map(|(scheduler, _)| scheduler)
    }

    pub(super) fn is_missing(&self, scheduler: &SchedulerName) -> bool {
        self.0.get(scheduler) == Some(&SchedulerSupport::Missing)
    }
}

/// The Services whose virtual servers would have this scheduler.
fn services_with<'a>(
    scheduler: &SchedulerName,
    programmed: &'a Dataplane,
) -> BTreeSet<&'a ServiceKey> {
    let claims = programmed.frontends().iter();
    let claims = claims.map(|(_, claims)| claims.winner());
    let asking = claims.filter(|(_, frontend)| {
        let server = virtual_server(frontend.scheduler);
        server.scheduler == *scheduler
    });
    asking.map(|(service, _)| service).collect()
}

/// Replaces the schedulers that a backend had replaced in `programmed`. Only that backend knows
/// which ones the kernel lacks.
pub(crate) fn replace_as_programmed(rules: Rules, programmed: &Rules) -> Rules {
    let first = first();
    replace(rules, |number, _| {
        let before = programmed.servers.get(&number);
        before.is_some_and(|before| before.server.scheduler == first)
    })
}

/// Sets [`FIRST`] for the virtual servers that `is_replaced` accepts.
fn replace(mut rules: Rules, is_replaced: impl Fn(u32, &Server) -> bool) -> Rules {
    let servers = rules.servers.iter();
    let affected = servers.filter(|(number, server)| is_replaced(**number, server));
    let replaced: Vec<(u32, Arc<Server>)> = affected
        .map(|(number, server)| {
            let server = Server {
                server: VirtualServer {
                    scheduler: first(),
                    flags: VirtualServerFlags::default(),
                },
                ..Server::clone(server)
            };
            (*number, Arc::new(server))
        })
        .collect();
    for (number, server) in replaced {
        rules.servers.insert(number, server);
    }
    rules
}

fn first() -> SchedulerName {
    SchedulerName::new(FIRST).expect("it is a short word")
}

// === impl Ipvs ===

impl Ipvs {
    /// Checks, before anything is written, whether the kernel has the schedulers that `change`
    /// needs. Loads IPVS and its schedulers if possible.
    pub(super) fn check_schedulers(
        &mut self,
        connection: &mut Connection,
        change: &Change,
    ) -> Result<(), CommitError> {
        let mut schedulers = change.schedulers();
        // Without IPVS nothing may be sent to it, even if there is no Service yet.
        let first = first();
        schedulers.extend(change.begins().then_some(&first));
        for scheduler in schedulers {
            if self.schedulers.0.get(scheduler) == Some(&SchedulerSupport::Present) {
                continue;
            }
            let found = connection
                .servers
                .socket()
                .check_scheduler(self.family, scheduler);
            let support = found.map_err(|error| {
                let (recovery, _) = of_servers(&error, true);
                self.uncommitted((recovery, Effect::None), error)
            })?;
            let scheduler = scheduler.clone();
            self.schedulers.0.insert(scheduler.clone(), support);
            if support == SchedulerSupport::Missing {
                let recovery = match scheduler == first {
                    true => Recovery::Halt,
                    // The next rendering replaces it.
                    false => Recovery::Observe,
                };
                let lacking = Lacking { scheduler };
                return Err(self.uncommitted((recovery, Effect::None), lacking));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use dataplane::{Mechanism, Scheduler, compile};
    use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

    use super::*;

    /// A node in mode ipvs with one Service, which asks for this scheduler.
    fn with_service(scheduler: Scheduler) -> Dataplane {
        let config = mk_config().mechanism(Mechanism::Ipvs).build();
        let node = mk_node(1).build();
        let service = mk_service("shop/web").cluster_ip("10.96.0.10");
        let service = service.scheduler(scheduler).port("", 80).build();
        let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:80", "node-1");
        let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
        dataplane.set(compile(&service, &endpoints.build(), &node, &config).into());
        dataplane
    }

    #[test]
    fn what_the_kernel_lacks_is_replaced_and_named_and_nothing_else_changes() {
        let server = |name: &str| {
            Arc::new(Server {
                server: VirtualServer {
                    scheduler: SchedulerName::new(name).expect("it is a name"),
                    flags: VirtualServerFlags::FALLBACK,
                },
                destinations: BTreeMap::new(),
                owner: None,
            })
        };
        let rules = Rules {
            servers: [(1, server("mh")), (2, server("twos"))]
                .into_iter()
                .collect(),
            ..Rules::default()
        };
        let mut schedulers = Schedulers::default();
        assert_eq!(schedulers.replace_missing(rules.clone()), rules);
        let twos = SchedulerName::new("twos").expect("it is a name");
        schedulers.0.insert(twos, SchedulerSupport::Missing);
        let replaced = schedulers.replace_missing(rules.clone());
        assert_eq!(replaced.servers.get(&1), rules.servers.get(&1));
        let second = replaced.servers.get(&2).expect("it is still there");
        assert_eq!(second.server.scheduler, first());
        assert_eq!(second.server.flags, VirtualServerFlags::default());
        let named = |scheduler| -> Vec<String> {
            schedulers.replacements(&with_service(scheduler)).collect()
        };
        let messages = named(Scheduler::PowerOfTwo);
        assert_eq!(messages.len(), 1, "{messages:?}");
        let expected = "Service shop/web: rr in the place of scheduler twos, because the kernel has no module \
                        ip_vs_twos";
        assert!(messages[0].starts_with(expected), "{messages:?}");
        let others = named(Scheduler::LeastConnection);
        assert_eq!(others, [""; 0], "no Service needs the missing one");
        assert_eq!(replace_as_programmed(rules.clone(), &replaced), replaced);
        assert_eq!(replace_as_programmed(rules.clone(), &rules), rules);
        schedulers.forget();
        assert_eq!(schedulers.replace_missing(rules.clone()), rules);
    }
}
