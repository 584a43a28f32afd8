//! The backend: both families in one network namespace, over one socket for each subsystem.

mod connections;
mod destinations;
mod draining;
mod ending;
mod input_policy;
mod known_destinations;
mod known_servers;
mod read_ahead;
mod recovery;
mod schedulers;
mod settings;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use backend::{
    Backend, CommitError, Connections, Detached, Drift, DriftDetection, Effect, FrontendContext,
    Leftover, ObserveError, Receipt, Recovery, Rendered, UnsupportedField,
};
use dataplane::{Config, Dataplane, Family, FrontendKey, PartSize, ServiceKey};
use netlink::ipvs::{self, ForeignVirtualServer, IpvsSocket, VirtualServers};
use netlink::nf_tables::Transaction;
use netlink::route::{self, Presence, RouteSocket};
use netlink::{OpenError, Socket};
use nftables_model::{Elements, Support, TableSocket, commit_in_parts, recovery_of_reading};

use self::connections::Counted;
use self::draining::Draining;
use self::ending::{RemovalRate, lasting};
use self::input_policy::InputPolicy;
use self::known_servers::{LongRead, ServerSocket, is_due};
use self::recovery::{of_delivery, of_reading_servers, of_servers, of_table};
use self::schedulers::Schedulers;
use self::settings::Settings;
use crate::allocation::{Allocation, LeavingServers, number_of};
use crate::diff::{Change, Step, diff};
use crate::idle::{IdleTimeouts, affected_by_timeouts};
use crate::layout::{DELIVERY, MARKS, SetName, TABLE};
use crate::render::render;
use crate::rules::{Figures, Rules, Server};
use crate::scheduler_tables::{self, table_of};
use crate::table_diff::halves;

/// The most elements that one sync writes of a change, in addition to as many destinations.
const PART_SIZE: PartSize = PartSize::new(2_500);
/// How long that may take.
const LONGEST_PART: Duration = Duration::from_millis(30);

/// One family in the network namespace in which [`open`] was called.
#[derive(Debug)]
pub struct Ipvs {
    family: Family,
    /// The connection to the kernel. `None` for a backend that only renders and diffs.
    connection: Option<Arc<Mutex<Connection>>>,
    holding: Holding,
    /// The last number among the virtual servers that were read last, including those that end.
    last_observed: u32,
    /// The virtual servers that end with the mode, as they were read last.
    ending: LeavingServers,
    /// The owners of marks as of the last read and the commits since, until the mode ends. After a
    /// commit that failed, the table is read.
    owners: Elements,
    schedulers: Schedulers,
    support: Support,
    /// Whether the kernel can hash, as session affinity does.
    hashes: Support,
    draining: Draining,
    /// As of the last read.
    figures: Arc<Figures>,
    counted: Counted,
    /// The last read of everything.
    full_read: Option<LongRead>,
    /// How long checks have read ahead of the next read of everything.
    read_ahead: Duration,
    /// Whether the last check has found that everything is to be read, except what was read ahead. A
    /// read for another cause reads all, since some was read minutes ago.
    is_read_ahead: bool,
    /// The last read of draining destinations.
    draining_read: Option<LongRead>,
    /// The routing rule, as it was last read or written.
    delivery: Option<Presence>,
    /// As of the last read of everything.
    input: InputPolicy,
}

/// The state that both families share.
#[derive(Debug)]
struct Connection {
    tables: TableSocket,
    servers: ServerSocket,
    routes: RouteSocket,
    settings: Settings,
    /// The virtual servers of other programs that were read last.
    foreign: Vec<ForeignVirtualServer>,
}

/// What the kernel holds of this mode, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holding {
    /// Nothing: it was read, and nothing was written since.
    Nothing,
    /// Possibly something.
    Something,
    /// Only what connections need that outlive the mode.
    Ending,
    /// The mode, and leftovers of an earlier end that was cut short.
    Both,
}

/// Opens the network namespace of this thread. Returns one backend for each family. Loads no
/// module. Settings are written below `sysctls`, which is `/proc/sys` or where that is mounted. For
/// their sake and for the list in `/proc`, changes must be committed, and drift observed, by threads in
/// the same network namespace.
pub fn open(sysctls: &Path) -> Result<[Ipvs; 2], OpenError> {
    open_with_socket(sysctls, Socket::open()?)
}

/// The same, with `tables` for the table, for a listener that has to know Signpost's own commits.
pub fn open_with_socket(sysctls: &Path, tables: Socket) -> Result<[Ipvs; 2], OpenError> {
    let connection = Arc::new(Mutex::new(Connection {
        tables: TableSocket::from(tables),
        servers: ServerSocket::new(IpvsSocket::open(MARKS)?),
        routes: RouteSocket::open()?,
        settings: Settings::below(sysctls),
        foreign: Vec::new(),
    }));
    Ok(Family::ALL.map(|family| Ipvs {
        connection: Some(Arc::clone(&connection)),
        ..Ipvs::detached(family)
    }))
}

// === impl Ipvs ===

impl Ipvs {
    /// Creates a backend without a kernel: it renders and diffs, and fails to observe and commit.
    pub fn detached(family: Family) -> Ipvs {
        Ipvs {
            family,
            connection: None,
            holding: Holding::Something,
            last_observed: 0,
            ending: LeavingServers::default(),
            owners: Elements::new(),
            schedulers: Schedulers::default(),
            support: Support::Unknown,
            hashes: Support::Unknown,
            draining: Draining::default(),
            figures: Arc::default(),
            counted: Counted::default(),
            full_read: None,
            read_ahead: Duration::ZERO,
            is_read_ahead: false,
            draining_read: None,
            delivery: None,
            input: InputPolicy::default(),
        }
    }

    fn connection(&self) -> Result<Arc<Mutex<Connection>>, Detached> {
        self.connection.clone().ok_or(Detached(self.family))
    }

    /// The virtual servers that stay in the kernel for their connections alone.
    fn leaving_servers(&self) -> LeavingServers {
        let mut leaving_servers = self.draining.leaving_servers().clone();
        leaving_servers.extend(&self.ending);
        leaving_servers
    }

    fn uncommitted(
        &self,
        next: (Recovery, Effect),
        source: impl Error + Send + Sync + 'static,
    ) -> CommitError {
        CommitError::new(self.family, next, source)
    }
}

/// A panic elsewhere does not invalidate the sockets: their state is consistent between messages.
fn lock(connection: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Backend for Ipvs {
    type Rules = Rules;
    type Change = Change;

    fn family(&self) -> Family {
        self.family
    }

    fn part_size(&self, _config: &Config) -> PartSize {
        PART_SIZE
    }

    fn longest_part(&self, _config: &Config) -> Duration {
        LONGEST_PART
    }

    fn render(&self, desired: &Dataplane, from: &Rendered<Rules>) -> Rules {
        let missing = match &self.connection {
            Some(_) => self.schedulers.missing(),
            // Without a kernel to ask, as `explain` renders.
            None => from.rules.missing_schedulers.clone(),
        };
        let mut rules = match from.rules == Rules::default() {
            // If the mode begins or returns, its virtual servers get other marks than those that end.
            true => Rules {
                allocation: Allocation::after(self.last_observed),
                ..Rules::default()
            },
            false => from.rules.clone(),
        };
        rules.allocation.set_leaving_servers(self.leaving_servers());
        let dataplane = from.dataplane.clone();
        render(
            self.family,
            desired,
            &Rendered { dataplane, rules },
            &missing,
        )
    }

    fn diff(&self, observed: &Rules, desired: &Rules) -> Change {
        diff(self.family, observed, desired)
    }

    fn observe(&mut self) -> Result<Rules, ObserveError> {
        let began = Instant::now();
        let connection = self.connection()?;
        let mut connection = lock(&connection);
        let family = self.family;
        if !std::mem::take(&mut self.is_read_ahead) {
            connection.servers.forget_read_ahead(family);
        }
        let unread =
            |e: netlink::ObserveError| ObserveError::new(family, recovery_of_reading(&e), e);
        let unanswered =
            |e: netlink::QueryError| ObserveError::new(family, of_reading_servers(&e), e);
        let own = |set: &str| SetName::parse(set).map(|set| set.set(self.family));
        let table = connection.tables.observe_table(self.family, TABLE, own);
        let table = table.map_err(unread)?;
        let listed = connection.observe_servers(self.family);
        let (mut servers, figures) = listed.map_err(unanswered)?;
        let delivery = connection.routes.observe(self.family, &DELIVERY);
        let delivery = delivery.map_err(unanswered)?;
        let is_ending = self.observe_ending(&mut connection)?;
        let last = servers.keys().next_back().copied().unwrap_or(0);
        // Another program may have removed the table for remaining connections.
        let is_ending = is_ending || self.holding == Holding::Ending;
        if is_ending && !table.exists {
            self.last_observed = last;
            let servers = servers.into_iter();
            let tables = servers.map(|(number, held)| (number, table_of(&held.server.scheduler)));
            self.ending = LeavingServers::of(tables);
            self.holding = Holding::Ending;
            self.owners = Elements::new();
            return Ok(Rules::default());
        }
        let timeouts = connection.servers.socket().observe_timeouts();
        let timeouts = timeouts.map_err(unanswered)?;
        // It is only for a message: a chain of another program that cannot be read keeps nothing else.
        if let Ok(input) = InputPolicy::observe(connection.tables.socket(), self.family) {
            self.input = input;
        }
        drop(connection);
        self.last_observed = last;
        // Those that remain of an earlier time of the mode are draining, or are read as its own.
        self.ending = LeavingServers::default();
        self.delivery = Some(delivery);
        let ahead = std::mem::take(&mut self.read_ahead);
        self.full_read = Some(LongRead::since(began).after(ahead));
        self.figures = Arc::new(figures);
        self.draining.hide(&mut servers);
        let rules = Rules {
            // New virtual servers must not get the marks of draining ones.
            allocation: Allocation::after(last),
            table,
            servers: servers.into_iter().collect(),
            delivery,
            idle: timeouts.map_or_else(IdleTimeouts::default, IdleTimeouts::from),
            missing_schedulers: self.schedulers.missing(),
            figures: Arc::clone(&self.figures),
            remembered: self.owners.clone(),
            ..Rules::default()
        };
        self.owners = rules.owners();
        // A table without rules was left by an end that was cut short: then the table for remaining
        // connections is the one that they need.
        let mut chains = rules.table.chains.values();
        let steers = chains.any(|chain| !chain.rules.is_empty());
        self.holding = match (rules.exist(), is_ending && steers) {
            (true, true) => Holding::Both,
            (true, false) => Holding::Something,
            (false, _) => Holding::Nothing,
        };
        Ok(rules)
    }

    /// Changes that other programs make to virtual servers and routing rules produce no
    /// notification. The list of virtual servers and the routing rule are compared each time, a list
    /// of destinations, all the rest and draining destinations each as often as costs a fiftieth of a
    /// processor. Before all the rest is read, several checks read the destinations. Settings are set
    /// again here, since they are not read and compared, and schedulers that the kernel lacked are
    /// asked for again.
    fn observe_drift(&mut self) -> Result<Drift, ObserveError> {
        self.is_read_ahead = false;
        if self.holding == Holding::Nothing {
            return Ok(Drift::None);
        }
        let connection = self.connection()?;
        let mut connection = lock(&connection);
        let finished = self.finish_ending(&mut connection, RemovalRate::Spread);
        finished.map_err(|error| self.unremoved(error))?;
        if self.holding != Holding::Something {
            return Ok(Drift::None);
        }
        let began = Instant::now();
        if is_due(self.draining_read) || self.draining.has_overdue(began) {
            let finished = self.finish_draining(&mut connection, self.draining.keys());
            finished.map_err(|error| self.unremoved(error))?;
            self.draining_read = Some(LongRead::since(began));
        }
        // `limitations` reports those that could not be set.
        let _ = connection.settings.commit();
        // The next rendering uses a scheduler whose module was loaded meanwhile.
        if self.find_schedulers(&mut connection, began) {
            return Ok(Drift::Possible);
        }
        let family = self.family;
        let unanswered =
            |e: netlink::QueryError| ObserveError::new(family, of_reading_servers(&e), e);
        let changed = connection.observe_changed_servers(family);
        let delivery = connection.routes.observe(family, &DELIVERY);
        let is_another = Some(delivery.map_err(unanswered)?) != self.delivery;
        if is_another || changed.map_err(unanswered)? {
            return Ok(Drift::Possible);
        }
        if is_due(self.full_read) {
            let began = Instant::now();
            let ahead = connection.servers.observe_ahead(family);
            self.read_ahead += began.elapsed();
            let is_overdue = self.full_read.is_some_and(|last| last.is_overdue(began));
            self.is_read_ahead = ahead.map_err(unanswered)? || is_overdue;
        }
        Ok(match self.is_read_ahead {
            true => Drift::Possible,
            false => Drift::NoneInPart,
        })
    }

    /// Neither does the kernel announce the end of a connection, which draining destinations wait
    /// for.
    fn drift_detection(&self) -> DriftDetection {
        match self.holding {
            Holding::Nothing => DriftDetection::ByNotification,
            Holding::Something | Holding::Ending | Holding::Both => DriftDetection::ByCheck,
        }
    }

    fn commit(&mut self, change: Change) -> Result<Receipt, CommitError> {
        let connection = self.connection()?;
        let mut connection = lock(&connection);
        if change.ends() {
            self.schedulers.forget();
            self.support = Support::Unknown;
            self.hashes = Support::Unknown;
        }
        self.check_schedulers(&mut connection, &change)?;
        self.check_table(&mut connection, &change)?;
        self.check_destinations(&mut connection, &change)?;
        if change.begins() || !change.schedulers().is_empty() {
            let unset = connection.settings.commit().err();
            if let Some(unset) = unset.filter(|_| change.begins()) {
                return Err(self.uncommitted((Recovery::Halt, Effect::None), unset));
            }
        }
        let returns = self.holding == Holding::Ending && change.begins();
        if returns {
            self.drain_all(&mut connection)?;
            self.ending = LeavingServers::default();
        }
        let owners = change.owners().clone();
        let ports = change.ports().clone();
        if change.ends() {
            self.owners = owners;
            let _remains = self.commit_ending(&mut connection, RemovalRate::Spread)?;
            return Ok(Receipt { transactions: 3 });
        }
        self.holding = match returns {
            true => Holding::Both,
            false => Holding::Something,
        };
        let mut transactions = 0;
        for (done, step) in change.steps.into_iter().enumerate() {
            let is_first = done == 0;
            transactions += 1;
            let failed = match step {
                Step::Delivery(presence) => {
                    let result = connection.commit_delivery(self.family, presence).err();
                    self.delivery = result.is_none().then_some(match presence {
                        Presence::Absent => Presence::Absent,
                        Presence::Partial | Presence::Whole => Presence::Whole,
                    });
                    result.map(|e| self.uncommitted(of_delivery(&e, is_first), e))
                }
                Step::Timeouts(timeouts) => connection
                    .commit_timeouts(timeouts)
                    .err()
                    .map(|e| self.uncommitted(of_servers(&e, is_first), e)),
                Step::Table(transaction) => {
                    let commit = |part: &Transaction| connection.tables.commit(part);
                    let (parts, result) = commit_in_parts(transaction, halves, commit);
                    transactions += parts.saturating_sub(1);
                    let is_first = is_first && parts == 0;
                    let failed = result.err();
                    failed.map(|e| self.uncommitted(of_table(&e, is_first), e))
                }
                Step::Servers(operations) => {
                    let operations = self.draining.resume(operations, &ports);
                    let result = connection.servers.commit(&operations).err();
                    result.map(|e| self.uncommitted(of_servers(&e, is_first), e))
                }
                Step::Departures(departures) => self
                    .commit_departures(&mut connection, departures, is_first)
                    .err(),
            };
            if let Some(error) = failed {
                return Err(error);
            }
        }
        self.owners = owners;
        Ok(Receipt { transactions })
    }

    /// Does not wait for connections to end. Writes nothing if nothing exists. Where the kernel never
    /// lets this process remove the table, as one that another process owns, everything else goes all
    /// the same.
    fn commit_removal(&mut self) -> Result<Receipt, CommitError> {
        let connection = self.connection()?;
        let mut connection = lock(&connection);
        self.owners = Elements::new();
        let stays = lasting(self.commit_without(&mut connection, TABLE))?;
        let ended = self.commit_end(&mut connection);
        stays.map_or(ended, Err)?;
        self.holding = Holding::Nothing;
        Ok(Receipt { transactions: 2 })
    }

    /// Another proxy serves, as another mode does when this one ends.
    fn commit_withdrawal(&mut self) -> Result<Leftover, CommitError> {
        let connection = self.connection()?;
        let mut connection = lock(&connection);
        self.owners = Elements::new();
        self.commit_ending(&mut connection, RemovalRate::AtOnce)
    }

    fn limitations(&self, programmed: &Dataplane) -> Vec<String> {
        let Some(connection) = &self.connection else {
            return Vec::new();
        };
        let connection = lock(connection);
        let affected =
            affected_by_timeouts(&programmed.config().ipvs_timeouts, &connection.foreign);
        let by_settings = connection.settings.affected(&connection.foreign);
        let missing = connection.settings.missing().to_vec().into_iter();
        missing
            .chain(self.schedulers.replacements(programmed))
            .chain(affected)
            .chain(by_settings)
            .chain(self.input.limitation(self.family))
            .collect()
    }

    fn connections(&self, rules: &Rules) -> Option<Connections> {
        Some(self.count(rules))
    }

    fn suspects(&self, change: &Change, desired: &Dataplane) -> BTreeSet<ServiceKey> {
        let frontends: BTreeSet<FrontendKey> = change.frontends(self.family);
        let frontends = frontends.iter();
        let claims = frontends.filter_map(|key| desired.frontends().get(key));
        let owners = claims.map(|claims| claims.winner().0);
        owners.chain(change.services()).cloned().collect()
    }

    fn unsupported_fields(&self, _: FrontendContext<'_>) -> Vec<UnsupportedField> {
        Vec::new()
    }

    fn without_room(&self, rules: &Rules) -> Vec<UnsupportedField> {
        let unmarked = rules.unmarked.sorted().into_iter();
        let unsupported_field =
            |(service, frontend): (&ServiceKey, &FrontendKey)| UnsupportedField {
                service: service.clone(),
                frontend: *frontend,
                field: "spec.ports",
                message:
                    "this port, and others of the Service that have no virtual server yet, are not \
                      served: mode ipvs has 524,287 virtual servers for each family, of which one \
                      namespace takes 32,768 and no more than it leaves for others, and as many \
                      that leave until their connections have ended"
                        .into(),
            };
        let unmarked = unmarked.map(unsupported_field);
        let without_table = scheduler_tables::without_table(&rules.without_table);
        unmarked.chain(without_table).collect()
    }
}

// === impl Connection ===

impl Connection {
    fn commit_delivery(
        &mut self,
        family: Family,
        presence: Presence,
    ) -> Result<(), route::CommitError> {
        match presence {
            Presence::Absent => self.routes.commit_removal(family, &DELIVERY),
            Presence::Partial | Presence::Whole => self.routes.commit(family, &DELIVERY),
        }
    }

    /// Keeps timeouts that `timeouts` does not set.
    fn commit_timeouts(&mut self, timeouts: IdleTimeouts) -> Result<(), ipvs::CommitError> {
        let socket = self.servers.socket();
        let current = socket.observe_timeouts();
        let current = current.map_err(ipvs::CommitError::Find)?;
        let current = current.ok_or(ipvs::CommitError::Missing)?;
        socket.commit_timeouts(timeouts.over(current))
    }

    /// Reads the virtual servers of [`MARKS`], by number.
    fn observe_servers(
        &mut self,
        family: Family,
    ) -> Result<(BTreeMap<u32, Arc<Server>>, Figures), netlink::QueryError> {
        let VirtualServers { own, foreign } = self.servers.observe(family)?;
        self.keep_foreign(foreign);
        let mut connections = BTreeMap::new();
        let own = own.into_iter().filter(|(key, _)| key.family == family);
        let mut own: BTreeMap<ipvs::VirtualServerKey, ipvs::VirtualServer> = own.collect();
        let behind = self
            .servers
            .observe_destinations(family, own.keys().copied())?;
        let mut servers = BTreeMap::new();
        for (key, destinations) in behind {
            let (Some(number), Some(server)) = (number_of(key.mark.value()), own.remove(&key))
            else {
                continue;
            };
            let used = destinations.iter();
            let used = used.filter(|(_, (_, held))| *held != ipvs::Connections::default());
            connections.extend(used.map(|(at, (_, held))| ((number, *at), *held)));
            let destinations = destinations.into_iter();
            let server = Server {
                server,
                destinations: destinations
                    .map(|(at, (destination, _))| (at, destination))
                    .collect(),
                owner: None,
            };
            servers.insert(number, Arc::new(server));
        }
        let figures = Figures {
            connections: Some(connections),
            foreign: self.foreign.clone(),
        };
        Ok((servers, figures))
    }

    /// Reads whether virtual servers of [`MARKS`] or their destinations are others than those that are
    /// known.
    fn observe_changed_servers(&mut self, family: Family) -> Result<bool, netlink::QueryError> {
        let VirtualServers { own, foreign } = self.servers.observe_beside_known()?;
        self.keep_foreign(foreign);
        let are_known = self.servers.are_known(family, &own);
        Ok(self.servers.observe_changed_destinations(family) || !are_known)
    }

    fn keep_foreign(&mut self, mut foreign: Vec<ForeignVirtualServer>) {
        // The kernel lists them by hash: messages name the first ones, and must not change without
        // a cause.
        foreign.sort();
        self.foreign = foreign;
    }
}

#[cfg(test)]
mod tests;
