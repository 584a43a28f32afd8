//! Tests of targets that have a main of their own.

use anyhow::Result;
use libtest_mimic::{Failed, Trial};

/// A test that fails with the whole chain of its error.
pub fn trial(name: &str, test: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    Trial::test(name, move || {
        test().map_err(|error| Failed::from(format!("{error:#}")))
    })
}
