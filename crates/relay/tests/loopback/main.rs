//! Real sockets on loopback: what a process that connects to a node port there sees.

mod ports;
mod stage;
mod tcp;
mod udp;
