//! Reads the programmed rules from the kernel.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use netlink::Socket;
use xtables::Variant;

use super::Contender;
use super::netlink_dump::{Listed, NetlinkSocket};
use super::population::{Population, is_endpoint, service_at};
use super::saved_rules::SavedRules;
use super::virtual_server_table::VirtualServerTable;
use crate::differential::Mode;
use crate::network::Namespace;

/// How often the kernel is polled for changes: the resolution of polled times.
const PAUSE: Duration = Duration::from_millis(1);
/// How long nothing must change before a dump is taken. A dump uses a processor for tens of
/// milliseconds, which a contender that is still writing needs; the time of the last change is
/// known without it.
const SETTLED: Duration = Duration::from_millis(100);
/// The longest time between a change and a dump, because changes may never end.
const OVERDUE: Duration = Duration::from_millis(500);

/// Reads the tables of one node.
#[derive(Debug)]
pub struct RuleReader {
    kernel: Kernel,
    view: View,
    unlooked: Option<Unlooked>,
}

/// Changes since the last dump.
#[derive(Debug, Clone, Copy)]
struct Unlooked {
    since: Instant,
    last: Sighting,
}

/// The kernel interface to poll.
#[derive(Debug)]
enum Kernel {
    /// nf_tables, which has a generation counter of its transactions.
    NfTables {
        socket: Socket,
        dump: NetlinkSocket,
        generation: Option<u32>,
    },
    /// The legacy xtables.
    Legacy(SavedRules),
    /// IPVS.
    Ipvs(VirtualServerTable),
}

/// Which rules of a contender to read.
#[derive(Debug, Clone, Copy)]
struct View {
    places: &'static [Place],
    proof: Proof,
}

/// What to list.
#[derive(Debug, Clone, Copy)]
struct Place {
    table: &'static str,
    listed: Listed,
}

/// The condition under which everything counts as programmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// Every Service is present: it is written in one transaction with its endpoints.
    Services,
    /// Every Service and every endpoint is present.
    Endpoints,
}

/// The addresses found in a dump.
#[derive(Debug, Default)]
struct Found {
    services: BTreeSet<u32>,
    endpoints: BTreeSet<u32>,
}

/// The time of an observation.
#[derive(Debug, Clone, Copy)]
pub struct Sighting {
    /// When the rules last changed before the dump that completed the observation.
    pub at: Instant,
    /// The maximum error of that time: how long the kernel was not polled.
    pub resolution: Duration,
}

// === impl View ===

impl View {
    fn of(contender: Contender, mode: Mode) -> View {
        match (mode, contender) {
            (Mode::Nftables, Contender::KubeProxy) => View {
                places: &[Place {
                    table: "kube-proxy",
                    listed: Listed::Elements("service-ips"),
                }],
                proof: Proof::Services,
            },
            (Mode::Nftables, Contender::Signpost) => View {
                places: &[
                    Place {
                        table: "signpost",
                        listed: Listed::Elements("services"),
                    },
                    Place {
                        table: "signpost",
                        listed: Listed::Elements("endpoints"),
                    },
                ],
                proof: Proof::Endpoints,
            },
            // The reader of virtual servers knows where to look.
            (Mode::Ipvs, _) => View {
                places: &[],
                proof: Proof::Endpoints,
            },
            (Mode::Iptables(_), _) => View {
                places: &[Place {
                    table: "nat",
                    listed: Listed::Rules,
                }],
                proof: Proof::Endpoints,
            },
        }
    }
}

// === impl RuleReader ===

impl RuleReader {
    /// Opens the rules of `contender` on `node`.
    pub fn open(node: &Namespace, contender: Contender, mode: Mode) -> Result<RuleReader> {
        let kernel = match mode {
            Mode::Iptables(Variant::Legacy) => Kernel::Legacy(SavedRules::open(node)?),
            Mode::Ipvs => Kernel::Ipvs(VirtualServerTable::open(node, contender)?),
            Mode::Nftables | Mode::Iptables(Variant::NfTables) => {
                let opened = node.enter(|| {
                    anyhow::Ok(Kernel::NfTables {
                        socket: Socket::open()?,
                        dump: NetlinkSocket::open()?,
                        generation: None,
                    })
                })?;
                opened.context("failed to open netlink sockets")?
            }
        };
        Ok(RuleReader {
            kernel,
            view: View::of(contender, mode),
            unlooked: None,
        })
    }

    /// Polls until every Service of `population` and all endpoints are programmed. Returns `None`
    /// after `deadline`. Fails if `check` fails, which is called from time to time.
    pub fn wait_for_all(
        &mut self,
        population: &Population,
        deadline: Duration,
        mut check: impl FnMut() -> Result<()>,
    ) -> Result<Option<Sighting>> {
        let end = Instant::now() + deadline;
        let (mut asked, mut checked) = (Instant::now(), Instant::now());
        while Instant::now() < end {
            let changed = self.notice_change(&mut asked)?;
            let looked = asked.elapsed();
            let is_due = |unlooked: &mut Unlooked| {
                let is_settled = !changed && unlooked.last.at.elapsed() >= SETTLED;
                is_settled || unlooked.since.elapsed() >= OVERDUE
            };
            if let Some(Unlooked { mut last, .. }) = self.unlooked.take_if(is_due) {
                let found = self.read(population.services())?;
                if found.is_all(population, self.view.proof) {
                    if self.notice_change(&mut asked)? {
                        // This change may have been the one that completed the rules.
                        last.resolution += last.at.elapsed();
                    }
                    return Ok(Some(last));
                }
            }
            if checked.elapsed() > Duration::from_millis(200) {
                check()?;
                checked = Instant::now();
            }
            // A look at virtual servers takes long: no more than half of one processor is for that.
            thread::sleep(PAUSE.max(looked));
        }
        Ok(None)
    }

    /// Whether the rules may have changed since `asked`, which is set to now.
    fn notice_change(&mut self, asked: &mut Instant) -> Result<bool> {
        let before = std::mem::replace(asked, Instant::now());
        let changed = self.has_changed()?;
        if changed {
            let last = Sighting {
                at: *asked,
                resolution: before.elapsed(),
            };
            let since = self.unlooked.map_or(last.at, |unlooked| unlooked.since);
            self.unlooked = Some(Unlooked { since, last });
        }
        Ok(changed)
    }

    /// Whether the rules may have changed since the last call.
    fn has_changed(&mut self) -> Result<bool> {
        match &mut self.kernel {
            Kernel::Legacy(rules) => rules.has_changed(),
            Kernel::Ipvs(servers) => servers.has_changed(),
            Kernel::NfTables {
                socket, generation, ..
            } => {
                let now = Some(socket.observe_generation()?);
                let changed = *generation != now;
                *generation = now;
                Ok(changed)
            }
        }
    }

    fn read(&mut self, services: u32) -> Result<Found> {
        let mut found = Found::default();
        let mut each = |word| {
            if let Some(service) = service_at(word, services) {
                found.services.insert(service);
            } else if is_endpoint(word) {
                found.endpoints.insert(word);
            }
        };
        match &mut self.kernel {
            Kernel::Legacy(rules) => rules.observe_addresses()?.into_iter().for_each(each),
            Kernel::Ipvs(servers) => servers.addresses().iter().copied().for_each(each),
            Kernel::NfTables { dump, .. } => {
                for Place { table, listed } in self.view.places {
                    dump.dump(table, *listed, &mut each)
                        .with_context(|| format!("failed to list table {table}"))?;
                }
            }
        }
        Ok(found)
    }
}

// === impl Found ===

impl Found {
    fn is_all(&self, population: &Population, proof: Proof) -> bool {
        let services = population.services();
        let endpoints = match proof {
            Proof::Services => 0,
            Proof::Endpoints => services * population.endpoints(),
        };
        let enough = |found: &BTreeSet<u32>, expected: u32| {
            u32::try_from(found.len()).is_ok_and(|found| found >= expected)
        };
        enough(&self.services, services) && enough(&self.endpoints, endpoints)
    }
}
