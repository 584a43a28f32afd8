//! What is logged, and in which format.

mod modules;

use std::io::{self, IsTerminal};

use clap::{Args, ValueEnum};
use thiserror::Error;
use tokio::sync::watch;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::combinator::Or;
use tracing_subscriber::filter::{EnvFilter, FilterExt, FilterFn, ParseError};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use modules::ByModule;
pub use modules::ModuleVerbosity;

/// The default log filter, and those of higher verbosity. At `debug`, `h2` logs a line for each
/// frame of the connection to the API server.
const AT_INFO: &str = "info";
const AT_DEBUG: &str = "debug,h2=info";
const AT_TRACE: &str = "trace,h2=info";

/// The flags for what is logged and how. Both programs flatten them into their own.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct LogOptions {
    /// What to log: a level (error, warn, info, debug, trace), or levels per module as in
    /// `info,reconciler=debug`.
    #[arg(
        long = "log",
        env = "SIGNPOST_LOG",
        value_name = "FILTER",
        default_value = AT_INFO,
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
    /// Modules that log more than `filter` says. The first that names a module decides.
    #[arg(skip)]
    pub modules: Vec<ModuleVerbosity>,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Plain text; coloured when standard error is a terminal.
    Text,
    /// One JSON object a line.
    Json,
}

/// The log of this process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Log {
    in_force: watch::Sender<LogOptions>,
    text: FilterHandle,
    json: FilterHandle,
}

/// Replaces the filter of one format.
type FilterHandle = reload::Handle<LineFilter, Registry>;
/// A line is logged that the filter lets through, or that a module's own verbosity does.
type LineFilter = Or<EnvFilter, FilterFn<ByModule>, Registry>;

/// Why logging could not start or change.
#[derive(Debug, Error)]
pub enum LoggingError {
    /// The filter does not parse.
    #[error("failed to parse the log filter {filter:?} (flag --log, variable SIGNPOST_LOG)")]
    Filter {
        /// As given.
        filter: String,
        /// The parse error.
        source: ParseError,
    },
    /// Logging has already started in this process.
    #[error("failed to start logging a second time")]
    Started(#[source] TryInitError),
    /// The log is no longer active.
    #[error("failed to change the log filter")]
    Ended(#[source] reload::Error),
}

// === impl LogOptions ===

impl LogOptions {
    /// The filter for a verbosity on klog's scale from 0 to 10. klog always prints 0, kube-proxy
    /// has most of its details at 4 and 5, and client-go prints whole messages from 8 on.
    #[must_use]
    pub fn filter_of(verbosity: u8) -> &'static str {
        match level_of(verbosity) {
            LevelFilter::TRACE => AT_TRACE,
            LevelFilter::DEBUG => AT_DEBUG,
            _ => AT_INFO,
        }
    }

    /// The lowest verbosity that logs as much.
    #[must_use]
    pub fn verbosity(&self) -> u8 {
        let most = parse(&self.filter).ok().and_then(|f| f.max_level_hint());
        match most {
            Some(LevelFilter::DEBUG) => 4,
            Some(LevelFilter::TRACE) | None => 8,
            Some(_) => 0,
        }
    }

    /// Sends all further log lines of this process to standard error.
    pub fn apply(&self) -> Result<Log, LoggingError> {
        let (chosen, other) = (self.line_filter()?, nothing());
        let (text, json) = match self.format {
            LogFormat::Text => (chosen, other),
            LogFormat::Json => (other, chosen),
        };
        let (text, text_handle) = reload::Layer::new(text);
        let (json, json_handle) = reload::Layer::new(json);
        let lines = || tracing_subscriber::fmt::layer().with_writer(io::stderr);
        // A list, and not `text.and_then(json)`: with that, filtered-out JSON also removes the text
        // (tracing-subscriber 0.3.23). Both formats are installed from the start, one of them
        // filtered out: a span keeps its fields only in the format that was active when it began.
        let text = lines()
            .with_ansi(io::stderr().is_terminal())
            .with_filter(text);
        let json = lines().json().flatten_event(true).with_filter(json);
        tracing_subscriber::registry()
            .with(vec![text.boxed(), json.boxed()])
            .try_init()
            .map_err(LoggingError::Started)?;
        Ok(Log {
            in_force: watch::Sender::new(self.clone()),
            text: text_handle,
            json: json_handle,
        })
    }

    fn line_filter(&self) -> Result<LineFilter, LoggingError> {
        Ok(parse(&self.filter)?.or(modules::filter(&self.modules)))
    }
}

/// The level that has as much detail as a verbosity of klog.
fn level_of(verbosity: u8) -> LevelFilter {
    match verbosity {
        0..=3 => LevelFilter::INFO,
        4..=7 => LevelFilter::DEBUG,
        8.. => LevelFilter::TRACE,
    }
}

/// The filter of the format that is not in use.
fn nothing() -> LineFilter {
    EnvFilter::new("off").or(modules::filter(&[]))
}

fn parse(filter: &str) -> Result<EnvFilter, LoggingError> {
    EnvFilter::builder()
        .parse(filter)
        .map_err(|source| LoggingError::Filter {
            filter: filter.to_owned(),
            source,
        })
}

// === impl Log ===

impl Log {
    /// The current options.
    #[must_use]
    pub fn options(&self) -> LogOptions {
        self.in_force.borrow().clone()
    }

    /// Logs according to `options` from now on. Returns whether anything changed.
    pub fn set(&self, options: LogOptions) -> Result<bool, LoggingError> {
        if *self.in_force.borrow() == options {
            return Ok(false);
        }
        let (chosen, other) = match options.format {
            LogFormat::Text => (&self.text, &self.json),
            LogFormat::Json => (&self.json, &self.text),
        };
        // In this order, so that no lines of other threads are lost in between.
        chosen
            .reload(options.line_filter()?)
            .map_err(LoggingError::Ended)?;
        other.reload(nothing()).map_err(LoggingError::Ended)?;
        self.in_force.send_replace(options);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error_chain::tests::assert_no_doubling;

    fn options(filter: &str) -> LogOptions {
        LogOptions {
            filter: filter.to_owned(),
            format: LogFormat::Text,
            modules: Vec::new(),
        }
    }

    #[test]
    fn a_filter_that_does_not_parse_is_named_with_the_flag_and_the_reason() {
        let options = options("info,reconciler=loud");
        let error = options.apply().expect_err("there is no level called loud");
        let text = assert_no_doubling(&error);
        assert!(
            text.contains("\"info,reconciler=loud\"") && text.contains("--log"),
            "{text}"
        );
        assert!(text.contains("expected one of"), "{text}");
    }

    #[test]
    fn a_verbosity_logs_the_level_that_it_is_the_verbosity_of() {
        for (verbosity, lowest) in [(0, 0), (3, 0), (4, 4), (7, 4), (8, 8), (10, 8)] {
            let filter = LogOptions::filter_of(verbosity);
            assert_eq!(options(filter).verbosity(), lowest, "{verbosity}: {filter}");
        }
        for (filter, verbosity) in [("off", 0), ("warn", 0), ("info,reconciler=debug", 4)] {
            assert_eq!(options(filter).verbosity(), verbosity, "{filter}");
        }
    }
}
