//! One node: its agent, what its kernel holds, and what is done to both.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::PATIENCE;
use super::clients::Clients;
use super::servers::Servers;
use crate::bench::contender::{Entry, Running};
use crate::bench::netlink_dump::{Listed, NetlinkSocket};
use crate::bench::population::{is_endpoint, service_at};
use crate::bench::process_tree::Bytes;
use crate::bench::{Contender, ListenerThread};
use crate::deadline::wait_for;
use crate::differential::Mode;

/// The table of the agent.
const TABLE: &str = "signpost";
/// What an error says about an agent that could not be started again.
const NO_AGENT: &str = "the agent could not be started again";

/// A node with its agent, and with clients and servers.
#[derive(Debug)]
pub(super) struct Node {
    // Fields are dropped in this order: users before what they use.
    pub(super) clients: Option<Clients>,
    pub(super) listener: Arc<ListenerThread>,
    /// Missing only while it is killed.
    running: Option<Running>,
    pub(super) servers: Servers,
    entry: Entry,
    dump: NetlinkSocket,
    services: u32,
    /// The kernel's objects before the flush that is not repaired yet, and when it was.
    flushed: Option<(Objects, Instant)>,
    /// When the agent was started again, until it reports that everything is programmed.
    restarted: Option<Instant>,
}

/// What the kernel holds of the agent, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Objects {
    /// Tables, chains, sets and rules: lines of their listing.
    pub(super) lines: usize,
    /// Addresses of Services.
    pub(super) services: usize,
    /// Addresses of endpoints.
    pub(super) endpoints: usize,
}

/// How rules are damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flush {
    /// All rules of the agent's table are removed, as by `iptables -F`.
    Rules,
    /// All tables of the node are removed.
    Ruleset,
}

// === impl Node ===

impl Node {
    /// Starts the agent of a node. Returns when it has programmed everything.
    pub(super) fn start(entry: Entry, servers: Servers, services: u32) -> Result<Node> {
        fs::create_dir_all(&entry.folder).context("failed to make a folder for logs")?;
        let dump = entry.node.enter(NetlinkSocket::open)??;
        let running = entry.start()?;
        let listener = ListenerThread::open(&entry.node, Contender::Signpost, Mode::Nftables)?;
        let mut node = Node {
            clients: None,
            listener: Arc::new(listener),
            restarted: Some(running.started),
            running: Some(running),
            servers,
            entry,
            dump,
            services,
            flushed: None,
        };
        wait_for("the first sync", PATIENCE * 3, || node.observe_start())?;
        Ok(node)
    }

    /// Kills the agent and starts it again at once, as its kubelet would.
    pub(super) fn kill(&mut self) -> Result<()> {
        drop(self.running.take());
        let running = self.entry.start()?;
        self.restarted = Some(running.started);
        self.running = Some(running);
        Ok(())
    }

    /// Damages the rules.
    pub(super) fn flush(&mut self, flush: Flush) -> Result<()> {
        let before = self.observe_objects()?;
        match flush {
            Flush::Rules => self.entry.node.nft(&["flush", "table", "ip", TABLE])?,
            Flush::Ruleset => self.entry.node.nft(&["flush", "ruleset"])?,
        };
        self.flushed = Some((before, Instant::now()));
        Ok(())
    }

    /// Returns how long it took from a kill to the report that everything is programmed, once.
    pub(super) fn observe_start(&mut self) -> Result<Option<Duration>> {
        let running = self.running.as_mut().context(NO_AGENT)?;
        running.ensure_runs()?;
        let programmed = self.restarted.take_if(|_| running.says_programmed());
        Ok(programmed.map(|started| started.elapsed()))
    }

    /// Returns how long it took from a flush until the kernel had as many objects as before, once.
    pub(super) fn observe_repair(&mut self) -> Result<Option<Duration>> {
        let Some((before, at)) = self.flushed else {
            return Ok(None);
        };
        let now = self.observe_objects()?;
        let took = at.elapsed();
        if now.covers(before) {
            self.flushed = None;
            return Ok(Some(took));
        }
        ensure!(
            took < PATIENCE,
            "rules were not repaired within {PATIENCE:?}: {before:?} before, {now:?} after"
        );
        Ok(None)
    }

    /// Whether no repair is under way.
    pub(super) fn is_repaired(&self) -> bool {
        self.flushed.is_none()
    }

    /// Whether a restart or a repair is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.flushed.is_some() || self.restarted.is_some()
    }

    /// Returns what the kernel holds of the agent.
    pub(super) fn observe_objects(&mut self) -> Result<Objects> {
        let listing = self.entry.node.nft(&["--terse", "list", "ruleset"])?;
        Ok(Objects {
            lines: listing.lines().count(),
            services: self.count_addresses("services")?,
            endpoints: self.count_addresses("endpoints")?,
        })
    }

    /// The resident memory of the agent.
    pub(super) fn observe_memory(&self) -> Result<Bytes> {
        let running = self.running.as_ref().context(NO_AGENT)?;
        Ok(running.tree().observe_memory())
    }

    /// The processor time of the agent since its start.
    pub(super) fn observe_processor_time(&self) -> Result<Duration> {
        let running = self.running.as_ref().context(NO_AGENT)?;
        running.tree().observe_processor_time()
    }

    /// The number of connections in the kernel's table of the node.
    pub(super) fn observe_connections(&self) -> Result<u64> {
        let file = "/proc/sys/net/netfilter/nf_conntrack_count";
        let count = self.entry.node.enter(|| fs::read_to_string(file))?;
        Ok(count
            .context("failed to count connections")?
            .trim()
            .parse()?)
    }

    fn count_addresses(&mut self, map: &'static str) -> Result<usize> {
        let services = self.services;
        let mut found = BTreeSet::new();
        self.dump.dump(TABLE, Listed::Elements(map), |word| {
            let is_one = match map {
                "services" => service_at(word, services).is_some(),
                _ => is_endpoint(word),
            };
            if is_one {
                found.insert(word);
            }
        })?;
        Ok(found.len())
    }
}

// === impl Objects ===

impl Objects {
    /// Whether there are at least as many as `others`.
    fn covers(self, others: Objects) -> bool {
        self.lines >= others.lines
            && self.services >= others.services
            && self.endpoints >= others.endpoints
    }
}
