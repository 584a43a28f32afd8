//! Clients who come back, and where they went before.

use std::collections::BTreeMap;

use anyhow::Result;
use dataplane::{Choice, Packet, Verdict};

use super::{Depth, Judgement};

/// How many connections a client makes: if each were placed anew, all of them would go to the same
/// one of two endpoints once in a thousand.
const CONNECTIONS: u32 = 11;

/// Where each client went when it was last asked about, by the packet it connects with.
#[derive(Debug, Default)]
pub struct Kept(BTreeMap<String, Choice>);

// === impl Kept ===

impl Kept {
    /// Whether the client of `packet` stays with one of the endpoints in `expected`: with the one
    /// it had, while that is among them.
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
