//! Finds the process that made an external change: the kernel reports only the thread.

use backend::Actor;
use processes::{View, observe_process_of, observe_view};

/// The name of the agent's thread that writes rules. It identifies earlier agents if the process
/// cannot be seen, which is always so in a container.
pub(crate) const WRITER: &str = "reconciler";
/// The name of that thread's process.
const PROGRAM: &str = "signpost-agent";

/// Returns the process if it still runs and is visible here, otherwise the thread as the kernel
/// reports it.
pub(super) fn observe_actor(reported: Actor) -> Actor {
    let process = match observe_view() {
        View::Machine => observe_process_of(reported.process, &reported.program),
        // The id from the kernel may belong to another process in this PID namespace.
        View::Container => None,
    };
    match process {
        Some(process) => Actor {
            program: process.name,
            process: process.id,
        },
        None if reported.program == WRITER => Actor {
            program: PROGRAM.to_owned(),
            ..reported
        },
        None => reported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_ended_is_reported_as_the_kernel_does_unless_it_is_an_agents() {
        let actor = |program: &str| Actor {
            program: program.to_owned(),
            // Larger than any id: PID_MAX_LIMIT is smaller.
            process: u32::MAX,
        };
        assert_eq!(observe_actor(actor("nft")), actor("nft"));
        assert_eq!(observe_actor(actor(WRITER)), actor(PROGRAM));
    }
}
