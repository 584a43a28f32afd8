//! Keeps the kernel at what is wanted: one loop for every backend.
//!
//! A [`Dataplane`](dataplane::Dataplane) arrives whenever what is wanted changes. [`Schedule`] says
//! when that is acted upon, a [`Domain`] for each address family does it, and a [`Report`] says what
//! came of it. Nothing here fails: what goes wrong is a state that is reported, and the loop goes on.
//!
//! ```text
//! Command --take--> Schedule --due--> Reconciler --round--> Domain (IPv4), Domain (IPv6)
//!    ^                                                         | render, diff, commit
//!    '--- sources                          Report <--publish---'
//! ```
//!
//! What a domain believes of the kernel advances only by a receipt. A commit that fails says itself
//! what is to follow: the same again later, a look at the kernel, a search for the Services it is
//! about, or nothing before the periodic check. For the first and the third of these a domain relies
//! on the kernel holding what it held before; a backend that cannot promise it asks for the second.
//!
//! Everything is synchronous and takes its time from a [`Clock`].

mod clock;
mod damage;
mod domain;
mod error_chain;
mod families;
mod latency;
mod round;
mod run;
mod schedule;
mod status;
mod urgency;

pub use clock::Clock;
pub use damage::{Contest, Damage};
pub use domain::Domain;
pub use families::Reconciler;
pub use latency::{Latency, Stamps};
pub use round::{Failure, Outcome, Phases, Quarantined, Reason, Round, Rounds};
pub use run::{
    Activity, Command, Desired, Inbox, Mailbox, News, Orders, Permission, Received, Reply, Report,
    Resync, Settings, UnderWay, mailbox, run,
};
pub use schedule::{Due, Periods, Schedule, Sequel, Urgency};
pub use status::{Failing, FamilyStatus, Pace, SLOW_ROUND, Standing};

#[cfg(test)]
mod fake_clock;
