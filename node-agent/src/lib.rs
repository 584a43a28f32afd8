//! The command line of `signpost-agent`, for the page about its flags. Everything else is in the program.

pub mod arguments;
