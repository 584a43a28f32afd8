//! The process that made an external change: the kernel only names the thread.

use backend::Culprit;

use crate::process::{View, observe_process_of, observe_view};

/// What the thread of an agent is called that writes rules. Agents of before are known by it where the
/// process cannot be seen, which is so from every container.
pub(crate) const WRITER: &str = "reconciler";
/// What its process is called.
const PROGRAM: &str = "signpost-agent";

/// The process, if it still runs and can be seen from here; else the thread as the kernel tells it.
pub(super) fn observe_culprit(told: Culprit) -> Culprit {
    let process = match observe_view() {
        View::Machine => observe_process_of(told.process, &told.program),
        // The id that the kernel tells may be that of another process in here.
        View::Container => None,
    };
    match process {
        Some(process) => Culprit {
            program: process.name,
            process: process.id,
        },
        None if told.program == WRITER => Culprit {
            program: PROGRAM.to_owned(),
            ..told
        },
        None => told,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_ended_is_told_as_the_kernel_does_unless_it_is_an_agents() {
        let culprit = |program: &str| Culprit {
            program: program.to_owned(),
            // The largest there is, PID_MAX_LIMIT, is smaller.
            process: u32::MAX,
        };
        assert_eq!(observe_culprit(culprit("nft")), culprit("nft"));
        assert_eq!(observe_culprit(culprit(WRITER)), culprit(PROGRAM));
    }
}
