//! The contract of a kernel mechanism.
//!
//! A [`Backend`] programs one IP family of one node. [`render`](Backend::render) is pure: it turns
//! the desired state into rules. [`diff`](Backend::diff) is pure: it computes the change from the
//! observed rules to the desired ones. [`commit`](Backend::commit) decides nothing: it writes that
//! change. The caller replaces the observed rules by the desired ones only when it holds a
//! [`Receipt`].
//!
//! ```text
//! Dataplane --render--> Rules --diff(observed)--> Change --commit--> Receipt | CommitError
//!                                  ^                                   |
//!                                  '------------- observed <-----------'
//! ```

mod boxed;
mod compare;
mod connections;
mod erased;
mod external_change;
mod forwarding_marks;
mod inspect;
mod listen;
mod trace;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::{Debug, Display};
use std::num::NonZeroU64;
use std::time::Duration;

use dataplane::{Config, Dataplane, Family, Frontend, FrontendKey, PartSize, ServiceKey};

pub use compare::{Piece, PieceState};
pub use connections::{Connections, EndpointConnections};
pub use erased::{AnyBackend, AnyChange, AnyRules, erase};
pub use external_change::{Actor, ExternalChange};
pub use forwarding_marks::{FORWARDING_MARKS, ForwardingMarks};
pub use inspect::{Found, Inspect, MarkOwner, count, describe_repair, first_of};
pub use listen::{ChangeListener, ForeignChange, ListenError};
pub use trace::{Event, PacketPath};

/// A mode that programs one family of a [`Dataplane`] into the kernel.
pub trait Backend {
    /// The kernel's rules, as values of this mode. Cheap to clone. Printed in one canonical
    /// form. Equal exactly when the kernel holds the same rules.
    type Rules: Clone + PartialEq + Debug + Display + Default + Send + Sync + 'static;
    /// The change from some rules to others.
    type Change: Change;

    /// The family that this backend programs.
    fn family(&self) -> Family;

    /// How much of a change under `config` one sync programs, so that changes which arrive
    /// meanwhile wait no longer than a fraction of a second. Pure.
    fn part_size(&self, config: &Config) -> PartSize;

    /// The same as [`part_size`](Backend::part_size), for filling an empty kernel or replacing
    /// the rules of another configuration. Larger for a mode whose cost for each sync depends
    /// more on what the kernel holds than on what is written: otherwise the whole would take
    /// several times as long. The default is [`part_size`](Backend::part_size). Pure.
    fn rebuild_size(&self, config: &Config) -> PartSize {
        self.part_size(config)
    }

    /// How long a sync that programs a part of a change under `config` may take. After a longer
    /// one, the following parts are smaller. Pure.
    fn longest_part(&self, config: &Config) -> Duration;

    /// Renders the rules for `desired`. Pure. The cost is proportional to the difference between
    /// `desired` and `from.dataplane`. Among equally good arrangements, keeps that of `from.rules`.
    fn render(&self, desired: &Dataplane, from: &Rendered<Self::Rules>) -> Self::Rules;

    /// Computes the change from the `observed` rules to the `desired` ones. Pure. `diff(a, a)` is
    /// empty.
    fn diff(&self, observed: &Self::Rules, desired: &Self::Rules) -> Self::Change;

    /// Reads Signpost's rules from the kernel. After a commit they equal the rendered ones.
    fn observe(&mut self) -> Result<Self::Rules, ObserveError>;

    /// Reports whether the kernel may have changed since the last [`commit`](Backend::commit) or
    /// [`observe`](Backend::observe). Cheap, since it is called often and the answer is mostly no.
    fn observe_drift(&mut self) -> Result<Drift, ObserveError>;

    /// How a change by another program is noticed, while the kernel holds rules of this mode.
    fn drift_detection(&self) -> DriftDetection {
        DriftDetection::ByNotification
    }

    /// Writes `change`, in order. If the kernel takes a change in parts, every prefix serves every
    /// frontend that is the same before and after.
    fn commit(&mut self, change: Self::Change) -> Result<Receipt, CommitError>;

    /// Removes all of Signpost's rules from the kernel. Succeeds if there are none.
    fn commit_removal(&mut self) -> Result<Receipt, CommitError>;

    /// The same for a node whose Services another proxy serves from now on: what established
    /// connections need stays, if no other proxy can take them over. Once they have ended, the next
    /// call removes that, too. By default, no connection needs anything.
    fn commit_withdrawal(&mut self) -> Result<Leftover, CommitError> {
        let _receipt = self.commit_removal()?;
        Ok(Leftover::Nothing)
    }

    /// Releases resources that are needed only to read and write. Called on a backend that is not
    /// active and has no rules in the kernel.
    fn release(&mut self) {}

    /// Whether the kernel supports this mode for the family, as far as is known.
    fn is_offered(&self) -> bool {
        true
    }

    /// How this node limits the mode, as of the last commit or check: kernel settings that it
    /// needs and could not set, missing kernel modules with the Services of `programmed` that need
    /// them, and what the configuration affects beside Signpost's rules, each with its consequence.
    /// The default is none. If a module is missing, the cost is proportional to the number of
    /// frontends.
    fn limitations(&self, _programmed: &Dataplane) -> Vec<String> {
        Vec::new()
    }

    /// The connections that the kernel counts for `rules`, as of the last read; `None` if it counts
    /// none for this mode.
    fn connections(&self, _rules: &Self::Rules) -> Option<Connections> {
        None
    }

    /// The Services of `desired` that `change` affects: the candidates when the kernel refuses it.
    /// Pure.
    fn suspects(&self, change: &Self::Change, desired: &Dataplane) -> BTreeSet<ServiceKey>;

    /// The fields of one frontend that this backend does not support, each with the behaviour
    /// instead. Empty for a frontend of another family. Pure.
    fn unsupported_fields(&self, asked: FrontendContext<'_>) -> Vec<UnsupportedField>;

    /// The Services that `rules`, as rendered, do not serve in full because the mode has no
    /// room left for them, each with one frontend. Empty for rules that were read from the kernel.
    /// Cheap if there are none. Pure. The default is none.
    fn without_room(&self, _rules: &Self::Rules) -> Vec<UnsupportedField> {
        Vec::new()
    }
}

/// What a withdrawal has left in the kernel. The greater one of two is what both have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leftover {
    /// Nothing.
    Nothing,
    /// What established connections need, with their number. It serves no Service.
    Connections(NonZeroU64),
}

/// A change from some rules to others, as a value. Printed in one canonical form.
pub trait Change: Debug + Display + Clone + Send + 'static {
    /// How much it writes.
    fn size(&self) -> Size;
}

/// How much a change writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    /// Elements, real servers or rules of individual Services: the part that grows with the
    /// cluster.
    pub elements: usize,
    /// Tables, chains, sets and their fixed rules.
    pub objects: usize,
}

impl Size {
    /// Whether the change writes nothing.
    pub fn is_empty(self) -> bool {
        self == Size::default()
    }
}

/// Rules and the [`Dataplane`] from which they were rendered.
#[derive(Debug, Clone, Default)]
pub struct Rendered<R> {
    /// The dataplane. Empty when `rules` were read from the kernel.
    pub dataplane: Dataplane,
    /// The rules.
    pub rules: R,
}

/// Proof that a change has taken effect: the kernel has acknowledged it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the observed state advances only by a receipt"]
pub struct Receipt {
    /// The number of kernel transactions of the change.
    pub transactions: usize,
}

/// Whether another program may have changed the kernel's rules since the last commit or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drift {
    /// No program has changed any.
    None,
    /// No program has changed what was compared, which was not everything. Once the rest is due, the
    /// answer is [`Drift::Possible`].
    NoneInPart,
    /// Some program has, not necessarily Signpost's rules.
    Possible,
}

/// How a change by another program is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriftDetection {
    /// The kernel sends a notification, or the periodic check is often enough.
    ByNotification,
    /// Only by a check of the kernel: the caller checks as often as it can afford to.
    ByCheck,
}

/// A frontend to check for unsupported fields.
#[derive(Debug, Clone, Copy)]
pub struct FrontendContext<'a> {
    /// The configuration that applies to the frontend.
    pub config: &'a Config,
    /// The Service of the frontend.
    pub service: &'a ServiceKey,
    /// The destination that packets to the frontend are addressed to.
    pub key: FrontendKey,
    /// Where the frontend sends those packets.
    pub frontend: &'a Frontend,
}

impl FrontendContext<'_> {
    /// Reports that the Service's `field` is not supported, with the behaviour instead as
    /// `message`.
    pub fn unsupported_field(self, field: &'static str, message: &'static str) -> UnsupportedField {
        UnsupportedField {
            service: self.service.clone(),
            frontend: self.key,
            field,
            message: message.into(),
        }
    }
}

/// A field of a Service that a backend does not support.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnsupportedField {
    /// The Service concerned.
    pub service: ServiceKey,
    /// The frontend concerned.
    pub frontend: FrontendKey,
    /// The path of the field in the Service.
    pub field: &'static str,
    /// The behaviour instead.
    pub message: Cow<'static, str>,
}

/// Why the kernel could not be read.
#[derive(Debug, thiserror::Error)]
#[error("failed to read the {family} rules back from the kernel")]
pub struct ObserveError {
    /// The family.
    pub family: Family,
    /// What to do next: [`Recovery::Observe`], or [`Recovery::Halt`] if reading cannot succeed for
    /// this process on this kernel.
    pub recovery: Recovery,
    /// The cause.
    pub source: Box<dyn Error + Send + Sync>,
}

/// Why a change did not take effect, in whole or in part.
#[derive(Debug, thiserror::Error)]
#[error("failed to commit {family} rules")]
pub struct CommitError {
    /// The family.
    pub family: Family,
    /// What to do next.
    pub recovery: Recovery,
    /// Whether any of the change may be in the kernel.
    pub effect: Effect,
    /// The cause.
    pub source: Box<dyn Error + Send + Sync>,
}

/// The backend of this family has no connection to the kernel: it only renders and diffs.
#[derive(Debug, thiserror::Error)]
#[error("this backend has no access to the kernel")]
pub struct Detached(pub Family);

/// What a failed commit has left in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: the kernel refused the whole change. If its rules differ from the observed ones
    /// nevertheless, another program changed them.
    None,
    /// Some of the change may have taken effect.
    Possible,
}

/// What to do after a failed call to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Retry the same change later: nothing was changed, and the cause is temporary (busy, out of
    /// memory).
    Retry,
    /// Observe, then diff again: the kernel's rules are unknown or differ from the recorded ones.
    Observe,
    /// Find the Service that causes the failure and commit the rest without it: the kernel will
    /// never accept this change. Observe first if the effect is [`Effect::Possible`].
    Isolate,
    /// Stop programming this family: the process lacks the permission, or the kernel the support.
    Halt,
}

// === impl ObserveError ===

impl ObserveError {
    /// The kernel could not be read because of `source`.
    pub fn new(
        family: Family,
        recovery: Recovery,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> ObserveError {
        ObserveError {
            family,
            recovery,
            source: source.into(),
        }
    }
}

impl From<Detached> for ObserveError {
    fn from(detached: Detached) -> ObserveError {
        ObserveError::new(detached.0, Recovery::Halt, detached)
    }
}

// === impl CommitError ===

impl CommitError {
    /// A change did not take effect because of `source`.
    pub fn new(
        family: Family,
        (recovery, effect): (Recovery, Effect),
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> CommitError {
        CommitError {
            family,
            recovery,
            effect,
            source: source.into(),
        }
    }
}

impl From<Detached> for CommitError {
    fn from(detached: Detached) -> CommitError {
        CommitError::new(detached.0, (Recovery::Halt, Effect::None), detached)
    }
}

// === impl UnsupportedField ===

impl Display for UnsupportedField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let UnsupportedField {
            service,
            frontend,
            field,
            message,
        } = self;
        write!(f, "Service {service}: {field}: {message} ({frontend})")
    }
}
