//! A trace as text, at most 100 columns wide.

use std::fmt::{self, Display};

use super::{PathAnswer, PathStep, RulesOf, Sort, Trace};
use crate::explain::line;

impl Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, 0, &self.packet)?;
        if let Some(guess) = &self.guess {
            line(f, 2, guess)?;
        }
        line(f, 0, &format!("desired: {}", self.desired))?;
        let rules = match self.rules_of {
            RulesOf::Kernel => "the rules in the kernel",
            RulesOf::Rendering => "the rules that would be programmed",
        };
        line(f, 0, &format!("{rules}: {}", self.taken))?;
        line(
            f,
            0,
            match self.agree {
                true => "they agree",
                false => "! they do not agree",
            },
        )?;
        for way in &self.ways {
            writeln!(f)?;
            write_way(f, way)?;
        }
        Ok(())
    }
}

fn write_way(f: &mut fmt::Formatter<'_>, way: &PathAnswer) -> fmt::Result {
    line(f, 0, &format!("path to {}", way.outcome))?;
    for (position, station) in way.stations.iter().enumerate() {
        let next = way.stations.get(position + 1);
        write_station(f, station, next)?;
    }
    Ok(())
}

fn write_station(
    f: &mut fmt::Formatter<'_>,
    station: &PathStep,
    next: Option<&PathStep>,
) -> fmt::Result {
    let indent = match station.sort {
        Sort::Base => 2,
        Sort::Chain { .. } => 4,
        Sort::Event => 6,
    };
    // No rule of this chain matched: the packet went on to another chain.
    let is_idle = match (station.sort, next.map(|next| next.sort)) {
        (Sort::Event, _) | (_, Some(Sort::Event)) | (Sort::Base, Some(Sort::Chain { .. })) => false,
        (_, None | Some(Sort::Base)) => true,
        (Sort::Chain { depth }, Some(Sort::Chain { depth: next })) => next <= depth,
    };
    for (position, text) in station.either.iter().enumerate() {
        let text = match (position, is_idle) {
            (0, true) => format!("{text}: no rule matches"),
            (0, false) => text.clone(),
            _ => format!("or {text}"),
        };
        line(f, indent, &text)?;
    }
    Ok(())
}
