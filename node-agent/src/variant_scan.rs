//! Scans both variants of iptables for rules of other programs while mode iptables is in force.

use std::time::Duration;

use crds::profile::mode::Mode;
use modes::VariantScan;
use runtime::{CancellationToken, run_blocking};
use tokio::sync::watch;
use tokio::time::sleep;
use xtables::VariantDetector;

use crate::engine::AppliedConfig;
use crate::latest::{post, wait_for};

/// How often the variants are scanned for rules of other programs: every `PERIODS` times
/// `syncPeriod`, and at least every [`LONGEST`]. A scan reads every iptables rule if any program
/// has changed one.
const PERIODS: u32 = 2;
const LONGEST: Duration = Duration::from_secs(60);

/// Scans the variants every few `syncPeriod`s while mode iptables is in force, until `stop` is
/// cancelled.
pub(crate) async fn watch(
    mut applied_config: watch::Receiver<Option<AppliedConfig>>,
    variants: watch::Sender<VariantScan>,
    stop: CancellationToken,
) {
    let mut variant_detector = VariantDetector::default();
    loop {
        let (mode, pause) = {
            let applied_config = applied_config.borrow_and_update();
            let effective = applied_config
                .as_ref()
                .map(|applied_config| &applied_config.effective);
            let period = effective.map(|effective| effective.sync_period.duration());
            let pause = period.map_or(LONGEST, |period| (PERIODS * period).min(LONGEST));
            (effective.map(|effective| effective.mode), pause)
        };
        let scan = match mode {
            Some(Mode::Iptables) => {
                let observing = run_blocking(move || {
                    let seen = VariantScan::observe(&mut variant_detector);
                    (variant_detector, seen)
                });
                let seen;
                (variant_detector, seen) = observing.await;
                seen
            }
            _ => VariantScan::None,
        };
        post(&variants, scan);
        let mode_of = |applied_config: &AppliedConfig| applied_config.effective.mode;
        let another = wait_for(&mut applied_config, |applied_config| {
            applied_config.as_ref().map(mode_of) != mode
        });
        // All arms are cancel safe: none of them consumes anything.
        tokio::select! {
            () = stop.cancelled() => return,
            () = another => {}
            () = sleep(pause) => {}
        }
    }
}
