//! One search for stale flows of a family.

use std::ops::ControlFlow;
use std::time::Duration;

use dataplane::Family;
use netlink::OpenError;
use netlink::conntrack::{DeleteError, Deletion, Filter, Flow, FlowSocket, Listed, ObserveError};
use thiserror::Error;

use crate::{ProgrammedState, StaleFlows};

/// The maximum number of flows that one pass deletes: about half a second of work.
pub(crate) const BUDGET: u64 = 50_000;

/// The result of one search for stale flows of a family.
#[derive(Debug)]
pub struct Pass {
    /// The family.
    pub family: Family,
    /// Its duration.
    pub took: Duration,
    /// The number of flows listed.
    pub listed: u64,
    /// The number of table entries that could not be decoded and were skipped.
    pub unreadable: u64,
    /// The number of flows deleted.
    pub deleted: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a pass ended.
#[derive(Debug)]
pub enum Outcome {
    /// No stale flow is left.
    Complete,
    /// There may be more stale flows than one pass may delete; the next pass continues.
    BudgetSpent,
    /// It is no longer known what is programmed, so no flow can be judged. The next pass continues
    /// once it is known.
    Overtaken,
    /// Stale flows may be left; another pass follows.
    Failed(PassError),
}

/// Why stale flows may be left.
#[derive(Debug, Error)]
pub enum PassError {
    /// No socket could be opened.
    #[error("unable to reach the connection tracking table")]
    Open(#[source] OpenError),
    /// The table was not read to its end.
    #[error("unable to look for stale connections")]
    Observe(#[source] ObserveError),
    /// A flow could not be deleted. This is the first error.
    #[error("unable to delete a stale connection")]
    Delete(#[source] DeleteError),
}

/// The part of the connection tracking table's interface that a pass needs.
pub(crate) trait FlowTable {
    /// Calls `take` with every flow that `filter` selects, until `take` returns `Break`.
    fn observe_flows(
        &mut self,
        filter: &Filter,
        take: &mut dyn FnMut(&Flow) -> ControlFlow<()>,
    ) -> Result<Listed, PassError>;
}

/// Deletes flows.
pub(crate) trait FlowDeleter {
    /// Deletes `flow` from the kernel's table.
    fn commit_deletion(&mut self, flow: &Flow) -> Result<Deletion, PassError>;
}

/// The table of this thread's network namespace, through a socket that stays open, because closing
/// one delays commits of rules ([`FlowSocket`]). It is opened when first needed.
#[derive(Debug, Default)]
pub(crate) struct KernelTable {
    socket: Option<FlowSocket>,
}

/// Deletions from the same table during a dump, through a separate socket: most passes need none.
#[derive(Debug, Default)]
pub(crate) struct KernelDeletions {
    socket: Option<FlowSocket>,
}

fn opened(socket: &mut Option<FlowSocket>) -> Result<&mut FlowSocket, PassError> {
    match socket {
        Some(socket) => Ok(socket),
        None => Ok(socket.insert(FlowSocket::open().map_err(PassError::Open)?)),
    }
}

// === impl KernelTable ===

impl FlowTable for KernelTable {
    fn observe_flows(
        &mut self,
        filter: &Filter,
        take: &mut dyn FnMut(&Flow) -> ControlFlow<()>,
    ) -> Result<Listed, PassError> {
        let socket = opened(&mut self.socket)?;
        socket
            .observe_flows(filter, take)
            .map_err(PassError::Observe)
    }
}

// === impl KernelDeletions ===

impl FlowDeleter for KernelDeletions {
    fn commit_deletion(&mut self, flow: &Flow) -> Result<Deletion, PassError> {
        let socket = opened(&mut self.socket)?;
        socket.commit_deletion(flow).map_err(PassError::Delete)
    }
}

// === impl Pass ===

impl Pass {
    /// Checks every flow that `stale_flows` covers and deletes stale ones while they are listed, at
    /// most `budget`: memory use does not grow with the table. If the kernel refuses to delete a
    /// flow, the pass continues with the others. The caller sets `took`.
    ///
    /// A dump can take seconds. `newest` returns what has become known since it began, if anything.
    /// A flow that is not stale under the newest dataplane is kept; a flow that is stale only under
    /// it is left for the next pass.
    pub(crate) fn commit(
        stale_flows: &StaleFlows,
        newest: impl Fn() -> Option<ProgrammedState>,
        table: &mut impl FlowTable,
        kernel: &mut impl FlowDeleter,
        budget: u64,
    ) -> Pass {
        let mut pass = Pass {
            family: stale_flows.family(),
            took: Duration::ZERO,
            listed: 0,
            unreadable: 0,
            deleted: 0,
            outcome: Outcome::Complete,
        };
        for filter in stale_flows.filters() {
            let listed = table.observe_flows(&filter, &mut |flow| {
                if !stale_flows.is_stale(flow) {
                    return ControlFlow::Continue(());
                }
                match newest() {
                    Some(ProgrammedState::Unknown) => pass.stop(Outcome::Overtaken),
                    Some(ProgrammedState::Programmed(newer))
                        if !stale_flows.is_stale_under(&newer, flow) =>
                    {
                        ControlFlow::Continue(())
                    }
                    Some(ProgrammedState::Programmed(_)) | None => {
                        pass.delete(flow, kernel, budget)
                    }
                }
            });
            match listed {
                Ok(listed) => {
                    pass.listed += listed.flows;
                    pass.unreadable += listed.unreadable;
                }
                Err(error) => pass.fail(error),
            }
            if matches!(pass.outcome, Outcome::BudgetSpent | Outcome::Overtaken) {
                break;
            }
        }
        pass
    }

    fn delete(
        &mut self,
        flow: &Flow,
        kernel: &mut impl FlowDeleter,
        budget: u64,
    ) -> ControlFlow<()> {
        if self.deleted >= budget {
            return self.stop(Outcome::BudgetSpent);
        }
        match kernel.commit_deletion(flow) {
            Ok(Deletion::Deleted) => self.deleted += 1,
            Ok(Deletion::Absent) => {}
            Err(error @ PassError::Delete(DeleteError::Refused { .. })) => self.fail(error),
            Err(error) => {
                self.fail(error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// Ends the dump. An earlier failure stays the outcome.
    fn stop(&mut self, outcome: Outcome) -> ControlFlow<()> {
        if matches!(self.outcome, Outcome::Complete) {
            self.outcome = outcome;
        }
        ControlFlow::Break(())
    }

    /// Keeps the first error: later ones are mostly the same.
    fn fail(&mut self, error: PassError) {
        if matches!(self.outcome, Outcome::Complete) {
            self.outcome = Outcome::Failed(error);
        }
    }
}

#[cfg(test)]
mod tests;
