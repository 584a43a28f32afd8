//! Five thousand nodes.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use tests::deadline::wait_for;

use crate::legibility::NARROW;
use crate::stage::{NODES, Reports, Stage, State};
use crate::{DEADLINE, picture};

pub(crate) fn shown(stage: &mut Stage) -> Result<()> {
    stage.go_to("nodes")?;
    stage.fill(NODES.len()..1_000, Reports::Most)?;
    let browser = &stage.browser;
    browser.wait_for_count(".group[data-group='unhealthy'] .cell", 11)?;
    browser.wait_for_count(".group[data-group='in progress'] .cell", 10)?;
    browser.evaluate("document.querySelector('.group .cell').focus()")?;
    picture(stage, "dark", "nodes")?;
    stage.fill(1_000..5_000, Reports::None)?;
    let browser = &stage.browser;
    browser.wait_for_text("#nodes-count", &["5,000 nodes"])?;
    browser.wait_for_count("#nodes-grid [role='option']", 5_000)?;
    browser.wait_for_count(".group[data-group='in progress'] .cell", 4_010)?;
    browser.wait_for_count("#nodes-grid [tabindex='0']", 1)?;
    let find = |text: &str| {
        browser.evaluate(&format!(
            "(() => {{ const field = document.querySelector('#nodes-filter input'); field.value = {}; \
             field.dispatchEvent(new Event('input', {{bubbles: true}})); }})()",
            json!(text)
        ))
    };
    find("m01")?;
    browser.wait_for_text("#nodes-count", &["100 of 5,000 nodes"])?;
    browser.wait_for_count("#nodes-grid [role='option']", 100)?;
    find("")?;
    browser.wait_for_count("#nodes-grid [role='option']", 5_000)?;
    // In a narrow window, the chosen node is described below the squares, and in sight.
    browser.resize(NARROW, 700)?;
    let described = wait_for("the chosen node to be in sight", DEADLINE, || {
        let bottom = "innerHeight - document.getElementById('node').getBoundingClientRect().bottom";
        let room = browser.evaluate(bottom)?;
        Ok((room.as_f64() >= Some(0.0)).then_some(()))
    });
    browser.restore_size()?;
    described
}

/// Records how long the page is busy at a time, and when all squares are there.
const PROBE: &str = "
    window.probe = { tasks: [], gaps: [], first: null };
    new PerformanceObserver((list) => probe.tasks.push(...list.getEntries().map(({ duration }) => duration)))
        .observe({ type: 'longtask', buffered: true });
    let before = performance.now();
    (function frame() {
        const now = performance.now();
        probe.gaps.push(now - before);
        before = now;
        if (probe.first === null && document.querySelectorAll('#nodes-grid .cell').length >= 5000) probe.first = now;
        requestAnimationFrame(frame);
    })();
";
/// What the probe has recorded since the last call.
const RECORDED: &str = "(() => {
    const { tasks, gaps, first } = probe;
    const longest = (spans) => Math.round(Math.max(0, ...spans));
    const text = `longest task ${longest(tasks)} ms, ${tasks.length} above 50 ms, longest time between frames ${longest(gaps)} ms`;
    probe.tasks = [];
    probe.gaps = [];
    return [Math.round(first), text];
})()";

/// Whether of some group squares are drawn and others are not.
const PARTLY_DRAWN: &str = "[...document.querySelectorAll('.group')].some((group) => {
    const isDrawn = (cell) => cell.checkVisibility({ contentVisibilityAuto: true });
    const drawn = [...group.querySelectorAll('.cell')].map(isDrawn);
    return drawn.includes(true) && drawn.includes(false);
})";

/// Failure story T233: a node that changed made the browser lay out and paint the squares of all.
pub(crate) fn changing(stage: &mut Stage) -> Result<()> {
    const TAB: &str = "\u{e004}";
    const CHANGES_PER_SECOND: u32 = 50;
    const SPAN: Duration = Duration::from_secs(5);
    stage.go_to("nodes")?;
    let browser = &stage.browser;
    browser.reload_with(PROBE)?;
    browser.wait_for_count("#nodes-grid [role='option']", 5_000)?;
    browser.evaluate("void (window.isSamePage = true)")?;
    let loaded = browser.evaluate(RECORDED)?;
    println!(
        "    all squares {} ms after the page was opened: {}",
        loaded[0],
        loaded[1].as_str().unwrap_or_default()
    );
    let (changes, took) = stage.change(1_000..5_000, CHANGES_PER_SECOND, SPAN)?;
    let browser = &stage.browser;
    let changed = browser.evaluate(RECORDED)?;
    println!(
        "    {changes} changes in {took:.1?}: {}",
        changed[1].as_str().unwrap_or_default()
    );

    ensure!(
        browser.evaluate(PARTLY_DRAWN)? == json!(true),
        "squares are drawn out of sight"
    );

    // A change of one node appears, and the keyboard reaches it.
    stage.report("m4999", State::Failing, &json!({}))?;
    let browser = &stage.browser;
    let cell = ".group[data-group='unhealthy'] .cell[data-node='m4999']";
    browser.wait_for_count(cell, 1)?;
    browser.evaluate("document.querySelector('#nodes-filter input').focus()")?;
    browser.press("m4999")?;
    browser.wait_for_text("#nodes-count", &["1 of 5,000 nodes"])?;
    // The list of groupings, the legend, the square.
    browser.press(&TAB.repeat(3))?;
    browser.wait_for_text("#node", &["m4999: unhealthy", "CommitFailed"])?;
    ensure!(
        browser.evaluate("window.isSamePage === true")? == json!(true),
        "the page was loaded again"
    );
    Ok(())
}
