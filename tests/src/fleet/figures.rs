//! The results for one size of cluster, and the tables of several sizes.

use std::fmt;
use std::time::Duration;

use super::api_server::Requests;
use super::delays::Delays;
use super::handover::{HandoverFigures, Handovers, RefusedTakeover};
use crate::bench::process_tree::Bytes;

/// The results for one size of cluster.
#[derive(Debug, Clone)]
pub struct Figures {
    /// The number of nodes.
    pub nodes: usize,
    /// The time from the creation of the first Node until the profile's status reports all nodes
    /// ready.
    pub join: Duration,
    /// The load while nothing changes.
    pub rest: Load,
    /// How soon a report is counted while nothing else changes.
    pub delays: Delays,
    /// The load while the endpoints of a Service change on every node.
    pub churn: Load,
    /// How soon a report is counted under churn.
    pub delays_under_churn: Delays,
    /// An edit of the profile while nothing else changes.
    pub edit: Edit,
    /// An edit of the profile under churn.
    pub edit_under_churn: Edit,
    /// Handovers to and from kube-proxy.
    pub handovers: Handovers,
}

/// The load during one period.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// The agents' writes of statuses per second.
    pub agents: f64,
    /// The operator's writes per second: NodeProxies, statuses of profiles, Events.
    pub operator: f64,
    /// The requests per second.
    pub requests: Requests,
    /// The watches that are open at the end.
    pub open_watches: f64,
    /// The processor time of the operator, in percent of one processor.
    pub processor: f64,
    /// The processor time of the API server, in percent of one processor.
    pub api_server: f64,
    /// The resident memory of the operator at the end.
    pub(super) memory: Bytes,
}

/// How fast an edited profile reaches the nodes.
#[derive(Debug, Clone, Copy)]
pub struct Edit {
    /// The time until the profile's status is about the edit.
    pub status: Duration,
    /// The time until the first node has its new configuration.
    pub first: Duration,
    /// The time until the status reports that all nodes have it and are ready.
    pub all: Duration,
    /// The time of the same writes in waves of the same sizes without an operator.
    pub least: Duration,
}

/// One figure with its unit.
#[derive(Debug, Clone, Copy)]
enum Quantity {
    Count(f64),
    Time(Duration),
    /// A second.
    Rate(f64),
    /// A second and node.
    RateOfNode(f64),
    Percent(f64),
    Memory(Bytes),
    Ratio(f64),
}

/// A row of the tables: its name, and the figures of one size.
type Row = (&'static str, fn(&Figures) -> Vec<Quantity>);

const ROWS: [Row; 27] = [
    ("nodes", |f| vec![count(f.nodes)]),
    ("all nodes join, until the status says so", |f| {
        vec![Quantity::Time(f.join)]
    }),
    ("at rest: writes a second: agents; operator", |f| {
        f.rest.writes()
    }),
    (
        "at rest: requests a second: lists; reads; watches; writes; renewals of Leases",
        |f| rates(f.rest.requests, Quantity::Rate),
    ),
    ("at rest: the same for each node", |f| f.of_node(&f.rest)),
    ("at rest: open watches", |f| {
        vec![Quantity::Count(f.rest.open_watches)]
    }),
    ("at rest: processor: operator; API server", |f| {
        f.rest.processors()
    }),
    ("at rest: memory of the operator", |f| {
        vec![Quantity::Memory(f.rest.memory)]
    }),
    (
        "at rest: from an agent's report until the status counts it: median; longest",
        |f| f.delays.quantities(),
    ),
    ("churn: writes a second: agents; operator", |f| {
        f.churn.writes()
    }),
    (
        "churn: requests a second: lists; reads; watches; writes; renewals of Leases",
        |f| rates(f.churn.requests, Quantity::Rate),
    ),
    ("churn: the same for each node", |f| f.of_node(&f.churn)),
    ("churn: open watches", |f| {
        vec![Quantity::Count(f.churn.open_watches)]
    }),
    ("churn: processor: operator; API server", |f| {
        f.churn.processors()
    }),
    ("churn: memory of the operator", |f| {
        vec![Quantity::Memory(f.churn.memory)]
    }),
    (
        "churn: from an agent's report until the status counts it: median; longest",
        |f| f.delays_under_churn.quantities(),
    ),
    ("edit: until the status is about it; first node", |f| {
        f.edit.beginning()
    }),
    ("edit: all nodes; ratio to the least time", |f| f.edit.end()),
    (
        "edit under churn: until the status is about it; first node",
        |f| f.edit_under_churn.beginning(),
    ),
    (
        "edit under churn: all nodes; ratio to the least time",
        |f| f.edit_under_churn.end(),
    ),
    ("handback: all nodes; ratio to the least time", |f| {
        f.handovers.handback.times()
    }),
    ("handback: nodes that changed at once", |f| {
        vec![count(f.handovers.handback.most_at_once)]
    }),
    (
        "handback: configurations given to a node: fewest; most",
        |f| f.handovers.handback.generations(),
    ),
    (
        "refused takeover: until the rollout has ended; nodes that changed",
        |f| f.handovers.refused.quantities(),
    ),
    ("takeover: all nodes; ratio to the least time", |f| {
        f.handovers.takeover.times()
    }),
    ("takeover: nodes that changed at once", |f| {
        vec![count(f.handovers.takeover.most_at_once)]
    }),
    (
        "takeover: configurations given to a node: fewest; most",
        |f| f.handovers.takeover.generations(),
    ),
];

// === impl Figures ===

impl Figures {
    /// Renders a table with one column for each of `sizes`.
    pub fn table(sizes: &[Figures]) -> String {
        render(sizes.len(), |(_, figures)| {
            let cell = |size: &Figures| join(figures(size), |quantity| quantity.to_string());
            sizes.iter().map(cell).collect()
        })
    }

    /// Renders a table of the same rows with the ratio of each figure to that of the size before;
    /// one column less than there are `sizes`.
    pub fn growth(sizes: &[Figures]) -> String {
        render(sizes.len().saturating_sub(1), |(_, figures)| {
            let cell = |pair: &[Figures]| {
                let before = figures(&pair[0]);
                let both = before.into_iter().zip(figures(&pair[1]));
                join(both, |(before, after)| after.ratio_to(before))
            };
            sizes.windows(2).map(cell).collect()
        })
    }

    fn of_node(&self, load: &Load) -> Vec<Quantity> {
        let nodes = self.nodes as f64;
        rates(load.requests.for_each(nodes), Quantity::RateOfNode)
    }
}

fn render(columns: usize, cells: impl Fn(&Row) -> Vec<String>) -> String {
    let mut lines = Vec::new();
    for row in &ROWS {
        lines.push(format!("| {} | {} |", row.0, cells(row).join(" | ")));
        if lines.len() == 1 {
            lines.push(format!("|{}", "---|".repeat(columns + 1)));
        }
    }
    lines.join("\n")
}

fn join<T>(all: impl IntoIterator<Item = T>, render: impl Fn(T) -> String) -> String {
    let all: Vec<String> = all.into_iter().map(render).collect();
    all.join("; ")
}

fn count(number: usize) -> Quantity {
    Quantity::Count(number as f64)
}

fn ratio(time: Duration, least: Duration) -> Quantity {
    Quantity::Ratio(time.as_secs_f64() / least.as_secs_f64())
}

fn rates(requests: Requests, unit: fn(f64) -> Quantity) -> Vec<Quantity> {
    let Requests {
        lists,
        reads,
        watches,
        writes,
        renewals,
    } = requests;
    [lists, reads, watches, writes, renewals].map(unit).to_vec()
}

// === impl Quantity ===

impl Quantity {
    /// Returns the ratio to a figure of the same row as text; `-` if that is zero.
    fn ratio_to(self, before: Quantity) -> String {
        match before.number() {
            0.0 => "-".to_owned(),
            before => format!("{:.1}", self.number() / before),
        }
    }

    fn number(self) -> f64 {
        match self {
            Quantity::Count(number)
            | Quantity::Rate(number)
            | Quantity::RateOfNode(number)
            | Quantity::Percent(number)
            | Quantity::Ratio(number) => number,
            Quantity::Time(time) => time.as_secs_f64(),
            Quantity::Memory(Bytes(bytes)) => bytes as f64,
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Quantity::Count(number) => write!(f, "{number:.0}"),
            Quantity::Time(time) => write!(f, "{:.1} s", time.as_secs_f64()),
            Quantity::Rate(rate) | Quantity::Ratio(rate) => write!(f, "{rate:.1}"),
            Quantity::RateOfNode(rate) => write!(f, "{rate:.4}"),
            Quantity::Percent(percent) => write!(f, "{percent:.1} %"),
            Quantity::Memory(Bytes(bytes)) => write!(f, "{} MB", bytes / 1_000_000),
        }
    }
}

// === impl Load ===

impl Load {
    fn writes(&self) -> Vec<Quantity> {
        [self.agents, self.operator].map(Quantity::Rate).to_vec()
    }

    fn processors(&self) -> Vec<Quantity> {
        let both = [self.processor, self.api_server];
        both.map(Quantity::Percent).to_vec()
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |quantities| join(quantities, |quantity: Quantity| quantity.to_string());
        write!(
            f,
            "{} writes/s; {} requests/s; {}; {}",
            text(self.writes()),
            text(rates(self.requests, Quantity::Rate)),
            text(self.processors()),
            Quantity::Memory(self.memory)
        )
    }
}

// === impl Edit ===

impl Edit {
    fn beginning(&self) -> Vec<Quantity> {
        [self.status, self.first].map(Quantity::Time).to_vec()
    }

    fn end(&self) -> Vec<Quantity> {
        vec![Quantity::Time(self.all), ratio(self.all, self.least)]
    }
}

// === impl Delays ===

impl Delays {
    fn quantities(&self) -> Vec<Quantity> {
        [self.median, self.longest].map(Quantity::Time).to_vec()
    }
}

// === impl HandoverFigures ===

impl HandoverFigures {
    fn times(&self) -> Vec<Quantity> {
        vec![Quantity::Time(self.all), ratio(self.all, self.least)]
    }

    fn generations(&self) -> Vec<Quantity> {
        let generations = [self.fewest_generations, self.most_generations];
        generations
            .map(|number| Quantity::Count(number as f64))
            .to_vec()
    }
}

// === impl RefusedTakeover ===

impl RefusedTakeover {
    fn quantities(&self) -> Vec<Quantity> {
        vec![Quantity::Time(self.ended), count(self.changed.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_the_ratio_to_the_size_before() {
        let time = |seconds| Quantity::Time(Duration::from_secs(seconds));
        assert_eq!(time(51).ratio_to(time(10)), "5.1");
        let memory = |megabytes: u64| Quantity::Memory(Bytes(megabytes * 1_000_000));
        assert_eq!(memory(124).ratio_to(memory(62)), "2.0");
        assert_eq!(Quantity::Rate(0.5).ratio_to(Quantity::Rate(0.0)), "-");
    }
}
