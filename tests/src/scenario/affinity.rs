//! Session affinity: clients that return, and the endpoints they had before.

use std::collections::BTreeMap;

use anyhow::Result;
use dataplane::{Choice, Packet, Verdict};

use super::{Depth, Judgement};

/// The number of connections of a client. If each were placed independently, all of them would
/// reach the same one of two endpoints once in a million. Once in a thousand was too often: a run of
/// all tests asks half a dozen kernels whether such a placement is noticed.
const CONNECTIONS: u32 = 21;

/// The last endpoint of each client, by the packet with which it connects.
#[derive(Debug, Default)]
pub struct Kept(BTreeMap<String, Choice>);

// === impl Kept ===

impl Kept {
    /// Checks that the client of `packet` always reaches one of the endpoints in `expected`: its
    /// previous one while that is among them.
    pub fn judge(
        &mut self,
        depth: &mut impl Depth,
        packet: &Packet,
        expected: &Verdict,
    ) -> Result<Judgement> {
        let Some(verdicts) = depth.connect(packet, CONNECTIONS)? else {
            return depth.judge(packet, expected);
        };
        let client = packet.to_string();
        let allowed = match expected {
            Verdict::Deliver(choices) => choices.as_slice(),
            Verdict::Reject | Verdict::Drop | Verdict::Untouched => &[],
        };
        let had = self.0.get(&client).filter(|had| allowed.contains(had));
        let mut stays_with = had.copied();
        for verdict in verdicts {
            let went = match &verdict {
                Verdict::Deliver(choices) => choices.first().filter(|went| allowed.contains(went)),
                Verdict::Reject | Verdict::Drop | Verdict::Untouched => None,
            };
            match (went, stays_with) {
                (None, _) => return Ok(Judgement::Otherwise(verdict.to_string())),
                (Some(went), Some(before)) if *went != before => {
                    let text = format!("{verdict}, though it had {before}");
                    return Ok(Judgement::Otherwise(text));
                }
                (Some(went), _) => stays_with = Some(*went),
            }
        }
        self.0.extend(stays_with.map(|choice| (client, choice)));
        Ok(Judgement::AsExpected)
    }
}
