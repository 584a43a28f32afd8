//! Other processes of this machine, as far as this process can see them, and the sockets that they
//! have: which process a thread belongs to, and which one uses a port.
//!
//! Everything is read from `/proc` when it is asked for. What is hidden is said to be so, never
//! guessed.

mod port_holder;
mod process;
pub mod socket_table;

pub use port_holder::{Holder, ListenAddress, describe_holder, is_taken, observe_holders};
pub use process::{Process, View, observe_process, observe_process_of, observe_view};
