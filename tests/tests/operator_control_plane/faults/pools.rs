//! Groups of nodes whose rollouts wait in different phases for a fault.

use std::time::Duration;

use crds::profile::handover::Handover;
use crds::profile::rollout::OnFailure;
use serde_json::{Value, json};

use super::record::Record;

/// The configuration before the rollout, which differs from the one after it by `syncPeriod`.
pub(crate) const FIRST: &str = "1m";
/// The configuration that is rolled out.
pub(crate) const SECOND: &str = "2m";

/// Nodes with a profile of their own.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The name of the profile, and the label of its nodes: the phase in which a fault finds the
    /// rollout.
    pub(crate) name: &'static str,
    /// The number of nodes.
    pub(crate) size: usize,
    /// `rollout.canary`.
    canary: usize,
    /// `rollout.waves`.
    waves: &'static [u32],
    /// `rollout.maxUnavailable`.
    pub(crate) most: usize,
    /// `rollout.minReady`.
    pub(crate) min_ready: Duration,
    /// Both for nodes that return to [`FIRST`].
    pub(crate) most_back: usize,
    pub(crate) min_ready_back: Duration,
    /// `rollout.progressDeadline`.
    progress_deadline: Duration,
    /// `rollout.onFailure`.
    on_failure: OnFailure,
    /// `handover` of [`SECOND`].
    handover: Handover,
    /// How its rollout ends.
    pub(crate) end: End,
    /// Whether its rollout is in the phase of its name.
    is_in_phase: fn(&Pool, &Record) -> bool,
}

/// How a rollout ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Every node has [`SECOND`].
    Settled,
    /// The first nodes had [`SECOND`] and returned; the others kept [`FIRST`].
    RolledBack {
        /// The number of nodes that returned.
        changed: usize,
    },
    /// The first node has [`SECOND`], and failed with it; the others kept [`FIRST`].
    Halted,
    /// Every node but the last had [`FIRST`] from another profile and has [`SECOND`], which the last
    /// had all along.
    Moved,
}

/// `rollout.minReady` of rollouts that a fault must find before it is over.
const OBSERVABLE: Duration = Duration::from_secs(6);

/// One node, then half of them, then all, two at a time.
const IN_WAVES: Pool = Pool {
    name: "",
    size: 6,
    canary: 1,
    waves: &[50],
    most: 2,
    min_ready: Duration::from_secs(3),
    most_back: 2,
    min_ready_back: Duration::from_secs(3),
    progress_deadline: Duration::from_mins(10),
    on_failure: OnFailure::Rollback,
    handover: Handover::Manual,
    end: End::Settled,
    is_in_phase: |_, _| false,
};

/// The canary has not reported yet.
pub(crate) const UNREPORTED: Pool = Pool {
    name: "unreported",
    is_in_phase: has_silent_canary,
    ..IN_WAVES
};

/// The canary has reported, and `rollout.minReady` is not over.
pub(crate) const PROVING: Pool = Pool {
    name: "proving",
    min_ready: OBSERVABLE,
    is_in_phase: |pool, record| pool.has_reported(1, record) && !pool.has_changed(2, record),
    ..IN_WAVES
};

/// The operator writes the configuration to all nodes but the canary at once.
pub(crate) const STAMPING: Pool = Pool {
    name: "stamping",
    // The operator writes 16 at once.
    size: 120,
    waves: &[],
    most: 120,
    min_ready: Duration::ZERO,
    most_back: 120,
    min_ready_back: Duration::ZERO,
    is_in_phase: |pool, record| {
        let count = (2..=pool.size).filter(|number| pool.has_changed(*number, record));
        (1..pool.size - 1).contains(&count.count())
    },
    ..IN_WAVES
};

/// The last nodes of a wave have reported, and the next wave has not begun.
pub(crate) const BETWEEN: Pool = Pool {
    name: "between",
    min_ready: OBSERVABLE,
    is_in_phase: |pool, record| {
        let mut second_wave = [2, 3].into_iter();
        second_wave.all(|number| pool.has_reported(number, record)) && !pool.has_changed(4, record)
    },
    ..IN_WAVES
};

/// The user has aborted the rollout while three nodes proved themselves. The first of them has its
/// configuration back and has not reported; the others wait for it.
pub(crate) const RETURNING: Pool = Pool {
    name: "returning",
    canary: 3,
    waves: &[],
    most: 3,
    min_ready: Duration::from_hours(1),
    most_back: 1,
    end: End::RolledBack { changed: 3 },
    is_in_phase: |pool, record| {
        let is_back = |number: &usize| pool.has_returned(*number, record);
        let (back, others): (Vec<usize>, Vec<usize>) = (1..=3).partition(is_back);
        let [back] = back[..] else { return false };
        let mut others = others.into_iter();
        !record.has_reported(&pool.node(back))
            && others.all(|number| pool.has_changed(number, record))
    },
    ..IN_WAVES
};

/// The user has paused the rollout before the canary reported.
pub(crate) const PAUSED: Pool = Pool {
    name: "paused",
    min_ready: Duration::ZERO,
    is_in_phase: |pool, record| pool.has_reported(1, record) && !pool.has_changed(2, record),
    ..IN_WAVES
};

/// The rollout has ended.
pub(crate) const SETTLED: Pool = Pool {
    name: "settled",
    waves: &[],
    most: 6,
    min_ready: Duration::ZERO,
    is_in_phase: |pool, record| (1..=pool.size).all(|number| pool.has_reported(number, record)),
    ..IN_WAVES
};

/// The canary does not report before its deadline.
pub(crate) const FAILING: Pool = Pool {
    name: "failing",
    most_back: 1,
    progress_deadline: Duration::from_secs(20),
    end: End::RolledBack { changed: 1 },
    is_in_phase: has_silent_canary,
    ..IN_WAVES
};

/// The canary has not reported before its deadline, and all nodes keep what they have.
pub(crate) const HALTED: Pool = Pool {
    name: "halted",
    // The shortest that the definition allows.
    progress_deadline: Duration::from_secs(10),
    on_failure: OnFailure::Halt,
    end: End::Halted,
    is_in_phase: |pool, record| {
        let mut others = 2..=pool.size;
        has_silent_canary(pool, record) && !others.any(|number| pool.has_changed(number, record))
    },
    ..IN_WAVES
};

/// The nodes are to take over, and the DaemonSet of kube-proxy selects them.
pub(crate) const HELD: Pool = Pool {
    name: "held",
    min_ready: Duration::ZERO,
    handover: Handover::Takeover,
    is_in_phase: |pool, record| !(1..=pool.size).any(|number| pool.has_changed(number, record)),
    ..IN_WAVES
};

/// One node has taken over, the next two are at it, and the others are still with kube-proxy.
pub(crate) const TAKING_OVER: Pool = Pool {
    name: "taking-over",
    min_ready: Duration::ZERO,
    handover: Handover::Takeover,
    is_in_phase: is_in_second_wave,
    ..IN_WAVES
};

/// One node has handed back, the next two are at it, and the others are still with Signpost.
pub(crate) const HANDING_BACK: Pool = Pool {
    name: "handing-back",
    handover: Handover::Handback,
    ..TAKING_OVER
};

/// Labels move all nodes but the last from profile [`ORIGIN`] to that of the last, whose rollout has
/// ended. One node has moved, the next two are at it, and the others still have what they had.
pub(crate) const MOVING: Pool = Pool {
    name: "moving",
    size: 7,
    min_ready: Duration::ZERO,
    end: End::Moved,
    is_in_phase: is_in_second_wave,
    ..IN_WAVES
};

/// The profile from which the nodes of [`MOVING`] move, and their label before.
pub(crate) const ORIGIN: &str = "origin";

/// One pool for each phase of a rollout.
pub(crate) const POOLS: &[Pool] = &[
    UNREPORTED,
    PROVING,
    STAMPING,
    BETWEEN,
    RETURNING,
    PAUSED,
    SETTLED,
    FAILING,
    HALTED,
    HELD,
    TAKING_OVER,
    HANDING_BACK,
    MOVING,
];

// === impl Pool ===

impl Pool {
    /// Returns the names of its nodes, in the order in which a rollout reaches them.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = String> {
        (1..=self.size).map(|number| self.node(number))
    }

    /// Returns the name of its node of this number, counted from 1.
    pub(crate) fn node(&self, number: usize) -> String {
        format!("{}-{number:03}", self.name)
    }

    /// Whether its rollout is in the phase of its name, by what its nodes have.
    pub(crate) fn is_in_phase(&self, record: &Record) -> bool {
        (self.is_in_phase)(self, record)
    }

    /// Returns the label of its node of this number before the rollout.
    pub(crate) fn label(&self, number: usize) -> &'static str {
        match self.end {
            End::Moved if number < self.size => ORIGIN,
            _ => self.name,
        }
    }

    /// Whether its node of this number has the change.
    fn has_changed(&self, number: usize, record: &Record) -> bool {
        record.has(&self.node(number), SECOND)
    }

    /// Whether its node of this number has the change, and its agent has reported on it.
    fn has_reported(&self, number: usize, record: &Record) -> bool {
        self.has_changed(number, record) && record.has_reported(&self.node(number))
    }

    /// Whether its node of this number had the change, and has what was before it.
    fn has_returned(&self, number: usize, record: &Record) -> bool {
        let node = self.node(number);
        record.given(&node).len() > 2 && record.has(&node, FIRST)
    }

    /// Returns the spec of its profile.
    pub(crate) fn profile(&self, period: &str) -> Value {
        // What comes first has time, also on a busy machine.
        let (handover, progress_deadline) = match period {
            SECOND => (self.handover, self.progress_deadline),
            _ => (Handover::Manual, IN_WAVES.progress_deadline),
        };
        let period = match self.end {
            End::Moved => SECOND,
            _ => period,
        };
        json!({
            "nodeSelector": {"matchLabels": {"pool": self.name}},
            "syncPeriod": period,
            "handover": handover,
            "rollout": {
                "canary": self.canary,
                "waves": self.waves,
                "maxUnavailable": self.most,
                "minReady": seconds(self.min_ready),
                "progressDeadline": seconds(progress_deadline),
                "onFailure": self.on_failure,
            },
        })
    }

    /// Returns the spec of its profile that pauses its rollout.
    pub(crate) fn paused(&self) -> Value {
        let mut profile = self.profile(SECOND);
        profile["paused"] = true.into();
        profile
    }

    /// Returns the spec of its profile that aborts the rollout of the configuration `hash`.
    pub(crate) fn aborted(&self, hash: &str) -> Value {
        let mut profile = self.profile(SECOND);
        let rollout = &mut profile["rollout"];
        rollout["abort"] = hash.into();
        rollout["maxUnavailable"] = self.most_back.into();
        rollout["minReady"] = seconds(self.min_ready_back).into();
        profile
    }

    /// Returns the configurations that its node of this number is given, in order.
    pub(crate) fn expected(&self, number: usize) -> &'static [&'static str] {
        match self.end {
            End::Settled => &[FIRST, SECOND],
            End::RolledBack { changed } if number <= changed => &[FIRST, SECOND, FIRST],
            End::Halted if number == 1 => &[FIRST, SECOND],
            End::Moved if number == self.size => &[SECOND],
            End::Moved => &[FIRST, SECOND],
            End::RolledBack { .. } | End::Halted => &[FIRST],
        }
    }
}

/// Whether the first node has the change and has not reported.
fn has_silent_canary(pool: &Pool, record: &Record) -> bool {
    pool.has_changed(1, record) && !pool.has_reported(1, record)
}

/// Whether the first node has the change and has reported, the next two have it and have not, and the
/// fourth does not have it.
fn is_in_second_wave(pool: &Pool, record: &Record) -> bool {
    let mut at_it = [2, 3].into_iter();
    let is_at_it = |number| pool.has_changed(number, record) && !pool.has_reported(number, record);
    pool.has_reported(1, record) && at_it.all(is_at_it) && !pool.has_changed(4, record)
}

fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs())
}
