//! Node ports on loopback, carried to an endpoint by this process: a kernel that rewrites a packet
//! from 127.0.0.1 refuses the reply as a martian.
