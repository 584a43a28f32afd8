//! How an endpoint is chosen for a new connection.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use crate::Mode;

/// How an endpoint is chosen for a new connection of a client without an affinity entry. Policies,
/// hints and readiness determine the endpoints to choose from.
///
/// Every endpoint has the same weight. Schedulers that differ only by weight therefore choose
/// alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Scheduler {
    /// Each with the same probability.
    #[default]
    Random,
    /// In turn, with a counter for each Service port.
    RoundRobin,
    /// By a hash of the client's address modulo the number of endpoints. A change of the number
    /// moves most clients.
    SourceHash,
    /// By a hash of the client's address and a table computed from the endpoints: the removal of an
    /// endpoint moves few clients other than its own.
    Maglev,
    /// IPVS `wrr`: in turn, by weight.
    WeightedRoundRobin,
    /// IPVS `lc`: the endpoint with the fewest connections.
    LeastConnection,
    /// IPVS `wlc`: the fewest connections for its weight.
    WeightedLeastConnection,
    /// IPVS `lblc`: one endpoint for each destination address, unless it is overloaded.
    LocalityLeastConnection,
    /// IPVS `lblcr`: like `lblc`, with several endpoints for each address.
    LocalityLeastConnectionReplicated,
    /// IPVS `dh`: by a hash of the destination address.
    DestinationHash,
    /// IPVS `sed`: the shortest expected delay.
    ShortestExpectedDelay,
    /// IPVS `nq`: an idle endpoint, else the shortest expected delay.
    NeverQueue,
    /// IPVS `fo`: the endpoint of the highest weight.
    Failover,
    /// IPVS `ovf`: the endpoint of the highest weight that has capacity for another connection.
    Overflow,
    /// IPVS `twos`: of two chosen at random, the one with fewer connections.
    PowerOfTwo,
}

/// What a choice depends on, as far as it can be specified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Basis {
    /// Chance: each connection is placed independently, in the long run equally often at each
    /// endpoint.
    Chance,
    /// The previous connections: any `n` in a row go to all of `n` endpoints.
    Turn,
    /// The client's address and the set of endpoints: the same input gives the same endpoint, on
    /// every node and after every restart.
    Source,
    /// State of the kernel, such as load: any endpoint may follow any other.
    Load,
}

/// The error for a name that no scheduler has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownScheduler;

// === impl Scheduler ===

impl Scheduler {
    /// All schedulers.
    pub const ALL: [Scheduler; 15] = [
        Scheduler::Random,
        Scheduler::RoundRobin,
        Scheduler::SourceHash,
        Scheduler::Maglev,
        Scheduler::WeightedRoundRobin,
        Scheduler::LeastConnection,
        Scheduler::WeightedLeastConnection,
        Scheduler::LocalityLeastConnection,
        Scheduler::LocalityLeastConnectionReplicated,
        Scheduler::DestinationHash,
        Scheduler::ShortestExpectedDelay,
        Scheduler::NeverQueue,
        Scheduler::Failover,
        Scheduler::Overflow,
        Scheduler::PowerOfTwo,
    ];

    /// The name in profiles and annotations.
    pub fn name(self) -> &'static str {
        match self {
            Scheduler::Random => "random",
            Scheduler::RoundRobin => "roundRobin",
            Scheduler::SourceHash => "sourceHash",
            Scheduler::Maglev => "maglev",
            Scheduler::WeightedRoundRobin => "wrr",
            Scheduler::LeastConnection => "lc",
            Scheduler::WeightedLeastConnection => "wlc",
            Scheduler::LocalityLeastConnection => "lblc",
            Scheduler::LocalityLeastConnectionReplicated => "lblcr",
            Scheduler::DestinationHash => "dh",
            Scheduler::ShortestExpectedDelay => "sed",
            Scheduler::NeverQueue => "nq",
            Scheduler::Failover => "fo",
            Scheduler::Overflow => "ovf",
            Scheduler::PowerOfTwo => "twos",
        }
    }

    /// Its name in IPVS, if IPVS has it. Also accepted in profiles and annotations.
    pub fn ipvs_name(self) -> Option<&'static str> {
        match self {
            Scheduler::Random => None,
            Scheduler::RoundRobin => Some("rr"),
            Scheduler::SourceHash => Some("sh"),
            Scheduler::Maglev => Some("mh"),
            other => Some(other.name()),
        }
    }

    /// The scheduler that `mode` uses for this one: itself if the mode has it, else the
    /// nearest.
    ///
    /// Without knowledge of load, round robin is nearest to an even load. Schedulers that keep
    /// clients together by anything other than their address, or prefer some endpoints, have no
    /// near equivalent: the default replaces them.
    pub fn nearest_in(self, mode: Mode) -> Scheduler {
        match (mode, self) {
            (Mode::Ipvs, Scheduler::Random) => Scheduler::RoundRobin,
            (Mode::Ipvs, other) => other,
            (Mode::Nftables, Scheduler::RoundRobin | Scheduler::SourceHash | Scheduler::Maglev)
            | (Mode::Iptables, Scheduler::RoundRobin) => self,
            (
                Mode::Nftables | Mode::Iptables,
                Scheduler::WeightedRoundRobin
                | Scheduler::LeastConnection
                | Scheduler::WeightedLeastConnection
                | Scheduler::ShortestExpectedDelay
                | Scheduler::NeverQueue,
            ) => Scheduler::RoundRobin,
            (Mode::Nftables | Mode::Iptables, _) => Scheduler::Random,
        }
    }

    /// The scheduler that `mode` uses instead of this one, if it chooses differently.
    pub fn replacement_in(self, mode: Mode) -> Option<Scheduler> {
        let used = self.nearest_in(mode);
        // All weights are equal.
        let is_same =
            used == self || (self, used) == (Scheduler::WeightedRoundRobin, Scheduler::RoundRobin);
        (!is_same).then_some(used)
    }

    /// What its choices depend on.
    pub fn basis(self) -> Basis {
        match self {
            Scheduler::Random => Basis::Chance,
            Scheduler::RoundRobin | Scheduler::WeightedRoundRobin => Basis::Turn,
            Scheduler::SourceHash | Scheduler::Maglev => Basis::Source,
            Scheduler::LeastConnection
            | Scheduler::WeightedLeastConnection
            | Scheduler::LocalityLeastConnection
            | Scheduler::LocalityLeastConnectionReplicated
            | Scheduler::DestinationHash
            | Scheduler::ShortestExpectedDelay
            | Scheduler::NeverQueue
            | Scheduler::Failover
            | Scheduler::Overflow
            | Scheduler::PowerOfTwo => Basis::Load,
        }
    }
}

impl FromStr for Scheduler {
    type Err = UnknownScheduler;

    fn from_str(text: &str) -> Result<Scheduler, UnknownScheduler> {
        let mut all = Scheduler::ALL.into_iter();
        all.find(|scheduler| scheduler.name() == text || scheduler.ipvs_name() == Some(text))
            .ok_or(UnknownScheduler)
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl UnknownScheduler ===

impl fmt::Display for UnknownScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Scheduler::ALL.map(Scheduler::name).into();
        let aliases = Scheduler::ALL.into_iter().filter_map(|scheduler| {
            let alias = scheduler.ipvs_name()?;
            (alias != scheduler.name()).then_some(alias)
        });
        let aliases: Vec<&str> = aliases.collect();
        write!(f, "not one of {}, {}", names.join(", "), aliases.join(", "))
    }
}

impl Error for UnknownScheduler {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_those_of_ipvs_are_read_and_nothing_else() {
        for scheduler in Scheduler::ALL {
            assert_eq!(scheduler.to_string().parse(), Ok(scheduler));
            if let Some(name) = scheduler.ipvs_name() {
                assert_eq!(name.parse(), Ok(scheduler));
            }
        }
        for unknown in ["", "Random", " rr", "roundrobin"] {
            assert_eq!(unknown.parse::<Scheduler>(), Err(UnknownScheduler));
        }
    }

    #[test]
    fn what_takes_the_place_of_a_scheduler_is_one_that_the_mode_has() {
        for mode in [Mode::Nftables, Mode::Iptables, Mode::Ipvs] {
            for scheduler in Scheduler::ALL {
                let used = scheduler.nearest_in(mode);
                assert_eq!(used.nearest_in(mode), used, "{scheduler}");
            }
        }
    }
}
