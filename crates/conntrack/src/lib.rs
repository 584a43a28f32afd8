//! Connections that the kernel goes on forwarding to where nothing answers any more, and the worker
//! that makes it forget them.
