//! Tests of targets with their own `main`.

use anyhow::Result;
use libtest_mimic::{Failed, Trial};

/// Creates a test that reports the whole error chain if it fails.
pub fn trial(name: &str, test: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    Trial::test(name, move || {
        test().map_err(|error| Failed::from(format!("{error:#}")))
    })
}

/// Lists test functions with their paths as names, in the order given.
#[macro_export]
macro_rules! named {
    ($($test:path),+ $(,)?) => { [$((stringify!($test), $test)),+] };
}
