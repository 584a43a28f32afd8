//! The command line of `signpost-agent`, for the page that documents its flags. All other modules
//! belong to the program.

pub mod arguments;
