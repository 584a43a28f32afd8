//! How many of very many cases a test tries.

use std::env;

/// Whether each case is tried that a test distinguishes, as each write after which an agent is killed, and
/// not only some of them. Asked for with any `SIGNPOST_TESTS_EVERY`; takes minutes.
pub fn is_exhaustive() -> bool {
    env::var_os("SIGNPOST_TESTS_EVERY").is_some()
}
