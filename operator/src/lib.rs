//! The command line of `signpost-operator`, for the page about its flags. Everything else is in the program.

pub mod arguments;
