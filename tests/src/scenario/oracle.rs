//! The reference depth: the dataplane's own verdicts.

use anyhow::Result;
use backend::Size;
use dataplane::{Dataplane, Packet, Verdict};

use super::{Depth, Dump, Judgement};

/// Evaluates [`Dataplane::verdict`].
#[derive(Debug, Default)]
pub struct Oracle {
    programmed: Dataplane,
}

impl Depth for Oracle {
    /// Returns the number of Services whose rules differ.
    fn apply(&mut self, desired: &Dataplane) -> Result<Size> {
        let differences = self.programmed.services().differences(desired.services());
        let same_terms = self.programmed.node() == desired.node()
            && self.programmed.config() == desired.config();
        let size = Size {
            elements: differences.len(),
            objects: usize::from(!same_terms),
        };
        self.programmed = desired.clone();
        Ok(size)
    }

    fn restart(&mut self, desired: &Dataplane) -> Result<Size> {
        self.apply(desired)
    }

    fn judge(&mut self, packet: &Packet, expected: &Verdict) -> Result<Judgement> {
        let verdict = self.programmed.verdict(packet);
        Ok(Judgement::of_verdict(&verdict, expected))
    }

    fn connect(&mut self, _: &Packet, _: u32) -> Result<Option<Vec<Verdict>>> {
        Ok(None)
    }

    fn dump(&mut self, dump: Dump) -> Result<Option<String>> {
        Ok((dump == Dump::Dataplane).then(|| self.programmed.to_string()))
    }
}
