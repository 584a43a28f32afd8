//! The results of cases tried with both proxies.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;

use super::case::Case;
use super::configuration::Configuration;
use super::expected::EXPECTED_DIFFERENCES;
use super::population::Service;
use super::sight::Sight;
use super::world::{Effort, World};

/// The results of many cases.
#[derive(Debug, Default)]
pub struct Comparison {
    /// The number of cases of each sort, as clients of kube-proxy observed them.
    pub sorts: BTreeMap<&'static str, usize>,
    /// The cases in which clients observed a difference at every attempt.
    pub differences: Vec<Difference>,
}

/// A case in which the two proxies behaved differently.
#[derive(Debug, Clone)]
pub struct Difference {
    /// The case.
    pub case: Case,
    /// What clients observed with kube-proxy.
    pub kube_proxy: Sight,
    /// What clients observed with Signpost.
    pub signpost: Sight,
}

// === impl Difference ===

impl Difference {
    /// Returns the row of the parity page that explains the difference, if it is intended.
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
        let Difference {
            case,
            kube_proxy,
            signpost,
        } = self;
        write!(
            f,
            "{case}\n    kube-proxy: {kube_proxy}\n    Signpost:   {signpost}"
        )
    }
}

/// Tries the case in both worlds, with increasing effort while they differ. Also returns the sort
/// of the case.
pub(super) fn look(
    worlds: &[World; 2],
    case: &Case,
    efforts: &[&Effort],
) -> Result<(&'static str, Option<Difference>)> {
    let mut last = ("not asked", None);
    for effort in efforts {
        let [kube_proxy, signpost] = worlds;
        let (kube_proxy, signpost) = (
            kube_proxy.observe(case, effort)?,
            signpost.observe(case, effort)?,
        );
        let sort = kube_proxy.sort();
        if kube_proxy == signpost || kube_proxy.is_as_unserved_as(&signpost) {
            return Ok((sort, None));
        }
        let case = case.clone();
        last = (
            sort,
            Some(Difference {
                case,
                kube_proxy,
                signpost,
            }),
        );
    }
    Ok(last)
}
