//! One attempt to program the desired state, or a part of it.

use backend::{Backend, Change, Effect, Recovery, Rendered};
use dataplane::{Chunk, Dataplane, Turn};

use super::Domain;
use super::doubt::{Cause, Doubt};
use super::progress::{Phase, Progress};
use super::stage::Stage;
use crate::Failure;
use crate::error_chain::error_chain;

/// How much of the desired state one attempt programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// At most one chunk.
    Chunk,
    Whole,
}

/// What is left to program once an attempt has succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    Nothing,
    /// Another part. This attempt programmed a part of this kind.
    Another(Turn),
}

// === impl Domain ===

impl<B: Backend> Domain<B> {
    /// Programs `wanted` completely, starting from the last known state.
    pub(super) fn attempt_whole(
        &mut self,
        wanted: &Dataplane,
        progress: &mut Progress<'_>,
    ) -> Result<(), Failure> {
        self.attempt(wanted, Extent::Whole, progress).map(drop)
    }

    /// Programs `wanted`, or a part of it, starting from the last known state. Reads the rules back
    /// first if that state is not known.
    pub(super) fn attempt(
        &mut self,
        wanted: &Dataplane,
        extent: Extent,
        progress: &mut Progress<'_>,
    ) -> Result<Rest, Failure> {
        loop {
            let believed = match self.believed.take() {
                Some(believed) => believed,
                None => {
                    let rules = self.observe(progress)?;
                    self.resolve_doubt(&rules, progress);
                    as_observed(rules)
                }
            };
            let (backend, stride) = (&mut self.backend, &self.stride);
            let journey = Journey::between(&believed, wanted, self.stage);
            let chunk = progress.measure(Phase::Render, || match (extent, journey) {
                (Extent::Chunk, Journey::Services | Journey::Rebuilding) => {
                    let rebuilds =
                        journey == Journey::Rebuilding || self.stage == Stage::Rebuilding;
                    let size = match rebuilds {
                        true => backend.rebuild_size(wanted.config()),
                        false => backend.chunk_size(wanted.config()),
                    };
                    let (family, size) = (backend.family(), stride.size(size));
                    Chunk::next(family, &believed.dataplane, wanted, size, stride.turn())
                }
                (Extent::Whole, _) | (_, Journey::AtOnce) => Chunk::Last,
            });
            let (next, rest) = match &chunk {
                Chunk::Last => (wanted, Rest::Nothing),
                Chunk::Small(next) => (next, Rest::Another(Turn::Small)),
                Chunk::Part(next) => (next, Rest::Another(Turn::Large)),
            };
            if rest != Rest::Nothing && journey == Journey::Rebuilding {
                self.stage = Stage::Rebuilding;
            }
            let rules = progress.measure(Phase::Render, || backend.render(next, &believed));
            let change = progress.measure(Phase::Diff, || backend.diff(&believed.rules, &rules));
            let size = change.size();
            if size.is_empty() {
                self.advance(next, rules, rest);
                return Ok(rest);
            }
            match progress.measure(Phase::Commit, || backend.commit(change)) {
                Ok(receipt) => {
                    progress.count(size, receipt);
                    self.last_receipt = Some(progress.clock.wall_time());
                    self.advance(next, rules, rest);
                    return Ok(rest);
                }
                Err(error) => {
                    match error.recovery {
                        // Both promise that nothing was changed.
                        Recovery::Retry | Recovery::Isolate => self.believed = Some(believed),
                        // The process may have lost its privileges halfway.
                        Recovery::Observe | Recovery::Halt => {
                            // After a partial commit, differences come from that commit, not from
                            // another program.
                            self.doubt = (error.effect == Effect::None).then_some(Doubt {
                                rules: believed.rules,
                                cause: Cause::Refused,
                            });
                        }
                    }
                    if error.recovery == Recovery::Observe && progress.take_second_look() {
                        continue;
                    }
                    return Err(Failure {
                        error: error_chain(&error),
                        recovery: error.recovery,
                    });
                }
            }
        }
    }

    /// Compares the rules just read with what the kernel was left with, if a doubt is recorded.
    fn resolve_doubt(&mut self, rules: &B::Rules, progress: &Progress<'_>) {
        let Some(doubt) = self.doubt.take() else {
            return;
        };
        let heard = self.damages.take_heard();
        let size = self.backend.diff(rules, &doubt.rules).size();
        match doubt.cause {
            Cause::Unread if !size.is_empty() => self.damages.find(size, heard, progress),
            Cause::Refused if !size.is_empty() => self.damages.stumble(size, heard, progress),
            Cause::Unread | Cause::Refused => self.damages.accuse(heard, progress),
        }
    }
}

/// How to get from the last known state to the desired state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Journey {
    /// In parts: only Services differ.
    Services,
    /// In parts: the kernel holds no rules, or rules of another configuration.
    Rebuilding,
    /// In one round.
    AtOnce,
}

// === impl Journey ===

impl Journey {
    /// Rules that were read back are replaced at once, because they do not show which dataplane
    /// they implement. Rules of another mechanism are replaced at once, too: the active rules must
    /// stay complete until their successors are. A kernel that is emptied while it is being filled
    /// is filled at once; in parts, a program that keeps emptying it would never be recognised as
    /// doing so.
    fn between<R: Default + PartialEq>(
        believed: &Rendered<R>,
        wanted: &Dataplane,
        stage: Stage,
    ) -> Journey {
        let programmed = &believed.dataplane;
        if programmed.services().is_empty() {
            let holds_nothing = believed.rules == R::default();
            return match stage {
                Stage::Complete if holds_nothing => Journey::Rebuilding,
                Stage::Complete | Stage::Rebuilding => Journey::AtOnce,
            };
        }
        let (before, after) = (programmed.config(), wanted.config());
        match before == after {
            true => Journey::Services,
            false if before.mechanism == after.mechanism => Journey::Rebuilding,
            false => Journey::AtOnce,
        }
    }
}

/// Wraps rules that were read from the kernel. The dataplane that they implement is not known.
pub(super) fn as_observed<R>(rules: R) -> Rendered<R> {
    Rendered {
        dataplane: Dataplane::default(),
        rules,
    }
}
