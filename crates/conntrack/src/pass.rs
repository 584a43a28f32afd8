//! One look at the flows of a family.

use std::ops::ControlFlow;
use std::time::Duration;

use dataplane::Family;
use netlink::OpenError;
use netlink::conntrack::{DeleteError, Deletion, Filter, Flow, FlowSocket, Listed, ObserveError};
use thiserror::Error;

use crate::{Knowledge, Watchlist};

/// How many flows are deleted in one pass: about half a second of work.
pub(crate) const BUDGET: u64 = 50_000;

/// What one look at the flows of a family came to.
#[derive(Debug)]
pub struct Pass {
    /// Which family.
    pub family: Family,
    /// How long it took.
    pub took: Duration,
    /// How many flows were looked at.
    pub listed: u64,
    /// How many entries of the table could not be read, and were passed over.
    pub unreadable: u64,
    /// How many flows the kernel was made to forget.
    pub deleted: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a pass ended.
#[derive(Debug)]
pub enum Outcome {
    /// No stale flow is left.
    Complete,
    /// There may be more than one pass may delete; the next goes on.
    BudgetSpent,
    /// It is no longer known what is programmed, so that no flow can be judged; the
    /// next goes on once it is.
    Overtaken,
    /// Stale flows may be left; it is tried again.
    Failed(PassError),
}

/// Why stale flows may be left.
#[derive(Debug, Error)]
pub enum PassError {
    /// No socket.
    #[error("unable to reach the connection tracking table")]
    Open(#[source] OpenError),
    /// The table could not be read to its end.
    #[error("unable to look for stale connections")]
    Observe(#[source] ObserveError),
    /// A flow was not deleted, the first of them.
    #[error("unable to delete a stale connection")]
    Delete(#[source] DeleteError),
}

/// The kernel's connection tracking table, as a pass needs it.
pub(crate) trait FlowTable {
    /// Gives every flow that `filter` admits to `take`, until that has had enough.
    fn observe_flows(
        &mut self,
        filter: &Filter,
        take: &mut dyn FnMut(&Flow) -> ControlFlow<()>,
    ) -> Result<Listed, PassError>;
}

/// Deletes flows.
pub(crate) trait Forget {
    /// Makes the kernel forget `flow`.
    fn commit_deletion(&mut self, flow: &Flow) -> Result<Deletion, PassError>;
}

/// The table of this thread's network namespace, through sockets that stay open: to close one delays
/// commits of rules ([`FlowSocket`]). Each is opened when it is needed first.
#[derive(Debug, Default)]
pub(crate) struct KernelTable {
    socket: Option<FlowSocket>,
}

/// Deletions from the same table, during a list: most passes have none.
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

impl Forget for KernelDeletions {
    fn commit_deletion(&mut self, flow: &Flow) -> Result<Deletion, PassError> {
        let socket = opened(&mut self.socket)?;
        socket.commit_deletion(flow).map_err(PassError::Delete)
    }
}

// === impl Pass ===

impl Pass {
    /// Looks at every flow that `watchlist` is about and deletes those that are stale, `budget` of
    /// them at most, as they are listed: memory does not grow with the table. A flow that the
    /// kernel refuses to delete does not keep the rest. `took` is left for the caller.
    ///
    /// A list can take seconds, and `newest` says what has become known since it began, if
    /// anything. A flow that is not stale under that is kept; one that is stale only under that is
    /// left for the next pass.
    pub(crate) fn commit(
        watchlist: &Watchlist,
        newest: impl Fn() -> Option<Knowledge>,
        table: &mut impl FlowTable,
        kernel: &mut impl Forget,
        budget: u64,
    ) -> Pass {
        let mut pass = Pass {
            family: watchlist.family(),
            took: Duration::ZERO,
            listed: 0,
            unreadable: 0,
            deleted: 0,
            outcome: Outcome::Complete,
        };
        for filter in watchlist.filters() {
            let listed = table.observe_flows(&filter, &mut |flow| {
                if !watchlist.is_stale(flow) {
                    return ControlFlow::Continue(());
                }
                match newest() {
                    Some(Knowledge::Unknown) => pass.stop(Outcome::Overtaken),
                    Some(Knowledge::Programmed(newer))
                        if !watchlist.is_stale_under(&newer, flow) =>
                    {
                        ControlFlow::Continue(())
                    }
                    Some(Knowledge::Programmed(_)) | None => pass.delete(flow, kernel, budget),
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

    fn delete(&mut self, flow: &Flow, kernel: &mut impl Forget, budget: u64) -> ControlFlow<()> {
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

    /// Ends the list. That something failed before is not forgotten over it.
    fn stop(&mut self, outcome: Outcome) -> ControlFlow<()> {
        if matches!(self.outcome, Outcome::Complete) {
            self.outcome = outcome;
        }
        ControlFlow::Break(())
    }

    /// Keeps the first error: those that follow are mostly the same.
    fn fail(&mut self, error: PassError) {
        if matches!(self.outcome, Outcome::Complete) {
            self.outcome = Outcome::Failed(error);
        }
    }
}

#[cfg(test)]
mod tests;
