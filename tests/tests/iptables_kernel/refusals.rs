//! Changes that the kernel rejects.

use anyhow::{Result, ensure};
use backend::Backend;
use dataplane::ServiceRules;
use reconciler::{FamilyReconciler, Reason, SystemClock};
use testkit::Faulty;

use crate::damages::services;
use crate::ground::Ground;

/// Failure story T25: kubernetes#142068, where one rule that the kernel rejected left a node
/// without any rules.
pub(crate) fn one_refused_service(ground: &Ground) -> Result<()> {
    let dataplane = services(1..=40, 8080);
    for backend in ground.open()? {
        let family = backend.family();
        // Everything but the rejection is done by the real kernel.
        let bad = |rules: &ServiceRules| &*rules.service.name == "service-17";
        let mut domain = FamilyReconciler::new(Faulty::refusing(backend, bad));
        let mut sync = domain.sync(&dataplane, Reason::Startup, &SystemClock);
        while domain.is_unfinished() {
            sync = domain.sync(&dataplane, Reason::Continued, &SystemClock);
        }
        let refused: Vec<String> = sync
            .quarantined
            .iter()
            .map(|quarantined| quarantined.service.to_string())
            .collect();
        ensure!(
            refused == ["shop/service-17"],
            "refused: {refused:?} in {sync}"
        );
        let saved = ground.save(family)?;
        for number in 1..=40 {
            let is_there = saved.contains(&format!("\"shop/service-{number}:http cluster IP\""));
            ensure!(is_there == (number != 17), "service-{number}: {is_there}");
        }
    }
    Ok(())
}
