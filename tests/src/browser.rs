//! Headless Chromium, driven over the WebDriver protocol.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tempfile::TempDir;
use ureq::Agent;

use crate::cluster::Program;
use crate::deadline::{patience, wait_for};
use crate::network::Namespace;

/// Everything happens within a second or two; the rest is for a machine with other work.
const DEADLINE: Duration = Duration::from_secs(60);

/// A running Chromium with one page. It ends on drop and with the test.
#[derive(Debug)]
pub struct Browser {
    agent: Agent,
    /// The network namespace it runs in; that of the test if none.
    network: Option<Namespace>,
    /// The URL of the WebDriver session.
    session: String,
    #[expect(dead_code, reason = "held for the sake of its end")]
    driver: Program,
    #[expect(dead_code, reason = "held for the sake of its end")]
    folder: TempDir,
}

/// The programs of Debian's packages chromium-driver and chromium.
const DRIVER: &str = "/usr/bin/chromedriver";
const CHROMIUM: &str = "/usr/bin/chromium";

/// The command line of Chromium: without the user's profile, and without any network requests of
/// its own.
const ARGUMENTS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

/// Returns which program is missing on this machine, in one line.
pub fn missing() -> Option<String> {
    let mut programs = [DRIVER, CHROMIUM].into_iter();
    let missing = programs.find(|program| !Path::new(program).exists())?;
    Some(format!("there is no {missing}: run tools/set-up"))
}

// === impl Browser ===

impl Browser {
    /// Starts Chromium in `network`, or in the namespace of the test.
    pub fn start(network: Option<&Namespace>) -> Result<Browser> {
        let folder = TempDir::new()?;
        let log = folder.path().join("log");
        // In a PID namespace, all processes end with the first one: a killed driver would otherwise
        // leave its Chromium behind.
        let mut command = match network {
            Some(network) => network.command("unshare"),
            None => Command::new("unshare"),
        };
        if !rustix::process::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command.args(["--pid", "--fork", "--kill-child=KILL", "--mount-proc"]);
        command.arg(DRIVER).arg("--port=0");
        command.env("HOME", folder.path());
        let mut driver = Program::start("chromedriver", command, &log)?;
        let port = wait_for("chromedriver to start", DEADLINE, || {
            driver.ensure_runs()?;
            let text = std::fs::read_to_string(&log)?;
            let (_, port) = text.split_once("successfully on port ").unwrap_or_default();
            Ok(port.split_once('.').map(|(port, _)| port.to_owned()))
        })?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(patience(DEADLINE)));
        let agent: Agent = config.build().into();
        let data = folder.path().join("data");
        let mut arguments: Vec<String> = ARGUMENTS.map(str::to_owned).into();
        arguments.push(format!("--user-data-dir={}", data.display()));
        arguments.push("--window-size=1280,900".to_owned());
        let capabilities = json!({
            "goog:chromeOptions": {"args": arguments, "binary": CHROMIUM},
            "goog:loggingPrefs": {"browser": "ALL"},
        });
        let root = format!("http://127.0.0.1:{port}/session");
        let question = json!({"capabilities": {"alwaysMatch": capabilities}});
        let mut browser = Browser {
            session: root.clone(),
            network: network.cloned(),
            agent,
            driver,
            folder,
        };
        let session = browser.send(&root, &question)?;
        let id = session["sessionId"].as_str().context("a session")?;
        browser.session = format!("{root}/{id}");
        Ok(browser)
    }

    fn ask(&self, what: &str, question: &Value) -> Result<Value> {
        self.send(&format!("{}/{what}", self.session), question)
    }

    /// Posts a command to the driver, from its network namespace.
    fn send(&self, url: &str, question: &Value) -> Result<Value> {
        match &self.network {
            Some(network) => network.enter(|| send(&self.agent, url, question))?,
            None => send(&self.agent, url, question),
        }
    }

    /// Opens a page.
    pub fn open(&self, url: &str) -> Result<()> {
        self.ask("url", &json!({ "url": url })).map(drop)
    }

    /// Evaluates an expression in JavaScript.
    pub fn evaluate(&self, expression: &str) -> Result<Value> {
        let script = format!("return {expression};");
        self.ask("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Returns the rendered text of the first element that matches `selector`; empty without one.
    pub fn text(&self, selector: &str) -> Result<String> {
        let selector = json!(selector);
        let text = self.evaluate(&format!(
            "document.querySelector({selector})?.innerText ?? ''"
        ))?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// Returns the number of elements that match `selector`.
    pub fn count(&self, selector: &str) -> Result<u64> {
        let selector = json!(selector);
        let count = self.evaluate(&format!("document.querySelectorAll({selector}).length"))?;
        count.as_u64().context("a number")
    }

    /// Waits until the text of an element contains all of `expected`.
    pub fn wait_for_text(&self, selector: &str, expected: &[&str]) -> Result<String> {
        let mut seen = String::new();
        let found = wait_for(&format!("{expected:?} in {selector}"), DEADLINE, || {
            seen = self.text(selector)?;
            let is_there = expected.iter().all(|expected| seen.contains(expected));
            Ok(is_there.then(|| seen.clone()))
        });
        found.with_context(|| format!("{selector} says {seen:?}"))
    }

    /// Waits until `expected` elements match `selector`.
    pub fn wait_for_count(&self, selector: &str, expected: u64) -> Result<()> {
        let mut seen = 0;
        let found = wait_for(&format!("{expected} of {selector}"), DEADLINE, || {
            seen = self.count(selector)?;
            Ok((seen == expected).then_some(()))
        });
        found.with_context(|| format!("there are {seen}"))
    }

    /// Presses keys one after another, in WebDriver's encoding.
    pub fn press(&self, keys: &str) -> Result<()> {
        let strokes = keys.chars().flat_map(|key| {
            let key = key.to_string();
            ["keyDown", "keyUp"].map(|what| json!({"type": what, "value": key}))
        });
        let strokes: Vec<Value> = strokes.collect();
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": strokes});
        self.ask("actions", &json!({"actions": [keyboard]}))
            .map(drop)
    }

    /// Returns the accessibility tree as `role: name` for each element.
    pub fn accessible(&self) -> Result<Vec<String>> {
        let tree = self.debug("Accessibility.getFullAXTree", &json!({}))?;
        let nodes = tree["nodes"].as_array().context("a tree")?;
        let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
        let describe = |node: &Value| format!("{}: {}", text(&node["role"]), text(&node["name"]));
        Ok(nodes.iter().map(describe).collect())
    }

    /// Emulates a system with a preference for the dark or light scheme.
    pub fn prefer(&self, scheme: &str) -> Result<()> {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        let media = json!({"features": [feature]});
        self.debug("Emulation.setEmulatedMedia", &media).map(drop)
    }

    /// Gives the page this size in CSS pixels.
    pub fn resize(&self, width: u32, height: u32) -> Result<()> {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.debug("Emulation.setDeviceMetricsOverride", &size)
            .map(drop)
    }

    /// Gives the page the size of the window again.
    pub fn restore_size(&self) -> Result<()> {
        self.debug("Emulation.clearDeviceMetricsOverride", &json!({}))
            .map(drop)
    }

    /// Loads the page again, and runs `script` before the scripts of the page.
    pub fn reload_with(&self, script: &str) -> Result<()> {
        let source = json!({ "source": script });
        self.debug("Page.addScriptToEvaluateOnNewDocument", &source)?;
        self.ask("refresh", &json!({})).map(drop)
    }

    /// Returns a screenshot as PNG.
    pub fn picture(&self) -> Result<Vec<u8>> {
        let picture = self.debug("Page.captureScreenshot", &json!({}))?;
        let ByteString(bytes) = serde_json::from_value(picture["data"].clone())?;
        Ok(bytes)
    }

    /// Returns the errors since the last call: those of scripts, and violations of the content
    /// security policy.
    pub fn errors(&self) -> Result<Vec<String>> {
        let entries = self.ask("se/log", &json!({"type": "browser"}))?;
        let entries = entries.as_array().context("a log")?.iter();
        let errors = entries.filter(|entry| entry["level"] == "SEVERE");
        Ok(errors.map(|entry| entry["message"].to_string()).collect())
    }

    fn debug(&self, command: &str, parameters: &Value) -> Result<Value> {
        let question = json!({"cmd": command, "params": parameters});
        self.ask("goog/cdp/execute", &question)
    }
}

/// Posts a command to the driver.
fn send(agent: &Agent, url: &str, question: &Value) -> Result<Value> {
    let request = agent.post(url).header("Content-Type", "application/json");
    let mut response = request.send(question.to_string())?;
    let text = response
        .body_mut()
        .with_config()
        .limit(64 << 20)
        .read_to_string()?;
    let answer: Value = serde_json::from_str(&text)?;
    let error = &answer["value"]["error"];
    ensure!(
        !error.is_string(),
        "{error}: {}",
        answer["value"]["message"]
    );
    Ok(answer["value"].clone())
}
