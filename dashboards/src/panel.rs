//! Dashboards and their panels, and their Grafana JSON.

use serde_json::{Value, json};

/// The width of a row in Grafana's columns.
const COLUMNS: u64 = 24;
/// The height of a panel with a graph.
const HEIGHT: u64 = 8;
/// The height of a panel with a number.
const LOW: u64 = 4;

/// A dashboard.
#[derive(Debug, Clone)]
pub struct Dashboard {
    /// Its file, below `charts/signpost/files`.
    pub path: &'static str,
    /// The permanent identifier in Grafana, independent of the title.
    pub uid: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The query for the values of the variable `node`, if the dashboard has one.
    pub nodes: Option<&'static str>,
    /// Its rows from top to bottom.
    pub rows: Vec<Row>,
}

/// Panels under one heading.
#[derive(Debug, Clone)]
pub struct Row {
    /// The heading.
    pub title: &'static str,
    /// The panels. Those that do not fit on one line continue on the next.
    pub panels: Vec<Panel>,
}

/// A panel: a question and its answer.
#[derive(Debug, Clone)]
pub struct Panel {
    /// The question, in a few words.
    pub title: &'static str,
    /// How to interpret the answer.
    pub help: &'static str,
    /// The visualization.
    pub shape: Shape,
    /// Grafana's name of the unit.
    pub unit: &'static str,
    /// The queries, each with its legend.
    pub queries: Vec<(String, &'static str)>,
}

/// The visualization of a panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Lines over time.
    Lines,
    /// One number for each series.
    Numbers,
    /// One row for each series with its present value.
    Table,
    /// A heatmap of buckets over time.
    Heatmap,
}

// === impl Dashboard ===

impl Dashboard {
    /// Renders the dashboard as Grafana JSON.
    pub fn render(&self) -> Value {
        let mut panels = Vec::new();
        let mut top = 0;
        for row in &self.rows {
            panels.push(json!({
                "id": panels.len() + 1, "type": "row", "title": row.title, "collapsed": false,
                "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1}, "panels": [],
            }));
            top += 1;
            let (mut left, mut bottom) = (0, top);
            for panel in &row.panels {
                let (width, height) = panel.shape.size();
                if left + width > COLUMNS {
                    (left, top) = (0, bottom);
                }
                let place = json!({"x": left, "y": top, "w": width, "h": height});
                panels.push(panel.render(panels.len() + 1, &place));
                left += width;
                bottom = bottom.max(top + height);
            }
            top = bottom;
        }
        json!({
            "uid": self.uid, "title": self.title, "tags": ["signpost"], "schemaVersion": 39,
            "editable": true, "graphTooltip": 1, "refresh": "30s", "timezone": "browser",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": self.variables()}, "panels": panels,
        })
    }

    fn variables(&self) -> Vec<Value> {
        let mut variables = vec![json!({
            "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
        })];
        variables.extend(self.nodes.map(|query| {
            json!({
                "name": "node", "label": "Node", "type": "query", "refresh": 2, "sort": 1,
                "datasource": datasource(), "query": query, "definition": query,
            })
        }));
        variables
    }

    /// Returns every expression with the title of its panel.
    pub fn expressions(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let panels = self.rows.iter().flat_map(|row| &row.panels);
        panels.flat_map(|panel| {
            let queries = panel.queries.iter();
            queries.map(|(expression, _)| (panel.title, expression.as_str()))
        })
    }
}

// === impl Panel ===

impl Panel {
    /// Creates a panel of [`Shape::Lines`] without any query.
    pub fn lines(title: &'static str, unit: &'static str) -> Panel {
        Panel::new(title, unit, Shape::Lines)
    }

    /// Creates a panel of [`Shape::Numbers`] without any query.
    pub fn numbers(title: &'static str, unit: &'static str) -> Panel {
        Panel::new(title, unit, Shape::Numbers)
    }

    /// Creates a panel of [`Shape::Table`] without any query.
    pub fn table(title: &'static str, unit: &'static str) -> Panel {
        Panel::new(title, unit, Shape::Table)
    }

    /// Creates a panel of [`Shape::Heatmap`] without any query.
    pub fn heatmap(title: &'static str, unit: &'static str) -> Panel {
        Panel::new(title, unit, Shape::Heatmap)
    }

    fn new(title: &'static str, unit: &'static str, shape: Shape) -> Panel {
        Panel {
            title,
            help: "",
            shape,
            unit,
            queries: Vec::new(),
        }
    }

    /// Adds a query.
    pub fn query(mut self, query: impl Into<String>) -> Panel {
        self.queries.push((query.into(), ""));
        self
    }

    /// Sets the legend of the last query.
    pub fn legend(mut self, legend: &'static str) -> Panel {
        if let Some((_, last)) = self.queries.last_mut() {
            *last = legend;
        }
        self
    }

    /// Sets the help text.
    pub fn help(self, help: &'static str) -> Panel {
        Panel { help, ..self }
    }

    fn render(&self, id: usize, place: &Value) -> Value {
        let shape = self.shape;
        let targets = self.queries.iter().zip('A'..).map(|((expression, legend), letter)| {
            json!({
                "refId": letter.to_string(), "datasource": datasource(), "expr": expression,
                "legendFormat": legend, "range": shape.is_over_time(), "instant": !shape.is_over_time(),
                "format": shape.format(),
            })
        });
        let targets: Vec<Value> = targets.collect();
        let mut panel = json!({
            "id": id, "type": shape.plugin(), "title": self.title, "description": self.help,
            "datasource": datasource(), "gridPos": place, "targets": targets,
            "fieldConfig": {"defaults": {"unit": self.unit, "min": 0}, "overrides": []},
            "options": shape.options(),
        });
        if shape == Shape::Table {
            panel["transformations"] = json!([
                {"id": "organize", "options": {"excludeByName": {"Time": true, "Value": true, "__name__": true}}},
            ]);
        }
        panel
    }
}

// === impl Shape ===

impl Shape {
    /// Returns the width and the height.
    fn size(self) -> (u64, u64) {
        match self {
            Shape::Lines | Shape::Table | Shape::Heatmap => (COLUMNS / 2, HEIGHT),
            Shape::Numbers => (COLUMNS / 4, LOW),
        }
    }

    fn plugin(self) -> &'static str {
        match self {
            Shape::Lines => "timeseries",
            Shape::Numbers => "stat",
            Shape::Table => "table",
            Shape::Heatmap => "heatmap",
        }
    }

    fn is_over_time(self) -> bool {
        matches!(self, Shape::Lines | Shape::Heatmap)
    }

    fn format(self) -> &'static str {
        match self {
            Shape::Lines | Shape::Numbers => "time_series",
            Shape::Table => "table",
            Shape::Heatmap => "heatmap",
        }
    }

    fn options(self) -> Value {
        match self {
            Shape::Lines => {
                json!({"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}})
            }
            Shape::Numbers => {
                json!({"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "textMode": "auto"})
            }
            Shape::Table => json!({"showHeader": true}),
            Shape::Heatmap => json!({"calculate": false, "yAxis": {"unit": "s"}}),
        }
    }
}

fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}
