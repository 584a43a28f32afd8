//! The program against a server on loopback that answers as a test says.

mod closed_pipe;
mod proxies;
mod rights;
mod server;
