//! The contract every kernel mechanism fulfils.
//!
//! A [`Backend`] programs one IP family of one node. Three of its verbs are pure and one of them
//! decides nothing: [`render`](Backend::render) says what the kernel should hold,
//! [`diff`](Backend::diff) how to get there from what it is believed to hold, and
//! [`commit`](Backend::commit) carries that out. Whoever drives a backend replaces what it believes
//! by what it wanted when, and only when, it holds a [`Receipt`].
//!
//! ```text
//! Dataplane --render--> Rules --diff(believed)--> Change --commit--> Receipt | CommitError
//!                                  ^                                   |
//!                                  '------------- believed <-----------'
//! ```

mod compare;
mod disturbance;
mod erased;
mod inspect;
mod listen;
mod trace;

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::{Debug, Display};
use std::time::Duration;

use dataplane::{ChunkSize, Config, Dataplane, Family, Frontend, FrontendKey, ServiceKey};

pub use compare::{Piece, Standing};
pub use disturbance::{Culprit, Disturbance};
pub use erased::{AnyBackend, AnyChange, AnyRules, erase};
pub use inspect::{Found, Inspect, count};
pub use listen::{ChangeListener, ForeignChange, ListenError};
pub use trace::{Event, Way};

/// One way of making the kernel carry out one family of a [`Dataplane`].
pub trait Backend {
    /// What the kernel holds, in this backend's own words. Cheap to clone; prints in one canonical
    /// form; equal exactly when the kernel holds the same.
    type Rules: Clone + PartialEq + Debug + Display + Default + Send + Sync + 'static;
    /// How to get from some rules to others.
    type Change: Change;

    /// The family it programs.
    fn family(&self) -> Family;

    /// How much of a change under `config` one round programs, so that the changes that come meanwhile
    /// wait no longer than a fraction of a second. Pure.
    fn chunk_size(&self, config: &Config) -> ChunkSize;

    /// How long a round that programs a part of a change under `config` may take: longer ones are followed
    /// by smaller parts. Pure.
    fn longest_part(&self, config: &Config) -> Duration;

    /// What the kernel should hold for `desired`. Pure. Costs what differs between `desired` and
    /// `from.dataplane`; where several equally good arrangements exist, keeps that of `from.rules`.
    fn render(&self, desired: &Dataplane, from: &Rendered<Self::Rules>) -> Self::Rules;

    /// How to get from `believed` to `wanted`. Pure. `diff(a, a)` is empty.
    fn diff(&self, believed: &Self::Rules, wanted: &Self::Rules) -> Self::Change;

    /// What the kernel holds now of what is ours. After a commit this equals what was rendered.
    fn observe(&mut self) -> Result<Self::Rules, ObserveError>;

    /// Whether the kernel may hold something else than after the last [`commit`](Backend::commit)
    /// or [`observe`](Backend::observe). Cheap: this is asked often, and mostly answered no.
    fn observe_drift(&mut self) -> Result<Drift, ObserveError>;

    /// Carries out `change`, in order. Where the kernel takes changes in parts, every prefix serves
    /// every frontend that is the same before and after.
    fn commit(&mut self, change: Self::Change) -> Result<Receipt, CommitError>;

    /// Removes everything that is ours from the kernel. Nothing there is no failure.
    fn commit_removal(&mut self) -> Result<Receipt, CommitError>;

    /// Gets ready to be read and written. Called before this backend takes over from one that cannot be
    /// used; one that is always ready has nothing to do.
    fn open(&mut self) -> Result<(), ObserveError> {
        Ok(())
    }

    /// Lets go of what is only held to read and write: nothing is wanted of this backend, and nothing
    /// of ours is there.
    fn release(&mut self) {}

    /// Whether the kernel has this mechanism for the family at all, as far as is known.
    fn is_offered(&self) -> bool {
        true
    }

    /// The Services of `desired` that `change` is about: those to look at when it is refused. Pure.
    fn suspects(&self, change: &Self::Change, desired: &Dataplane) -> BTreeSet<ServiceKey>;

    /// What of one frontend this backend cannot honour, and what it does instead. Of one of another
    /// family, nothing. Pure.
    fn shortcomings(&self, asked: Asked<'_>) -> Vec<Shortcoming>;
}

/// A step from some rules to others, as a value. Prints in one canonical form.
pub trait Change: Debug + Display + Clone + Send + 'static {
    /// How much there is to do.
    fn size(&self) -> Size;
}

/// How much a change writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    /// Elements, real servers or rules of single Services: the part that grows with the cluster.
    pub elements: usize,
    /// Tables, chains, sets and their fixed rules.
    pub objects: usize,
}

impl Size {
    /// Whether there is nothing to do.
    pub fn is_empty(self) -> bool {
        self == Size::default()
    }
}

/// What a [`Dataplane`] was rendered to.
#[derive(Debug, Clone, Default)]
pub struct Rendered<R> {
    /// The dataplane. Empty when `rules` were read from the kernel.
    pub dataplane: Dataplane,
    /// What it was rendered to.
    pub rules: R,
}

/// The kernel's word that a change has taken effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "what is believed of the kernel advances only by a receipt"]
pub struct Receipt {
    /// How many transactions it took.
    pub transactions: usize,
}

/// Whether the kernel is as we left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drift {
    /// Nobody has changed anything since.
    None,
    /// Somebody has changed something, perhaps not of ours.
    Possible,
}

/// A frontend that is asked about.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The configuration it is to be carried out under.
    pub config: &'a Config,
    /// The Service that has it.
    pub service: &'a ServiceKey,
    /// What packets to it are addressed to.
    pub key: FrontendKey,
    /// What is wanted of them.
    pub frontend: &'a Frontend,
}

impl Asked<'_> {
    /// That the Service's `field` is not honoured, and what happens instead.
    pub fn shortcoming(self, field: &'static str, message: &'static str) -> Shortcoming {
        Shortcoming {
            service: self.service.clone(),
            frontend: self.key,
            field,
            message,
        }
    }
}

/// Something a backend cannot do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shortcoming {
    /// The Service it is about.
    pub service: ServiceKey,
    /// The frontend it is about.
    pub frontend: FrontendKey,
    /// The field of the Service, as a path.
    pub field: &'static str,
    /// What happens instead.
    pub message: &'static str,
}

/// Why the kernel could not be read.
#[derive(Debug, thiserror::Error)]
#[error("failed to read the {family} rules back from the kernel")]
pub struct ObserveError {
    /// The family.
    pub family: Family,
    /// What to do next: [`Recovery::Observe`], or [`Recovery::Halt`] where reading will fail as
    /// long as the process and the kernel are what they are.
    pub recovery: Recovery,
    /// Why.
    pub source: Box<dyn Error + Send + Sync>,
}

/// Why a change did not take effect, whole or in part.
#[derive(Debug, thiserror::Error)]
#[error("failed to commit {family} rules")]
pub struct CommitError {
    /// The family.
    pub family: Family,
    /// What to do next.
    pub recovery: Recovery,
    /// What became of the change.
    pub effect: Effect,
    /// Why.
    pub source: Box<dyn Error + Send + Sync>,
}

/// What a commit that failed has left in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: all of the change was refused. What the kernel holds is not our doing.
    None,
    /// Some of the change may have taken effect.
    Possible,
}

/// What to do after a call to the kernel that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Nothing was changed and the cause will pass (busy, out of memory for now): try the same
    /// again, later.
    Retry,
    /// What the kernel holds is not known, or not what was believed: observe, then diff anew.
    Observe,
    /// The kernel will not take this change however often it is tried: find the Service it is about,
    /// leave that one out and commit the rest.
    Isolate,
    /// This process may not, or this kernel cannot: no change of this family will ever be taken.
    Halt,
}

impl Display for Shortcoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shortcoming {
            service,
            frontend,
            field,
            message,
        } = self;
        write!(f, "Service {service}: {field}: {message} ({frontend})")
    }
}
