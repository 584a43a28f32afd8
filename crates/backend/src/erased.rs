//! Type-erased backends, so that one list holds backends of different modes.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt::{self, Debug, Display};
use std::sync::Arc;
use std::time::Duration;

use dataplane::{
    Config, Dataplane, Family, FrontendKey, Node, Packet, PartSize, ServiceKey, Verdict,
};

use crate::{
    Backend, Change, CommitError, Connections, Drift, DriftDetection, Effect, Found,
    FrontendContext, Inspect, Leftover, MarkOwner, ObserveError, PacketPath, Piece, Receipt,
    Recovery, Rendered, Size, UnsupportedField,
};

/// A backend of any mode.
pub type AnyBackend = Box<dyn Inspect<Rules = AnyRules, Change = AnyChange> + Send>;

/// Erases the types of `backend`'s rules and changes.
pub fn erase<B: Inspect + Send + 'static>(backend: B) -> AnyBackend {
    Box::new(Erased(backend))
}

/// Rules of any backend. Empty rules are equal to each other, whatever their type was.
#[derive(Clone, Default)]
pub struct AnyRules(Option<Arc<dyn ErasedRules>>);

/// A change of any backend.
pub struct AnyChange(Box<dyn ErasedChange>);

/// A backend behind the types above. It treats rules of another backend as empty and refuses a
/// change of another backend: a caller with a list of backends keeps the rules and changes of each
/// apart.
#[derive(Debug)]
struct Erased<B>(B);

/// The error of a commit that was given the change of another backend.
#[derive(Debug, thiserror::Error)]
#[error("the change belongs to another backend")]
struct WrongBackendError;

trait ErasedRules: Debug + Display + Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn equals(&self, other: &dyn ErasedRules) -> bool;
}

trait ErasedChange: Debug + Display + Send {
    fn size(&self) -> Size;
    fn as_any(&self) -> &dyn Any;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
    fn copy(&self) -> Box<dyn ErasedChange>;
}

impl<R: PartialEq + Debug + Display + Send + Sync + 'static> ErasedRules for R {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn equals(&self, other: &dyn ErasedRules) -> bool {
        other.as_any().downcast_ref() == Some(self)
    }
}

impl<C: Change> ErasedChange for C {
    fn size(&self) -> Size {
        Change::size(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn copy(&self) -> Box<dyn ErasedChange> {
        Box::new(self.clone())
    }
}

// === impl AnyRules ===

impl AnyRules {
    /// Erases the type of `rules`.
    pub fn of<R>(rules: R) -> AnyRules
    where
        R: PartialEq + Default + Debug + Display + Send + Sync + 'static,
    {
        let is_nothing = rules == R::default();
        AnyRules((!is_nothing).then(|| Arc::new(rules) as Arc<dyn ErasedRules>))
    }

    /// Whether there are no rules.
    pub fn is_nothing(&self) -> bool {
        self.0.is_none()
    }

    /// The rules with their type; empty if they are of another type.
    pub fn typed<R: Clone + Default + 'static>(&self) -> R {
        self.borrow().cloned().unwrap_or_default()
    }

    fn borrow<R: 'static>(&self) -> Option<&R> {
        (**self.0.as_ref()?).as_any().downcast_ref()
    }
}

impl PartialEq for AnyRules {
    fn eq(&self, other: &AnyRules) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => one.equals(&**other),
            _ => false,
        }
    }
}

impl Debug for AnyRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Display for AnyRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .as_ref()
            .map_or(Ok(()), |rules| Display::fmt(rules, f))
    }
}

// === impl AnyChange ===

impl AnyChange {
    /// Erases the type of `change`.
    pub fn of(change: impl Change) -> AnyChange {
        AnyChange(Box::new(change))
    }

    /// The change with its type; `None` if it is of another type.
    pub fn typed<C: Change>(self) -> Option<C> {
        let change = self.0.into_any().downcast();
        change.ok().map(|change| *change)
    }
}

impl Change for AnyChange {
    fn size(&self) -> Size {
        (*self.0).size()
    }
}

impl Clone for AnyChange {
    fn clone(&self) -> AnyChange {
        AnyChange((*self.0).copy())
    }
}

impl Debug for AnyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(&*self.0, f)
    }
}

impl Display for AnyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&*self.0, f)
    }
}

// === impl Erased ===

impl<B: Inspect> Backend for Erased<B> {
    type Rules = AnyRules;
    type Change = AnyChange;

    fn family(&self) -> Family {
        self.0.family()
    }

    fn part_size(&self, config: &Config) -> PartSize {
        self.0.part_size(config)
    }

    fn rebuild_size(&self, config: &Config) -> PartSize {
        self.0.rebuild_size(config)
    }

    fn longest_part(&self, config: &Config) -> Duration {
        self.0.longest_part(config)
    }

    fn render(&self, desired: &Dataplane, from: &Rendered<AnyRules>) -> AnyRules {
        let from = Rendered {
            dataplane: from.dataplane.clone(),
            rules: from.rules.typed(),
        };
        AnyRules::of(self.0.render(desired, &from))
    }

    fn diff(&self, observed: &AnyRules, desired: &AnyRules) -> AnyChange {
        AnyChange::of(self.0.diff(&observed.typed(), &desired.typed()))
    }

    fn observe(&mut self) -> Result<AnyRules, ObserveError> {
        self.0.observe().map(AnyRules::of)
    }

    fn observe_drift(&mut self) -> Result<Drift, ObserveError> {
        self.0.observe_drift()
    }

    fn drift_detection(&self) -> DriftDetection {
        self.0.drift_detection()
    }

    fn commit(&mut self, change: AnyChange) -> Result<Receipt, CommitError> {
        match change.typed() {
            Some(change) => self.0.commit(change),
            None => {
                let next = (Recovery::Observe, Effect::None);
                Err(CommitError::new(self.family(), next, WrongBackendError))
            }
        }
    }

    fn commit_removal(&mut self) -> Result<Receipt, CommitError> {
        self.0.commit_removal()
    }

    fn commit_withdrawal(&mut self) -> Result<Leftover, CommitError> {
        self.0.commit_withdrawal()
    }

    fn release(&mut self) {
        self.0.release();
    }

    fn is_offered(&self) -> bool {
        self.0.is_offered()
    }

    fn limitations(&self, programmed: &Dataplane) -> Vec<String> {
        self.0.limitations(programmed)
    }

    fn connections(&self, rules: &AnyRules) -> Option<Connections> {
        self.0.connections(rules.borrow()?)
    }

    fn suspects(&self, change: &AnyChange, desired: &Dataplane) -> BTreeSet<ServiceKey> {
        let change = (*change.0).as_any().downcast_ref();
        change.map_or_else(BTreeSet::new, |change| self.0.suspects(change, desired))
    }

    fn unsupported_fields(&self, asked: FrontendContext<'_>) -> Vec<UnsupportedField> {
        self.0.unsupported_fields(asked)
    }

    fn without_room(&self, rules: &AnyRules) -> Vec<UnsupportedField> {
        let rules = rules.borrow();
        rules.map_or_else(Vec::new, |rules| self.0.without_room(rules))
    }
}

impl<B: Inspect> Inspect for Erased<B> {
    fn exist(&self, rules: &AnyRules) -> bool {
        self.0.exist(&rules.typed())
    }

    fn elements(&self, rules: &AnyRules) -> usize {
        self.0.elements(&rules.typed())
    }

    fn simulate(&self, rules: &AnyRules, node: &Node, packet: &Packet) -> Verdict {
        self.0.simulate(&rules.typed(), node, packet)
    }

    fn paths(&self, rules: &AnyRules, node: &Node, packet: &Packet) -> Vec<PacketPath> {
        self.0.paths(&rules.typed(), node, packet)
    }

    fn render_part(&self, part: &Dataplane, desired: &Dataplane, observed: &AnyRules) -> AnyRules {
        AnyRules::of(self.0.render_part(part, desired, &observed.typed()))
    }

    fn compare_frontend(
        &self,
        desired: &AnyRules,
        found: &AnyRules,
        key: &FrontendKey,
    ) -> Vec<Piece> {
        self.0
            .compare_frontend(&desired.typed(), &found.typed(), key)
    }

    fn compare_chains(
        &self,
        desired: &AnyRules,
        found: &AnyRules,
        key: &FrontendKey,
    ) -> Vec<Piece> {
        self.0.compare_chains(&desired.typed(), &found.typed(), key)
    }

    fn compare_memberships(
        &self,
        desired: &AnyRules,
        found: &AnyRules,
        part: &Dataplane,
    ) -> Vec<Piece> {
        self.0
            .compare_memberships(&desired.typed(), &found.typed(), part)
    }

    fn compare_shared(&self, programmed: &AnyRules, found: &AnyRules) -> Vec<Piece> {
        self.0.compare_shared(&programmed.typed(), &found.typed())
    }

    fn mark_owner(&self, programmed: &AnyRules, found: &AnyRules, mark: u32) -> MarkOwner {
        self.0.mark_owner(&programmed.typed(), &found.typed(), mark)
    }

    fn marks(&self, rules: &AnyRules, key: &FrontendKey) -> BTreeSet<u32> {
        self.0.marks(&rules.typed(), key)
    }

    fn compare_mark(&self, desired: &AnyRules, found: &AnyRules, mark: u32) -> Vec<Piece> {
        self.0.compare_mark(&desired.typed(), &found.typed(), mark)
    }

    fn heading(&self) -> String {
        self.0.heading()
    }

    fn describe(&self, found: Found<'_, AnyRules>) -> String {
        match found {
            Found::Unreadable(error) => self.0.describe(Found::Unreadable(error)),
            Found::Missing => self.0.describe(Found::Missing),
            Found::Rules { programmed, found } => self.0.describe(Found::Rules {
                programmed: &programmed.typed(),
                found: &found.typed(),
            }),
        }
    }
}
