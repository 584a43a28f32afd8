//! The agent is killed after each single write. It is stopped after each; then clients are asked, and it is
//! killed or goes on.

pub(crate) mod start;
pub(crate) mod switch;

mod damage;

use std::ops::RangeInclusive;

use tests::extent::is_exhaustive;

/// The Services besides `shop/web`: a switch or a start is one part, and has few writes.
const FEW: u8 = 3;

/// The writes after which the agent is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Each one.
    Every,
    /// The middle one, and what connections of IPVS need is not waited for.
    Middle,
}

// === impl After ===

impl After {
    /// Each one only if that was asked for.
    fn asked() -> After {
        match is_exhaustive() {
            true => After::Every,
            false => After::Middle,
        }
    }

    fn of(self, writes: RangeInclusive<usize>) -> Vec<usize> {
        match self {
            After::Every => writes.collect(),
            After::Middle => vec![writes.end().div_ceil(2)],
        }
    }
}
