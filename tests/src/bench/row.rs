//! The rows and measures of the benchmark.

use std::fmt;

use clap::ValueEnum;

/// A timed activity; its results are its [`Measure`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Row {
    /// From the start of the process with an empty kernel to the last rule in the kernel.
    ColdStart,
    /// First packets and new connections from a pod of the node to random Services, and an
    /// established flow.
    Packets,
    /// One Service is added to an idle cluster.
    ServiceAdded,
    /// One endpoint is replaced in an idle cluster.
    EndpointReplaced,
    /// Endpoints are replaced at a steady rate.
    Churn,
    /// Endpoints are replaced at a steady rate while the largest objects that a tenant can write
    /// are written, and while their endpoints become ready and unready.
    LargeObjects,
    /// Nothing happens.
    Idle,
    /// The contender is killed and restarted with everything programmed.
    Restart,
    /// The contender's table is deleted.
    Repair,
    /// Another program writes to its own table during a cold start.
    Neighbour,
    /// Objects are decoded in a separate process; Signpost only.
    Decoding,
}

/// One figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// The time from the start of the process to everything in the kernel.
    ColdStart,
    /// The part of that which the program reports as the duration of its syncs.
    ColdStartRounds,
    /// The peak memory of the process and its children, from the start to the end of the changes.
    MemoryPeak,
    /// Their memory when idle.
    MemoryAtRest,
    /// The additional kernel memory once everything is programmed.
    KernelMemory,
    /// The time from the API server's answer to the kernel's notification: median.
    AddedP50,
    /// The 99th percentile of that time.
    AddedP99,
    /// The time from the API server's answer to the kernel's notification: median.
    ReplacedP50,
    /// The 99th percentile of that time.
    ReplacedP99,
    /// The time from the API server's answer to the kernel's notification: median.
    ChurnP50,
    /// The 99th percentile of that time.
    ChurnP99,
    /// The processor time of the process tree, in percent of one processor.
    ChurnProcessor,
    /// The number of changes that never reached the kernel because a later one superseded them.
    ChurnUnseen,
    /// The time from the API server's answer to the kernel's notification for Services that are not
    /// the large ones: median.
    BesideLargeP50,
    /// The 99th percentile of that time.
    BesideLargeP99,
    /// The maximum of that time.
    BesideLargeMost,
    /// The number of these changes that never reached the kernel because a later one superseded
    /// them.
    BesideLargeUnseen,
    /// The time from the first write of a large object until the kernel is quiet.
    LargeWritten,
    /// The time from the API server's answer to the kernel's notification for the same Services
    /// while endpoints of the large ones change: median.
    BesideFlipsP50,
    /// The 99th percentile of that time.
    BesideFlipsP99,
    /// The maximum of that time.
    BesideFlipsMost,
    /// The time from the start of the process until it reports that it is done.
    Restart,
    /// The number of transactions during the restart.
    RestartTransactions,
    /// The number of objects added or removed during the restart.
    RestartObjects,
    /// The time from the deletion of the table until everything is in the kernel again.
    Repair,
    /// The round-trip time of the first packet: median.
    TcpP50,
    /// The 90th percentile of that time.
    TcpP90,
    /// The 99th percentile of that time.
    TcpP99,
    /// The round-trip time of the first packet: median.
    UdpP50,
    /// The 90th percentile of that time.
    UdpP90,
    /// The 99th percentile of that time.
    UdpP99,
    /// New TCP connections of one client that waits for each.
    Connections,
    /// The round-trip time of a packet of an established flow to a Service: median.
    EstablishedP50,
    /// The round-trip time of a packet of an established flow to an endpoint's own address: median.
    DirectP50,
    /// The processor time of the machine for a packet of an established flow to a Service.
    EstablishedProcessor,
    /// The processor time of the machine for a packet of an established flow to an endpoint's own
    /// address.
    DirectProcessor,
    /// The processor time of the process tree, in percent of one processor.
    IdleProcessor,
    /// The number of wakeups of its threads.
    IdleWakeups,
    /// The number of children that ended.
    IdleProcesses,
    /// The maximum duration of an `nft` command without a contender.
    NeighbourAlone,
    /// The median duration of an `nft` command during the start.
    NeighbourP50,
    /// The maximum duration of an `nft` command during the start.
    NeighbourMost,
    /// EndpointSlices decoded and stored per second.
    DecodeRate,
    /// The memory kept for one slice.
    BytesPerSlice,
}

/// The unit of a measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// Units of 1,000,000 bytes.
    Megabytes,
    /// Bytes.
    Bytes,
    /// Percent of the base that the measure names.
    Percent,
    /// A number without a unit.
    Count,
    /// A number per second.
    PerSecond,
    /// A number per minute.
    PerMinute,
}

/// Which of two values is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// The smaller value.
    Lower,
    /// The larger value.
    Higher,
}

// === impl Row ===

impl Row {
    /// All rows.
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
    /// Returns the text in the first column of the table.
    pub fn title(self) -> &'static str {
        match self {
            Measure::ColdStart => "cold start to programmed",
            Measure::ColdStartRounds => "of it, syncs that wrote, as the program reports",
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
            Measure::BesideLargeUnseen => {
                "changes of others while large objects are written, overtaken by another of the same \
                 Service"
            }
            Measure::LargeWritten => "large objects, from the first write to the last rule",
            Measure::BesideFlipsP50 => {
                "changes of others while endpoints of large objects change, p50"
            }
            Measure::BesideFlipsP99 => {
                "changes of others while endpoints of large objects change, p99"
            }
            Measure::BesideFlipsMost => {
                "changes of others while endpoints of large objects change, longest"
            }
            Measure::Restart => {
                "restart with everything in place, until the program reports that it is done"
            }
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
            Measure::EstablishedP50 => "established flow UDP, round trip, p50",
            Measure::DirectP50 => "the same to an endpoint's own address, p50",
            Measure::EstablishedProcessor => "established flow UDP, processor for a packet",
            Measure::DirectProcessor => "the same to an endpoint's own address, processor",
            Measure::IdleProcessor => "idle, processor",
            Measure::IdleWakeups => "idle, wakeups",
            Measure::IdleProcesses => "idle, processes started",
            Measure::NeighbourAlone => "`nft` in another table without another writer, longest",
            Measure::NeighbourP50 => "`nft` in another table during a cold start, p50",
            Measure::NeighbourMost => "`nft` in another table during a cold start, longest",
            Measure::DecodeRate => "EndpointSlices decoded and kept",
            Measure::BytesPerSlice => "memory kept for an EndpointSlice",
        }
    }

    /// Returns the unit.
    pub fn unit(self) -> Unit {
        match self {
            Measure::TcpP50
            | Measure::TcpP90
            | Measure::TcpP99
            | Measure::UdpP50
            | Measure::UdpP90
            | Measure::UdpP99
            | Measure::EstablishedP50
            | Measure::DirectP50
            | Measure::EstablishedProcessor
            | Measure::DirectProcessor => Unit::Microseconds,
            Measure::MemoryPeak | Measure::MemoryAtRest | Measure::KernelMemory => Unit::Megabytes,
            Measure::BytesPerSlice => Unit::Bytes,
            Measure::ChurnProcessor
            | Measure::ChurnUnseen
            | Measure::BesideLargeUnseen
            | Measure::IdleProcessor => Unit::Percent,
            Measure::RestartTransactions | Measure::RestartObjects => Unit::Count,
            Measure::Connections | Measure::IdleWakeups | Measure::DecodeRate => Unit::PerSecond,
            Measure::IdleProcesses => Unit::PerMinute,
            _ => Unit::Milliseconds,
        }
    }

    /// Returns which value is better.
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
