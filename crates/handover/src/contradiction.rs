//! Commands that contradict the handover that the profile requests.

use crds::profile::handover::Handover;

use super::Direction;

/// Returns why a command that contradicts the profile is refused; `None` if it does not contradict.
pub(super) fn contradiction(desired: Handover, what: Direction, profile: &str) -> Option<String> {
    let (says, instead) = match (desired, what) {
        (Handover::Takeover, Direction::Handback) => {
            ("Takeover", "Handback, which hands the nodes back")
        }
        (Handover::Handback, Direction::Takeover) => {
            ("Handback", "Takeover, which takes the nodes over")
        }
        (Handover::Manual, _)
        | (Handover::Takeover, Direction::Takeover)
        | (Handover::Handback, Direction::Handback) => return None,
    };
    Some(format!(
        "spec.handover of ProxyProfile {profile} is {says}, and the agent would undo this: set it to {instead}, or to Manual \
         and repeat the command"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_against_the_profile_is_refused_with_the_field_to_change() {
        let refused = |desired, what| contradiction(desired, what, "default");
        let text = refused(Handover::Takeover, Direction::Handback).expect("a refusal");
        assert!(text.starts_with("spec.handover of ProxyProfile default is Takeover"));
        assert!(text.contains("set it to Handback, which hands the nodes back, or to Manual and"));
        let text = refused(Handover::Handback, Direction::Takeover).expect("a refusal");
        assert!(text.contains("set it to Takeover, which takes the nodes over, or to Manual and"));
        for what in [Direction::Takeover, Direction::Handback] {
            assert_eq!(refused(Handover::Manual, what), None);
        }
        assert_eq!(refused(Handover::Takeover, Direction::Takeover), None);
    }
}
