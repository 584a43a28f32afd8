//! The contract of a kernel mechanism.
//!
//! A [`Backend`] programs one IP family of one node. [`render`](Backend::render) is pure: it turns the
//! desired state into rules. [`diff`](Backend::diff) is pure: it computes the change from the observed
//! rules to the desired ones. [`commit`](Backend::commit) decides nothing: it writes that change. The
//! caller replaces the observed rules by the desired ones only when it holds a [`Receipt`].
//!
//! ```text
//! Dataplane --render--> Rules --diff(observed)--> Change --commit--> Receipt | CommitError
//!                                  ^                                   |
//!                                  '------------- observed <-----------'
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
pub use inspect::{Found, Inspect, count, describe_repair};
pub use listen::{ChangeListener, ForeignChange, ListenError};
pub use trace::{Event, Way};

/// One way of making the kernel carry out one family of a [`Dataplane`].
pub trait Backend {
    /// The rules of the kernel, as values of this mechanism. Cheap to clone; prints in one canonical
    /// form; equal exactly when the kernel holds the same.
    type Rules: Clone + PartialEq + Debug + Display + Default + Send + Sync + 'static;
    /// The step from some rules to others.
    type Change: Change;

    /// The family it programs.
    fn family(&self) -> Family;

    /// How much of a change under `config` one round programs, so that the changes that come meanwhile
    /// wait no longer than a fraction of a second. Pure.
    fn chunk_size(&self, config: &Config) -> ChunkSize;

    /// The same while an empty kernel is filled, or the rules of another configuration are replaced. Larger
    /// where the cost of a round depends less on what it writes than on what the kernel holds, so that the
    /// whole does not take several times as long. The default is [`chunk_size`](Backend::chunk_size). Pure.
    fn rebuild_size(&self, config: &Config) -> ChunkSize {
        self.chunk_size(config)
    }

    /// How long a round that programs a part of a change under `config` may take: longer ones are followed
    /// by smaller parts. Pure.
    fn longest_part(&self, config: &Config) -> Duration;

    /// The rules for `desired`. Pure. Costs what differs between `desired` and `from.dataplane`; where
    /// several equally good arrangements exist, keeps that of `from.rules`.
    fn render(&self, desired: &Dataplane, from: &Rendered<Self::Rules>) -> Self::Rules;

    /// The step from the `observed` rules to the `desired` ones. Pure. `diff(a, a)` is empty.
    fn diff(&self, observed: &Self::Rules, desired: &Self::Rules) -> Self::Change;

    /// Reads Signpost's rules from the kernel. After a commit they equal the rendered ones.
    fn observe(&mut self) -> Result<Self::Rules, ObserveError>;

    /// Whether the kernel may have changed since the last [`commit`](Backend::commit) or
    /// [`observe`](Backend::observe). Cheap, since it is called often, and the answer is mostly no.
    fn observe_drift(&mut self) -> Result<Drift, ObserveError>;

    /// Writes `change`, in order. Where the kernel takes a change in parts, every prefix serves every
    /// frontend that is the same before and after.
    fn commit(&mut self, change: Self::Change) -> Result<Receipt, CommitError>;

    /// Removes all of Signpost's rules from the kernel. Succeeds if there are none.
    fn commit_removal(&mut self) -> Result<Receipt, CommitError>;

    /// Prepares to read and write. Called before this backend replaces one that cannot be used. The
    /// default does nothing.
    fn open(&mut self) -> Result<(), ObserveError> {
        Ok(())
    }

    /// Releases what is only needed to read and write: this backend is not active, and has no rules in
    /// the kernel.
    fn release(&mut self) {}

    /// Whether the kernel supports this mechanism for the family, as far as is known.
    fn is_offered(&self) -> bool {
        true
    }

    /// The settings of the kernel that this mechanism needs and could not set, and the modules that the kernel lacks, as of
    /// the last commit or check, each with what follows from that. The default is none.
    fn missing_settings(&self) -> Vec<String> {
        Vec::new()
    }

    /// The Services of `desired` that `change` is about: the candidates when the kernel refuses it. Pure.
    fn suspects(&self, change: &Self::Change, desired: &Dataplane) -> BTreeSet<ServiceKey>;

    /// The fields of one frontend that this backend does not support, each with what it does instead.
    /// Empty for a frontend of another family. Pure.
    fn shortcomings(&self, asked: Asked<'_>) -> Vec<Shortcoming>;
}

/// A step from some rules to others, as a value. Prints in one canonical form.
pub trait Change: Debug + Display + Clone + Send + 'static {
    /// How much it writes.
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
    /// Whether there is nothing to write.
    pub fn is_empty(self) -> bool {
        self == Size::default()
    }
}

/// Rules, and the [`Dataplane`] that they were rendered from.
#[derive(Debug, Clone, Default)]
pub struct Rendered<R> {
    /// The dataplane. Empty when `rules` were read from the kernel.
    pub dataplane: Dataplane,
    /// The rules.
    pub rules: R,
}

/// The kernel's acknowledgement that a change has taken effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the observed state advances only by a receipt"]
pub struct Receipt {
    /// How many transactions it took.
    pub transactions: usize,
}

/// Whether another program may have changed the kernel since the last commit or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drift {
    /// None has.
    None,
    /// One has, but not necessarily Signpost's rules.
    Possible,
}

/// A frontend in question.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The configuration that applies to it.
    pub config: &'a Config,
    /// The Service that has it.
    pub service: &'a ServiceKey,
    /// What packets to it are addressed to.
    pub key: FrontendKey,
    /// Where those packets should go.
    pub frontend: &'a Frontend,
}

impl Asked<'_> {
    /// States that the Service's `field` is not supported, and in `message` what happens instead.
    pub fn shortcoming(self, field: &'static str, message: &'static str) -> Shortcoming {
        Shortcoming {
            service: self.service.clone(),
            frontend: self.key,
            field,
            message,
        }
    }
}

/// A field of a Service that a backend does not support.
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
    /// What the kernel holds of the change.
    pub effect: Effect,
    /// Why.
    pub source: Box<dyn Error + Send + Sync>,
}

/// What a failed commit has left in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: the kernel refused all of the change. If its rules differ nevertheless, another program changed them.
    None,
    /// Some of the change may have taken effect.
    Possible,
}

/// What to do after a call to the kernel that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Nothing was changed and the cause is temporary (busy, out of memory for now): try the same
    /// again, later.
    Retry,
    /// The kernel's rules are not known, or not as recorded: observe, then diff again.
    Observe,
    /// The kernel will never accept this change: find the Service that causes it, leave that one out and
    /// commit the rest.
    Isolate,
    /// This process may not, or this kernel cannot: it will never accept a change of this family.
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
