//! What is done when.

use std::mem;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dataplane::Family;
use serde_json::json;
use testkit::address_plan as addresses;

use super::changes::{Changes, Followed};
use super::clients::{Clients, Tally};
use super::node::{Flush, Node, Objects};
use super::servers::Servers;
use super::{Figures, Interval, PATIENCE, Settings};
use crate::bench::arena::{SERVERS, node_address};
use crate::bench::contender::profile;
use crate::bench::process_tree::observe_kernel_memory;
use crate::bench::{Arena, Contender, ListenerThread, Population};
use crate::deadline::wait_for;
use crate::differential::Mode;
use crate::stamped;

/// The name of the node whose agent is killed.
const RESTLESS: &str = "restless";
/// The pause between two looks: the resolution of repairs and restarts.
const PAUSE: Duration = Duration::from_millis(20);

/// Two nodes and what happens to them.
#[derive(Debug)]
struct Course {
    // Fields are dropped in this order: users before what they use.
    changes: Changes,
    /// The first agent runs all the time, the second is killed.
    nodes: [Node; 2],
    arena: Arena,
    flushes: u32,
    current: Interval,
    began: Instant,
    processor: Duration,
}

/// The times of one kind of event.
#[derive(Debug)]
struct Schedule {
    next: Instant,
    every: Duration,
}

/// Runs for the duration of `settings` and prints each row as it ends. Fails if a node does not come
/// to rest afterwards.
pub fn measure(agent: PathBuf, settings: Settings) -> Result<Figures> {
    settings.ensure_separate_changes()?;
    let mut course = Course::start(agent, settings)?;
    let before = course.observe_objects()?;
    let began = Instant::now();
    // This loop waits for an API server that comes back, and measures nothing meanwhile: no repair is under
    // way then. An agent that starts while the API server is away knows no Services: none is killed then.
    let mut flush = Schedule::new(began, settings.flush_every, 3);
    let mut kill = Schedule::new(began, settings.kill_every, 2);
    let mut outage = Schedule::new(began, settings.outage_every, 2);
    let mut row = Schedule::new(began, settings.interval, 1);
    let mut intervals = Vec::new();
    let mut back = None;
    println!("{}", Interval::HEADINGS);
    while began.elapsed() < settings.duration {
        if course.is_repaired() && flush.is_due() {
            course.flush()?;
        }
        if back.is_none() && !course.is_busy() && kill.is_due() {
            course.current.kills += 1;
            course.nodes[1].kill()?;
        }
        if back.is_none() && !course.is_busy() && outage.is_due() {
            course.current.outages += 1;
            course.changes.pause();
            course.arena.control_plane.stop_api_server();
            back = Some(Instant::now() + settings.outage);
        }
        let is_over = |back: &mut Instant| Instant::now() >= *back;
        if course.is_repaired() && back.take_if(is_over).is_some() {
            course.arena.control_plane.start_api_server()?;
            course.changes.resume();
        }
        course.look()?;
        if row.is_due() {
            intervals.push(course.end_interval()?);
        }
        thread::sleep(PAUSE);
    }
    course.arena.control_plane.start_api_server()?;
    course.changes.resume();
    let (last, after) = course.finish()?;
    intervals.push(last);
    Ok(Figures {
        settings,
        intervals,
        before,
        after,
    })
}

// === impl Schedule ===

impl Schedule {
    /// The first time is the `part`-th part of the distance between two.
    fn new(began: Instant, every: Duration, part: u32) -> Schedule {
        Schedule {
            next: began + every / part,
            every,
        }
    }

    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = now >= self.next;
        // Times that have passed meanwhile are left out.
        while self.next <= now {
            self.next += self.every;
        }
        is_due
    }
}

// === impl Course ===

impl Course {
    fn start(agent: PathBuf, settings: Settings) -> Result<Course> {
        let (services, endpoints) = settings.size;
        let population = Population::new(services, endpoints, 0)?;
        let mut arena = Arena::start(Mode::Nftables, agent)?;
        arena.fill(&population)?;
        add_node(&arena)?;
        let mut nodes = Vec::new();
        for (contender, seed) in Contender::ALL.into_iter().zip(1..) {
            // The stands are alike.
            let stand = arena.stand(contender);
            let mut entry = arena.entry(Contender::Signpost)?;
            entry.node = stand.node.clone();
            if contender == Contender::KubeProxy {
                entry.name = RESTLESS;
                entry.folder = entry.folder.join(RESTLESS);
            }
            // Packets that no rule redirects go to a host that drops them, as beyond most nodes.
            let servers = Servers::start(&stand.servers)?;
            stand
                .node
                .configure(&format!("route add default via {}\n", SERVERS))?;
            let mut node = Node::start(entry, servers, services)?;
            node.clients = Some(Clients::start(&stand.client, &settings, seed)?);
            nodes.push(node);
        }
        nodes.reverse();
        let nodes: [Node; 2] = nodes.try_into().ok().context("there are two nodes")?;
        let listeners = nodes.each_ref().map(|node| Arc::clone(&node.listener));
        let changes = Changes::start(&arena.writer, population, listeners, &settings);
        Ok(Course {
            processor: nodes[0].observe_processor_time()?,
            changes,
            nodes,
            arena,
            flushes: 0,
            current: Interval::default(),
            began: Instant::now(),
        })
    }

    /// Whether a repair or a start is under way.
    fn is_busy(&self) -> bool {
        self.nodes.iter().any(Node::is_busy)
    }

    /// Whether no repair is under way.
    fn is_repaired(&self) -> bool {
        self.nodes.iter().all(Node::is_repaired)
    }

    /// Damages the rules of both nodes, in one way and in the other by turns.
    fn flush(&mut self) -> Result<()> {
        let flush = match self.flushes.is_multiple_of(2) {
            true => Flush::Rules,
            false => Flush::Ruleset,
        };
        self.flushes += 1;
        self.current.flushes += 1;
        self.nodes.iter_mut().try_for_each(|node| node.flush(flush))
    }

    /// Notes what has been repaired and started.
    fn look(&mut self) -> Result<()> {
        self.changes.ensure_continues()?;
        for node in &mut self.nodes {
            ensure!(
                node.listener.counts().missed == 0,
                "the kernel had no room for notifications"
            );
            let repair = node.observe_repair()?;
            self.current.longest_repair = self.current.longest_repair.max(repair);
            let start = node.observe_start()?;
            self.current.longest_start = self.current.longest_start.max(start);
        }
        Ok(())
    }

    fn end_interval(&mut self) -> Result<Interval> {
        let followed = self.changes.follow(&self.listeners());
        let mut tally = Tally::default();
        for node in &self.nodes {
            tally.add(node.clients.as_ref().map(Clients::take).unwrap_or_default());
        }
        self.note(followed, tally)
    }

    /// Completes the interval, begins another, and prints the completed one.
    fn note(&mut self, followed: Followed, tally: Tally) -> Result<Interval> {
        let mut interval = mem::take(&mut self.current);
        interval.took = self.began.elapsed();
        self.began = Instant::now();
        interval.followed = followed;
        interval.tally = tally;
        let [steady, restless] = &mut self.nodes;
        interval.memory = [steady.observe_memory()?, restless.observe_memory()?];
        let processor = steady.observe_processor_time()?;
        interval.processor = processor.saturating_sub(self.processor);
        self.processor = processor;
        interval.connections = steady.observe_connections()?;
        interval.objects = steady.observe_objects()?;
        interval.kernel_memory = observe_kernel_memory()?;
        println!("{interval}");
        for lost in &interval.tally.descriptions {
            println!("{lost}");
        }
        Ok(interval)
    }

    /// Ends the changes, then the clients. Returns what happened at last and the objects of each
    /// node's kernel.
    fn finish(mut self) -> Result<(Interval, [Objects; 2])> {
        wait_for("repairs and starts", PATIENCE, || {
            self.look()?;
            Ok((!self.is_busy()).then_some(()))
        })?;
        let listeners = self.listeners();
        let followed = self.changes.end(&listeners)?;
        let mut tally = Tally::default();
        for node in &mut self.nodes {
            if let Some(clients) = node.clients.take() {
                tally.add(clients.finish()?);
            }
        }
        let last = self.note(followed, tally)?;
        let after = self.observe_objects()?;
        let Course { nodes, .. } = self;
        for node in nodes {
            node.servers.stop()?;
        }
        Ok((last, after))
    }

    fn listeners(&self) -> [Arc<ListenerThread>; 2] {
        self.nodes.each_ref().map(|node| Arc::clone(&node.listener))
    }

    fn observe_objects(&mut self) -> Result<[Objects; 2]> {
        let [steady, restless] = &mut self.nodes;
        Ok([steady.observe_objects()?, restless.observe_objects()?])
    }
}

/// Installs the Node whose agent is killed, and its NodeProxy.
fn add_node(arena: &Arena) -> Result<()> {
    let mut proxy = stamped::node_proxy("bench", profile(Mode::Nftables))?;
    proxy["metadata"]["name"] = RESTLESS.into();
    let node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": RESTLESS},
        "spec": {"podCIDRs": [addresses::pod_cidr(2, Family::Ipv4)]},
    });
    let all = json!({"apiVersion": "v1", "kind": "List", "items": [node, proxy]});
    arena.control_plane.apply(&all.to_string())?;
    let own = json!({"type": "InternalIP", "address": node_address()});
    let status = json!({"status": {"addresses": [own]}}).to_string();
    let node = format!("node/{RESTLESS}");
    arena.control_plane.patch_status(&node, "default", &status)
}
