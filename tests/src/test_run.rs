//! `make test`: every test program of this workspace, several at a time.
//!
//! Most of them wait more than they compute: for the kernel, for leases and timeouts, for Pods. What
//! a program prints is printed when it has ended, all of it together, with the lines that cargo would print.

mod company;
mod program;
mod queue;
mod running;

pub use company::{Company, company_of, order};
pub use program::{BadMessage, Program, parse};
pub use queue::Queue;
pub use running::{Outcome, run_all};
