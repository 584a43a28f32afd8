//! The agent's process: its feature gates, its connection to the API server, its log.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    rule::{self, EXTERNAL_IPS_GATE},
    section::section,
    span::Span,
};

/// Features switched on or off by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("maxProperties" = 32, "x-kubernetes-validations" = rule::list(&[&EXTERNAL_IPS_GATE])))]
pub struct FeatureGates(pub BTreeMap<String, bool>);

section! {
    /// The agent's connection to the API server. The server's address and the credentials are flags of the agent, because
    /// it needs them before it can read any profile.
    ClientConnectionSpec;
    /// The agent's connection to the API server, every default filled in.
    ClientConnection {
        /// The media types the agent accepts, as a header; empty for its own choice. Default empty.
        /// Not supported yet: reported by condition FeaturesHonoured.
        #[schemars(length(max = 256))]
        accept_content_types: String = String::new(),

        /// The media type the agent sends; empty for its own choice. Default empty.
        /// Not supported yet: reported by condition FeaturesHonoured.
        #[schemars(length(max = 256))]
        content_type: String = String::new(),

        /// The sustained rate of requests, per second, from 1. Default 5.
        /// Not supported yet: reported by condition FeaturesHonoured.
        #[schemars(range(min = 1, max = 10_000))]
        qps: u32 = 5,

        /// The largest burst of requests after an idle period, from 0. Default 10.
        /// Not supported yet: reported by condition FeaturesHonoured.
        #[schemars(range(min = 0, max = 10_000))]
        burst: u32 = 10,
    }
}

section! {
    /// What the agent logs.
    LoggingSpec;
    /// What the agent logs, every default filled in.
    Logging {
        /// The form of a log line: text or json. Default as the agent's flag --log-format, which is text.
        #[schemars(with = "LogFormat")]
        format: LogFormat = LogFormat::Text,

        /// How much is logged, from 0 (what a cluster operator needs) to 10 (everything): 0 to 3 is level info,
        /// 4 to 7 debug, 8 to 10 trace. Default as the agent's flag --log, which is info.
        #[schemars(range(min = 0, max = 10))]
        verbosity: u8 = 0,

        /// The longest time a line is buffered. Default 5s.
        /// Not supported yet: reported by condition FeaturesHonoured. The agent buffers no line.
        flush_frequency: Span = Span::seconds(5),

        /// A higher verbosity for single modules of the agent, at most 16; the first pattern that names a module decides.
        /// Default none.
        #[schemars(length(max = 16))]
        vmodule: Vec<ModuleVerbosity> = Vec::new(),
    }
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Plain text.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The verbosity of the modules that a pattern names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModuleVerbosity {
    /// One or more consecutive parts of a module's path in a log line, such as `family` or `reconciler::family`: it
    /// names these modules and those below them. `*` stands for any letters.
    #[schemars(length(min = 1, max = 128))]
    pub file_pattern: String,
    /// How much it logs, from 0 to 10.
    #[schemars(range(min = 0, max = 10))]
    pub verbosity: u8,
}

// === impl FeatureGates ===

impl FeatureGates {
    /// Whether no gate is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
