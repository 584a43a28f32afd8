//! A trace as text, at most 100 columns wide.

use std::fmt::{self, Display};

use super::{PathStep, RulesOf, StepKind, Trace, TracedPath};
use crate::explain::line;

impl Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, 0, &self.packet)?;
        if let Some(assumed_origin) = &self.assumed_origin {
            line(f, 2, assumed_origin)?;
        }
        line(f, 0, &format!("desired: {}", self.desired))?;
        let rules = match self.rules_of {
            RulesOf::Kernel => "the rules in the kernel",
            RulesOf::Rendering => "the rules that would be programmed",
        };
        line(f, 0, &format!("{rules}: {}", self.actual))?;
        line(
            f,
            0,
            match self.agree {
                true => "they agree",
                false => "! they do not agree",
            },
        )?;
        for path in &self.paths {
            writeln!(f)?;
            write_path(f, path)?;
        }
        Ok(())
    }
}

fn write_path(f: &mut fmt::Formatter<'_>, path: &TracedPath) -> fmt::Result {
    line(f, 0, &format!("path to {}", path.outcome))?;
    for (position, step) in path.steps.iter().enumerate() {
        let next = path.steps.get(position + 1);
        write_step(f, step, next)?;
    }
    Ok(())
}

fn write_step(f: &mut fmt::Formatter<'_>, step: &PathStep, next: Option<&PathStep>) -> fmt::Result {
    let indent = match step.kind {
        StepKind::Base => 2,
        StepKind::Chain { .. } => 4,
        StepKind::Event => 6,
    };
    // No rule of this chain matched: the packet went on to another chain.
    let is_idle = match (step.kind, next.map(|next| next.kind)) {
        (StepKind::Event, _)
        | (_, Some(StepKind::Event))
        | (StepKind::Base, Some(StepKind::Chain { .. })) => false,
        (_, None | Some(StepKind::Base)) => true,
        (StepKind::Chain { depth }, Some(StepKind::Chain { depth: next })) => next <= depth,
    };
    for (position, text) in step.texts.iter().enumerate() {
        let text = match (position, is_idle) {
            (0, true) => format!("{text}: no rule matches"),
            (0, false) => text.clone(),
            _ => format!("or {text}"),
        };
        line(f, indent, &text)?;
    }
    Ok(())
}
