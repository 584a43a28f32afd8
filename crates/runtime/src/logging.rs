//! Where log lines go, which, and how they look.

use std::io::{self, IsTerminal};

use clap::{Args, ValueEnum};
use thiserror::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::util::TryInitError;

/// The flags for what is logged and how. Both programs flatten them into their own.
#[derive(Debug, Clone, Args)]
pub struct LogOptions {
    /// What to log: a level (error, warn, info, debug, trace), or levels per module as in
    /// `info,reconciler=debug`. The API client's line for each failed attempt is left out unless a
    /// level names its module.
    #[arg(
        long = "log",
        env = "SIGNPOST_LOG",
        value_name = "FILTER",
        default_value = "info,kube_client::client::builder=off",
        global = true
    )]
    pub filter: String,
    /// How log lines look on standard error.
    #[arg(
        long = "log-format",
        env = "SIGNPOST_LOG_FORMAT",
        value_name = "FORMAT",
        value_enum,
        default_value_t = LogFormat::Text,
        global = true
    )]
    pub format: LogFormat,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Plain text; coloured when standard error is a terminal.
    Text,
    /// One JSON object a line.
    Json,
}

/// Logging could not start.
#[derive(Debug, Error)]
pub enum LoggingError {
    /// The filter does not parse.
    #[error("failed to parse the log filter {filter:?} (flag --log, variable SIGNPOST_LOG)")]
    Filter {
        /// As given.
        filter: String,
        /// Where it goes wrong.
        source: ParseError,
    },
    /// Something already receives this process' log lines.
    #[error("failed to start logging a second time")]
    Started(#[source] TryInitError),
}

// === impl LogOptions ===

impl LogOptions {
    /// Sends the log lines of this process, from here to its end, to standard error.
    pub fn apply(&self) -> Result<(), LoggingError> {
        let filter =
            EnvFilter::builder()
                .parse(&self.filter)
                .map_err(|source| LoggingError::Filter {
                    filter: self.filter.clone(),
                    source,
                })?;
        let lines = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(io::stderr);
        match self.format {
            LogFormat::Text => lines
                .with_ansi(io::stderr().is_terminal())
                .finish()
                .try_init(),
            LogFormat::Json => lines.json().flatten_event(true).finish().try_init(),
        }
        .map_err(LoggingError::Started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error_chain::tests::assert_no_doubling;

    #[test]
    fn a_filter_that_does_not_parse_is_named_with_the_flag_and_the_reason() {
        let options = LogOptions {
            filter: "info,reconciler=loud".to_owned(),
            format: LogFormat::Text,
        };
        let error = options.apply().expect_err("there is no level called loud");
        let text = assert_no_doubling(&error);
        assert!(
            text.contains("\"info,reconciler=loud\"") && text.contains("--log"),
            "{text}"
        );
        assert!(text.contains("expected one of"), "{text}");
    }
}
