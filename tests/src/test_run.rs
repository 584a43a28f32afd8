//! `make test`: runs every test program of this workspace, several concurrently.
//!
//! Most of them wait more than they compute: for the kernel, for leases and timeouts, for Pods. The
//! output of a program is printed as a whole when it has ended, with the lines that cargo would
//! print.

mod company;
mod program;
mod queue;
mod running;

pub use company::{Company, company_of, order};
pub use program::{BadMessage, Program, parse};
pub use queue::Queue;
pub use running::{Outcome, run_all};
