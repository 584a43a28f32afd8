//! Keeps the kernel at the desired state: one loop for every backend.
//!
//! A [`Dataplane`](dataplane::Dataplane) arrives whenever the desired state changes. [`Schedule`]
//! decides when to act on it, a [`FamilyReconciler`] for each address family programs it, and a
//! [`Report`] describes the result. A family has a domain for each mode, of which one serves. No function here returns an error to the loop: a failure is a reported
//! state, and the loop continues.
//!
//! ```text
//! Command --take--> Schedule --due--> Reconciler --sync--> family --> domain of the mode
//!    ^                                                         | render, diff, commit
//!    '--- sources                          Report <--publish---'
//! ```
//!
//! Only a receipt advances what a domain records as held by the kernel. The error of a failed
//! commit names the recovery: retry later, read the rules back, search for the Services that the
//! kernel refuses, or wait for the periodic check. Retry and search rely on the kernel holding what
//! it held before; a backend that cannot promise this asks for the rules to be read back.
//!
//! Everything is synchronous and takes the time from a [`Clock`].

mod clock;
mod domain;
mod error_chain;
mod families;
mod family;
mod latency;
mod progress;
mod repaired_drift;
mod run;
mod schedule;
mod status;
mod support;
mod sync;
mod urgency;

pub use clock::{Clock, SystemClock};
pub use families::Reconciler;
pub use family::FamilyReconciler;
pub use latency::{Latency, Stamps};
pub use repaired_drift::{DriftByProgram, RepairBackoff, RepairedDrift};
pub use run::{
    Activity, Command, CommandReceiver, CommandSender, CommandSource, Desired, LoopEvent,
    Permission, Received, Reply, Report, Resync, RunningSync, Settings, command_receiver, run,
};
pub use schedule::{Due, FollowUp, Periods, Schedule, Urgency};
pub use status::{Failing, FamilyCondition, FamilyStatus, Pace, SLOW_SYNC};
pub use support::{Support, done_without, support};
pub use sync::{Failure, FamilySync, Outcome, Phases, Quarantined, Reason, RecentSyncs};

#[cfg(test)]
mod fake_clock;
