//! Whether every view can be read: contrast in both colour schemes, and a narrow window.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::deadline::wait_for;

use crate::DEADLINE;
use crate::stage::Stage;

const VIEWS: [&str; 6] = [
    "rollouts",
    "nodes",
    "rejections",
    "drift",
    "service",
    "packet",
];
const SCHEMES: [&str; 2] = ["light", "dark"];

/// The width that WCAG asks pages to fit (1.4.10), and the least size of targets (2.5.8), in CSS
/// pixels.
pub(crate) const NARROW: u32 = 320;
const LEAST_TARGET: f64 = 24.0;

/// Failure story T234. What the tests before have left behind fills each view.
pub(crate) fn all_views(stage: &mut Stage) -> Result<()> {
    let mut faults = Vec::new();
    for view in VIEWS {
        stage.go_to(view)?;
        // What is folded together is text as well.
        stage
            .browser
            .evaluate("document.querySelectorAll('details').forEach((part) => part.open = true)")?;
        faults.extend(faint_texts(stage, view)?);
        fits_narrow_window(stage, view)?;
    }
    stage.go_to("nodes")?;
    let browser = &stage.browser;
    let step = browser.evaluate(
        "(() => { const [one, other] = [...document.querySelectorAll('#nodes-grid .block .cell')].slice(-2).map((cell) => \
         cell.getBoundingClientRect()); return other.left - one.left; })()",
    )?;
    let step = step.as_f64().unwrap_or_default();
    if step < LEAST_TARGET {
        faults.push(format!("squares are {step} px apart"));
    }
    browser
        .evaluate("document.querySelectorAll('details').forEach((part) => part.open = false)")?;
    ensure!(faults.is_empty(), "{faults:#?}");
    Ok(())
}

/// Returns the texts of the present view with too little contrast, in both colour schemes.
pub(crate) fn faint_texts(stage: &Stage, view: &str) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let mut papers = BTreeSet::new();
    for scheme in SCHEMES {
        stage.browser.prefer(scheme)?;
        let found = stage.browser.evaluate(include_str!("contrast.js"))?;
        let checked = found["checked"].as_u64().unwrap_or_default();
        ensure!(checked > 10, "{view} has {checked} texts");
        papers.insert(found["paper"].to_string());
        let faint = found["faint"].as_array().into_iter().flatten();
        faults.extend(faint.map(|text| format!("{view}, {scheme}: {text}")));
    }
    stage.browser.prefer("")?;
    ensure!(
        papers.len() == SCHEMES.len(),
        "{view} is on {papers:?} in light and dark"
    );
    Ok(faults)
}

fn fits_narrow_window(stage: &Stage, view: &str) -> Result<()> {
    let browser = &stage.browser;
    browser.resize(NARROW, 700)?;
    let mut left_out = Value::Null;
    // Squares are laid out anew in the frame after the window has another size.
    let fits = wait_for("the page to fit", DEADLINE, || {
        left_out = browser.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth",
        )?;
        Ok((left_out == json!(0)).then_some(()))
    });
    browser.restore_size()?;
    fits.with_context(|| format!("{view} is {left_out} px wider than a window of {NARROW}"))
}
