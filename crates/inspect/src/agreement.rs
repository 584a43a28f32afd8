//! Whether the kernel agrees with the desired state.

use serde::{Deserialize, Serialize};

/// Whether the kernel agrees with the desired state in what an answer covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Agreement {
    /// It agrees, or no kernel was read.
    Agrees,
    /// It differs.
    Differs,
}

// === impl Agreement ===

impl Agreement {
    /// The header of an answer that says whether the kernel agrees.
    pub const HEADER: &str = "x-agreement";

    /// Reads the value of that header. Without one, the answer compares nothing and agrees.
    pub fn of_header(value: Option<&[u8]>) -> Agreement {
        Agreement::from(value != Some(Agreement::Differs.as_str().as_bytes()))
    }

    /// Its word in the header of an answer.
    pub fn as_str(self) -> &'static str {
        match self {
            Agreement::Agrees => "agrees",
            Agreement::Differs => "differs",
        }
    }
}

impl From<bool> for Agreement {
    fn from(agrees: bool) -> Agreement {
        match agrees {
            true => Agreement::Agrees,
            false => Agreement::Differs,
        }
    }
}
