//! What is measured.

use std::fmt;

use clap::ValueEnum;

/// Something that is done and timed; the figures that come of it are its [`Measure`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Row {
    /// From the start of the process with an empty kernel to the last rule in the kernel.
    ColdStart,
    /// First packets and new connections from a pod of the node to random Services.
    Packets,
    /// One Service is added, after quiet.
    ServiceAdded,
    /// One endpoint is replaced, after quiet.
    EndpointReplaced,
    /// Endpoints are replaced at a steady pace.
    Churn,
    /// Endpoints are replaced at a steady pace while the largest objects are written that a tenant may
    /// write.
    LargeObjects,
    /// Nothing happens.
    Idle,
    /// Killed and started again with everything in place.
    Restart,
    /// Its table is deleted.
    Repair,
    /// Another program writes to a table of its own during a cold start.
    Neighbour,
    /// Objects are decoded, in a process that does nothing else; only ours.
    Decoding,
}

/// One figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Process start to everything in the kernel.
    ColdStart,
    /// What the program says that its own rounds took of that.
    ColdStartRounds,
    /// Of the process and its children, from the start to the end of the changes.
    MemoryPeak,
    /// The same when nothing happens.
    MemoryAtRest,
    /// How much more memory the kernel has taken once everything was programmed.
    KernelMemory,
    /// Answer of the API server to the change heard of in the kernel.
    AddedP50,
    /// The same, of one in a hundred.
    AddedP99,
    /// Answer of the API server to the change heard of in the kernel.
    ReplacedP50,
    /// The same, of one in a hundred.
    ReplacedP99,
    /// Answer of the API server to the change heard of in the kernel.
    ChurnP50,
    /// The same, of one in a hundred.
    ChurnP99,
    /// Processor time of the tree, in percent of one processor.
    ChurnProcessor,
    /// Changes that were never in the kernel, because another one came before.
    ChurnUnseen,
    /// Answer of the API server to the change heard of in the kernel, of Services that are none of the
    /// large ones.
    BesideLargeP50,
    /// The same, of one in a hundred.
    BesideLargeP99,
    /// The same, at most.
    BesideLargeMost,
    /// From the first large object written to quiet.
    LargeWritten,
    /// Process start to the program saying that it is done.
    Restart,
    /// Transactions heard of meanwhile.
    RestartTransactions,
    /// Objects that came or went meanwhile.
    RestartObjects,
    /// Table deleted to everything in the kernel again.
    Repair,
    /// Round trip of the first packet.
    TcpP50,
    /// Of one in ten.
    TcpP90,
    /// Of one in a hundred.
    TcpP99,
    /// Round trip of the first packet.
    UdpP50,
    /// Of one in ten.
    UdpP90,
    /// Of one in a hundred.
    UdpP99,
    /// New TCP connections of one client that waits for each.
    Connections,
    /// Processor time of the tree, in percent of one processor.
    IdleProcessor,
    /// Of its threads.
    IdleWakeups,
    /// Children that ended.
    IdleProcesses,
    /// How long `nft` takes at most with nobody else.
    NeighbourAlone,
    /// How long it takes in the middle.
    NeighbourP50,
    /// How long it takes at most.
    NeighbourMost,
    /// EndpointSlices decoded and taken in.
    DecodeRate,
    /// What is kept of one.
    BytesPerSlice,
}

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Thousandths of a second.
    Milliseconds,
    /// Millionths of a second.
    Microseconds,
    /// Of 1,000,000 bytes.
    Megabytes,
    /// Bytes.
    Bytes,
    /// Of something that the figure says.
    Percent,
    /// Pieces.
    Count,
    /// Pieces in a second.
    PerSecond,
    /// Pieces in a minute.
    PerMinute,
}

/// Which of two figures is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// The smaller one.
    Lower,
    /// The larger one.
    Higher,
}

// === impl Row ===

impl Row {
    /// All of them.
    pub const ALL: [Row; 11] = [
        Row::ColdStart,
        Row::Packets,
        Row::ServiceAdded,
        Row::EndpointReplaced,
        Row::Churn,
        Row::LargeObjects,
        Row::Idle,
        Row::Restart,
        Row::Repair,
        Row::Neighbour,
        Row::Decoding,
    ];
}

// === impl Measure ===

impl Measure {
    /// What the first column of a table says.
    pub fn title(self) -> &'static str {
        match self {
            Measure::ColdStart => "cold start to programmed",
            Measure::ColdStartRounds => "of it, by its own word, the rounds that wrote",
            Measure::MemoryPeak => "resident memory of the process tree, peak",
            Measure::MemoryAtRest => "resident memory of the process tree, at rest",
            Measure::KernelMemory => "memory of the kernel, more than before",
            Measure::AddedP50 => "one Service added, p50",
            Measure::AddedP99 => "one Service added, p99",
            Measure::ReplacedP50 => "one endpoint replaced, p50",
            Measure::ReplacedP99 => "one endpoint replaced, p99",
            Measure::ChurnP50 => "steady changes, p50",
            Measure::ChurnP99 => "steady changes, p99",
            Measure::ChurnProcessor => "steady changes, processor",
            Measure::ChurnUnseen => "steady changes, overtaken by another of the same Service",
            Measure::BesideLargeP50 => "changes of others while large objects are written, p50",
            Measure::BesideLargeP99 => "changes of others while large objects are written, p99",
            Measure::BesideLargeMost => {
                "changes of others while large objects are written, longest"
            }
            Measure::LargeWritten => "large objects, from the first answer to the last rule",
            Measure::Restart => "restart with everything in place, to done by its own word",
            Measure::RestartTransactions => "restart, transactions",
            Measure::RestartObjects => "restart, objects written",
            Measure::Repair => "table deleted to repaired",
            Measure::TcpP50 => "first packet TCP, p50",
            Measure::TcpP90 => "first packet TCP, p90",
            Measure::TcpP99 => "first packet TCP, p99",
            Measure::UdpP50 => "first packet UDP, p50",
            Measure::UdpP90 => "first packet UDP, p90",
            Measure::UdpP99 => "first packet UDP, p99",
            Measure::Connections => "new TCP connections, one client",
            Measure::IdleProcessor => "idle, processor",
            Measure::IdleWakeups => "idle, wakeups",
            Measure::IdleProcesses => "idle, processes started",
            Measure::NeighbourAlone => "`nft` in another table with nobody else, longest",
            Measure::NeighbourP50 => "`nft` in another table during a cold start, p50",
            Measure::NeighbourMost => "`nft` in another table during a cold start, longest",
            Measure::DecodeRate => "EndpointSlices decoded and kept",
            Measure::BytesPerSlice => "memory kept for an EndpointSlice",
        }
    }

    /// What it counts.
    pub fn unit(self) -> Unit {
        match self {
            Measure::TcpP50
            | Measure::TcpP90
            | Measure::TcpP99
            | Measure::UdpP50
            | Measure::UdpP90
            | Measure::UdpP99 => Unit::Microseconds,
            Measure::MemoryPeak | Measure::MemoryAtRest | Measure::KernelMemory => Unit::Megabytes,
            Measure::BytesPerSlice => Unit::Bytes,
            Measure::ChurnProcessor | Measure::ChurnUnseen | Measure::IdleProcessor => {
                Unit::Percent
            }
            Measure::RestartTransactions | Measure::RestartObjects => Unit::Count,
            Measure::Connections | Measure::IdleWakeups | Measure::DecodeRate => Unit::PerSecond,
            Measure::IdleProcesses => Unit::PerMinute,
            _ => Unit::Milliseconds,
        }
    }

    /// Which is the better figure.
    pub fn better(self) -> Better {
        match self {
            Measure::Connections | Measure::DecodeRate => Better::Higher,
            _ => Better::Lower,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::Milliseconds => "ms",
            Unit::Microseconds => "µs",
            Unit::Megabytes => "MB",
            Unit::Bytes => "bytes",
            Unit::Percent => "%",
            Unit::Count => "",
            Unit::PerSecond => "/s",
            Unit::PerMinute => "/min",
        })
    }
}
