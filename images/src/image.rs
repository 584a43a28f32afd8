//! What an image is.

use std::collections::BTreeMap;
use std::env::consts;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::{Layer, Reference, Size, SourceDate};

/// A container image for Linux with one layer.
#[derive(Debug, Clone)]
pub struct Image {
    /// What it is called.
    pub reference: Reference,
    /// What it runs on.
    pub architecture: Architecture,
    /// Stands for the time it was made.
    pub created: SourceDate,
    /// How it is run.
    pub process: Process,
    /// What people may want to know about it; the names are those of
    /// <https://github.com/opencontainers/image-spec/blob/main/annotations.md>.
    pub labels: BTreeMap<String, String>,
    /// Its files.
    pub layer: Layer,
}

/// How the program in an image is run, where nobody says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// Environment variables by name.
    pub environment: BTreeMap<String, String>,
    /// Who it runs as.
    pub user: User,
}

/// A user and a group by number: an image without `/etc/passwd` knows no names, and a kubelet cannot
/// tell whether a name is root. Written as `65532:65532`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// The user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// A processor, in Go's words, which images use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// `x86_64`.
    Amd64,
    /// `aarch64`.
    Arm64,
}

/// A text is no [`User`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is not the numbers of a user and a group, such as 65532:65532")]
pub struct ParseUserError {
    text: String,
}

/// A text is no [`Architecture`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is neither amd64 nor arm64")]
pub struct ParseArchitectureError {
    text: String,
}

/// An image takes more of a node's disk than it may.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{reference} takes {} bytes unpacked, {} more than it may",
    size.bytes,
    size.bytes - limit.bytes
)]
pub struct TooLarge {
    reference: Reference,
    size: Size,
    /// Less than `size`.
    limit: Size,
}

// === impl Image ===

impl Image {
    /// Checks that its files take no more than `limit`.
    pub fn check(&self, limit: Size) -> Result<(), TooLarge> {
        let size = self.layer.size();
        if size <= limit {
            return Ok(());
        }
        Err(TooLarge {
            reference: self.reference.clone(),
            size,
            limit,
        })
    }
}

// === impl User ===

impl FromStr for User {
    type Err = ParseUserError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text.split_once(':');
        let user = numbers.and_then(|(uid, gid)| {
            Some(User {
                uid: uid.parse().ok()?,
                gid: gid.parse().ok()?,
            })
        });
        user.ok_or_else(|| ParseUserError {
            text: text.to_owned(),
        })
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

// === impl Architecture ===

impl Architecture {
    /// That of this machine; `None` where it is neither of the two.
    pub fn own() -> Option<Architecture> {
        match consts::ARCH {
            "x86_64" => Some(Architecture::Amd64),
            "aarch64" => Some(Architecture::Arm64),
            _ => None,
        }
    }
}

impl FromStr for Architecture {
    type Err = ParseArchitectureError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "amd64" => Ok(Architecture::Amd64),
            "arm64" => Ok(Architecture::Arm64),
            _ => Err(ParseArchitectureError {
                text: text.to_owned(),
            }),
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Architecture::Amd64 => "amd64",
            Architecture::Arm64 => "arm64",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_two_numbers() {
        let user: User = "65532:10".parse().expect("a user");
        assert_eq!((user.uid, user.gid), (65532, 10));
        for text in ["", "root", "0", "root:root", "-1:0"] {
            let error = text.parse::<User>().expect_err("no user");
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
