//! How much of what virtual servers take a namespace may have: of those that serve, and of those that
//! have no owner any more and stay until their connections end.

use std::sync::Arc;

use dataplane::PersistentMap;

use crate::scheduler_tables::Pages;

/// How much of something each namespace has, and all together. Copies share what they have in common.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    by_namespace: PersistentMap<Arc<str>, usize>,
    /// With what is of no known namespace.
    all: usize,
}

/// What those that serve have of something, and how much of it they may have.
#[derive(Debug, Clone)]
pub(super) struct Bound {
    pub(super) serving: Shares,
    pub(super) most: usize,
    /// How much of it one namespace may have, however much is left.
    pub(super) most_of_one: usize,
}

/// Virtual servers without an owner that the kernel has. Their numbers are not free: another owner
/// would end their connections. Each change of it, and each copy, costs the same however many there
/// are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LeavingServers {
    numbers: PersistentMap<u32, LeavingServer>,
    servers: Shares,
    /// In [`Pages`].
    tables: Shares,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LeavingServer {
    /// The namespace of its Service, if it is known.
    namespace: Option<Arc<str>>,
    table: Pages,
}

// === impl Shares ===

impl Shares {
    fn of(&self, namespace: &Arc<str>) -> usize {
        self.by_namespace.get(namespace).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, namespace: Option<&Arc<str>>, count: usize) {
        self.all += count;
        if let Some(namespace) = namespace.filter(|_| count > 0) {
            let sum = self.of(namespace) + count;
            self.by_namespace.insert(Arc::clone(namespace), sum);
        }
    }

    pub(super) fn subtract(&mut self, namespace: Option<&Arc<str>>, count: usize) {
        self.all = self.all.saturating_sub(count);
        let Some(namespace) = namespace else {
            return;
        };
        match self.of(namespace).saturating_sub(count) {
            0 => drop(self.by_namespace.remove(namespace)),
            sum => drop(self.by_namespace.insert(Arc::clone(namespace), sum)),
        }
    }
}

// === impl Bound ===

impl Bound {
    pub(super) fn new(most: usize, most_of_one: usize) -> Bound {
        Bound {
            serving: Shares::default(),
            most,
            most_of_one,
        }
    }

    /// The same bound, and nothing that serves.
    pub(super) fn emptied(&self) -> Bound {
        Bound::new(self.most, self.most_of_one)
    }

    /// Whether `namespace` may have so much more that serves: it has no more than it leaves for others,
    /// so that no namespace takes all, and no more than one may have.
    pub(super) fn admits(
        &self,
        namespace: &Arc<str>,
        more: usize,
        leaving_servers: &Shares,
    ) -> bool {
        let left = self.most.saturating_sub(self.serving.all);
        let is_admitted = self.serving.of(namespace) + more <= left.min(self.most_of_one);
        more == 0 || is_admitted && self.admits_beside(namespace, more, leaving_servers)
    }

    /// Whether `namespace` may have so much more beside what serves and what leaves: of twice as much as
    /// may serve, it has no more than it leaves for others, nor than twice what one may have. So all that it has may be replaced at once, unless others
    /// have taken more since.
    pub(super) fn admits_beside(
        &self,
        namespace: &Arc<str>,
        more: usize,
        leaving_servers: &Shares,
    ) -> bool {
        let left = (2 * self.most).saturating_sub(self.serving.all + leaving_servers.all);
        let room = left.min(2 * self.most_of_one);
        more == 0 || self.serving.of(namespace) + leaving_servers.of(namespace) + more <= room
    }
}

// === impl LeavingServers ===

impl LeavingServers {
    /// These numbers, of unknown namespaces.
    pub(crate) fn of(numbers: impl IntoIterator<Item = (u32, Pages)>) -> LeavingServers {
        let mut leaving_servers = LeavingServers::default();
        for (number, table) in numbers {
            leaving_servers.add(number, table, None);
        }
        leaving_servers
    }

    pub(super) fn servers(&self) -> &Shares {
        &self.servers
    }

    pub(super) fn tables(&self) -> &Shares {
        &self.tables
    }

    pub(super) fn contains(&self, number: u32) -> bool {
        self.numbers.get(&number).is_some()
    }

    /// Whether any of `before` is gone. What came meanwhile was in `before`, too.
    pub(super) fn is_less_than(&self, before: &LeavingServers) -> bool {
        self.numbers.len() < before.numbers.len()
    }

    /// Adds a virtual server with such a table, unless it is there.
    pub(crate) fn add(&mut self, number: u32, table: Pages, namespace: Option<&Arc<str>>) {
        if !self.contains(number) {
            self.servers.add(namespace, 1);
            self.tables.add(namespace, table.0);
            let namespace = namespace.cloned();
            self.numbers
                .insert(number, LeavingServer { namespace, table });
        }
    }

    /// Removes a virtual server, if it is there.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(LeavingServer { namespace, table }) = self.numbers.remove(&number) {
            self.servers.subtract(namespace.as_ref(), 1);
            self.tables.subtract(namespace.as_ref(), table.0);
        }
    }

    /// Adds all of `others`.
    pub(crate) fn extend(&mut self, others: &LeavingServers) {
        for (number, left) in others.numbers.iter() {
            self.add(*number, left.table, left.namespace.as_ref());
        }
    }
}
