//! The command line of `signpost-operator`, exported for the flag reference. Everything else is in
//! the program.

pub mod arguments;
