//! Real sockets on loopback: the view of a process that connects to a node port there.

mod ports;
mod stage;
mod tcp;
mod udp;
