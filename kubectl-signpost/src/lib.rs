//! The command line of `kubectl signpost`, for the page about its flags. Everything else is in the program.

pub mod arguments;
