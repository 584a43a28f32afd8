//! What content is called by.

use std::fmt;

use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// The SHA-256 of some bytes, by which an image's parts name one another. Prints as `sha256:` and 64
/// hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest {
    hex: String,
}

// === impl Digest ===

impl Digest {
    /// That of `content`.
    pub fn of(content: &[u8]) -> Digest {
        let digest = Sha256::digest(content);
        let hex = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Digest { hex }
    }

    /// Its digits without the name of the algorithm, as files are called in a layout.
    pub fn hex(&self) -> &str {
        &self.hex
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_the_digest_that_everybody_knows() {
        let known = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), known);
    }
}
