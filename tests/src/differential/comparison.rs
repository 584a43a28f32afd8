//! What came of cases, asked of both.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;

use super::case::Case;
use super::configuration::Configuration;
use super::expected::EXPECTED_DIFFERENCES;
use super::population::Service;
use super::sight::Sight;
use super::world::{Effort, World};

/// What came of many cases.
#[derive(Debug, Default)]
pub struct Comparison {
    /// How many there were of each sort, as clients of kube-proxy saw them.
    pub sorts: BTreeMap<&'static str, usize>,
    /// Those in which clients saw different things, each time they looked.
    pub differences: Vec<Difference>,
}

/// A case in which clients saw something else of one than of the other.
#[derive(Debug, Clone)]
pub struct Difference {
    /// Who connected to what.
    pub case: Case,
    /// What they saw of kube-proxy.
    pub theirs: Sight,
    /// What they saw of ours.
    pub ours: Sight,
}

// === impl Difference ===

impl Difference {
    /// The row of the parity page that says why, if it is on purpose.
    pub fn expected(
        &self,
        service: &Service,
        configuration: Configuration,
    ) -> Option<&'static str> {
        let mut rows = EXPECTED_DIFFERENCES.iter();
        let row = rows.find(|row| (row.shows)(self, service, configuration));
        row.map(|row| row.row)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { case, theirs, ours } = self;
        write!(
            f,
            "{case}\n    kube-proxy: {theirs}\n    Signpost:   {ours}"
        )
    }
}

/// Looks at both, ever more closely while they differ. Also says of what sort the case is.
pub(super) fn look(
    worlds: &[World; 2],
    case: &Case,
    efforts: &[&Effort],
) -> Result<(&'static str, Option<Difference>)> {
    let mut last = ("not asked", None);
    for effort in efforts {
        let [theirs, ours] = worlds;
        let (theirs, ours) = (theirs.observe(case, effort)?, ours.observe(case, effort)?);
        let sort = theirs.sort();
        if theirs == ours {
            return Ok((sort, None));
        }
        let case = case.clone();
        last = (sort, Some(Difference { case, theirs, ours }));
    }
    Ok(last)
}
