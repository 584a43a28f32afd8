//! The command line of `kubectl signpost`, exported for the flag reference. Everything else is in
//! the program.

pub mod arguments;
