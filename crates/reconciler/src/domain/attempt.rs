//! One attempt to take the kernel to what is wanted, or a part of the way.

use backend::{Backend, Change, Effect, Recovery, Rendered};
use dataplane::{Chunk, Dataplane, Turn};

use super::Domain;
use super::doubt::{Cause, Doubt};
use super::progress::{Phase, Progress};
use super::stride::Stride;
use crate::Failure;
use crate::error_chain::error_chain;

/// How much of what is wanted one attempt programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// As much as one round may.
    Chunk,
    Whole,
}

/// What is left to program once an attempt has succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    Nothing,
    /// Another part. What was programmed was this.
    Another(Turn),
}

// === impl Domain ===

impl<B: Backend> Domain<B> {
    /// Takes the kernel from what is believed to `wanted`, all the way.
    pub(super) fn attempt_whole(
        &mut self,
        wanted: &Dataplane,
        progress: &mut Progress<'_>,
    ) -> Result<(), Failure> {
        self.attempt(wanted, Extent::Whole, progress).map(drop)
    }

    /// Takes the kernel from what is believed to `wanted`, or a part of the way, looking first where
    /// nothing is believed.
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
            let chunk = progress.measure(Phase::Render, || match extent {
                Extent::Chunk => next_chunk(backend, &believed, wanted, stride),
                Extent::Whole => Chunk::Last,
            });
            let (next, rest) = match &chunk {
                Chunk::Last => (wanted, Rest::Nothing),
                Chunk::Small(next) => (next, Rest::Another(Turn::Small)),
                Chunk::Part(next) => (next, Rest::Another(Turn::Large)),
            };
            let rules = progress.measure(Phase::Render, || backend.render(next, &believed));
            let change = progress.measure(Phase::Diff, || backend.diff(&believed.rules, &rules));
            let size = change.size();
            if size.is_empty() {
                self.advance(next, rules);
                return Ok(rest);
            }
            match progress.measure(Phase::Commit, || backend.commit(change)) {
                Ok(receipt) => {
                    progress.count(size, receipt);
                    self.last_receipt = Some(progress.clock.wall_time());
                    self.advance(next, rules);
                    return Ok(rest);
                }
                Err(error) => {
                    match error.recovery {
                        // The contract of both: nothing was changed.
                        Recovery::Retry | Recovery::Isolate => self.believed = Some(believed),
                        // The process may have lost its rights halfway.
                        Recovery::Observe | Recovery::Halt => {
                            // What is left of a change that was cut short is nobody else's doing.
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

    /// Compares what was read with what the kernel was left with, if that was in doubt.
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

/// What to program next of the way to `wanted`. It has parts where Services alone differ from what the
/// kernel is known to carry out. Rules that were read, and those of another configuration, are replaced
/// in one round; so is nothing at all, as long as nobody is served anyway.
fn next_chunk<B: Backend>(
    backend: &B,
    believed: &Rendered<B::Rules>,
    wanted: &Dataplane,
    stride: &Stride,
) -> Chunk {
    let programmed = &believed.dataplane;
    let is_comparable = !programmed.services().is_empty() && programmed.config() == wanted.config();
    match is_comparable {
        true => {
            let size = stride.size(backend.chunk_size(wanted.config()));
            Chunk::next(backend.family(), programmed, wanted, size, stride.turn())
        }
        false => Chunk::Last,
    }
}

/// What the kernel was seen to hold; which dataplane that came of is not known.
pub(super) fn as_observed<R>(rules: R) -> Rendered<R> {
    Rendered {
        dataplane: Dataplane::default(),
        rules,
    }
}
