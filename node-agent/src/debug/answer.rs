//! `/debug/services`, `/debug/explain`, `/debug/trace`, `/debug/dataplane`, `/debug/rules`: the
//! answers that read the kernel, or print the complete desired state.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use dataplane::{Dataplane, Family};
use inspect::{
    Agreement, Evidence, Kernel, PacketSpec, Question, RulesLocation, Unknown, explain,
    services_of_mark, trace as trace_packet,
};
use modes::DetachedModes;
use runtime::chain;
use serde::{Deserialize, Serialize};
use xtables::Variant;

use super::Sources;
use super::query_limit::PermitError;
use crate::arguments::Output;
use crate::engine::View;
use crate::programmed::Programmed;

/// Why there is no answer: an HTTP status and one line of text.
type Refusal = (StatusCode, String);

/// The requested format of an answer.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Form {
    #[serde(default)]
    output: Output,
}

/// The object to explain.
#[derive(Debug, Deserialize)]
pub(super) struct About {
    about: String,
}

/// The packet to trace.
#[derive(Debug, Deserialize)]
pub(super) struct OfPacket {
    packet: String,
}

pub(super) async fn service(
    State(sources): State<Sources>,
    Path((namespace, name)): Path<(String, String)>,
    Query(form): Query<Form>,
) -> Result<Response, Refusal> {
    explain_question(sources, &format!("{namespace}/{name}"), form.output).await
}

pub(super) async fn explanation(
    State(sources): State<Sources>,
    Query(About { about }): Query<About>,
    Query(form): Query<Form>,
) -> Result<Response, Refusal> {
    explain_question(sources, &about, form.output).await
}

async fn explain_question(
    sources: Sources,
    question: &str,
    output: Output,
) -> Result<Response, Refusal> {
    let question: Question = question.parse().map_err(bad_request)?;
    let view = view(&sources)?;
    let permit = sources.limit.take().map_err(no_permit)?;
    let reported = sources.queries.ask(question.clone()).await;
    let mut reported = reported.map_err(unavailable)?;
    let programmed = sources.state.programmed;
    let held = Family::ALL.map(|family| Some((family, programmed.held(family)?)));
    let held: BTreeMap<_, _> = held.into_iter().flatten().collect();
    let modes = DetachedModes::default();
    for service in services_of_mark(&question, &held, &modes) {
        let of_service = Question::Service {
            service,
            port: None,
        };
        let more = sources.queries.ask(of_service).await;
        reported
            .services
            .extend(more.map_err(unavailable)?.services);
    }
    let answer = move || {
        let dataplane = desired(&view)?;
        let at = rules_location(&programmed, dataplane);
        let report = programmed.last_report();
        let evidence = Evidence {
            dataplane,
            reported: &reported,
            rejections: &view.rejections,
            observed: &held,
            kernel: &Kernel::observe(&at),
            families: report.as_ref().map_or(&[], |report| &report.families),
            variant: at.variant,
            modes: &modes,
        };
        let explanation = explain(&question, &evidence).map_err(not_found)?;
        Ok::<_, Refusal>((print(&explanation, output)?, explanation.agreement()))
    };
    let (text, agreement) = permit.spend(answer).await.map_err(no_permit)??;
    Ok(respond(text, output, agreement))
}

pub(super) async fn trace(
    State(sources): State<Sources>,
    Query(OfPacket { packet }): Query<OfPacket>,
    Query(form): Query<Form>,
) -> Result<Response, Refusal> {
    let packet_spec: PacketSpec = packet.parse().map_err(bad_request)?;
    let view = view(&sources)?;
    let permit = sources.limit.take().map_err(no_permit)?;
    let programmed = sources.state.programmed;
    let answer = move || {
        let dataplane = desired(&view)?;
        let kernel = Kernel::observe(&rules_location(&programmed, dataplane));
        let traced = trace_packet(&packet_spec, dataplane, &kernel, &DetachedModes::default());
        let traced = traced.map_err(|error| (StatusCode::CONFLICT, format!("{error}\n")))?;
        Ok::<_, Refusal>((print(&traced, form.output)?, traced.agree.into()))
    };
    let (text, agreement) = permit.spend(answer).await.map_err(no_permit)??;
    Ok(respond(text, form.output, agreement))
}

pub(super) async fn dataplane(State(sources): State<Sources>) -> Result<String, Refusal> {
    let view = view(&sources)?;
    let permit = sources.limit.take().map_err(no_permit)?;
    let answer = move || desired(&view).map(Dataplane::to_string);
    permit.spend(answer).await.map_err(no_permit)?
}

pub(super) async fn rules(State(sources): State<Sources>) -> Result<String, Refusal> {
    let view = view(&sources)?;
    let permit = sources.limit.take().map_err(no_permit)?;
    let programmed = sources.state.programmed;
    let answer = move || {
        let at = rules_location(&programmed, desired(&view)?);
        Ok(Kernel::observe(&at).list(&at))
    };
    permit.spend(answer).await.map_err(no_permit)?
}

/// Returns the mode of each family's rules in the kernel. Before the first sync: the mode
/// that the profile selects.
fn rules_location(programmed: &Programmed, dataplane: &Dataplane) -> RulesLocation {
    let modes = programmed.modes();
    let active_mode = |family: Family| {
        let known = modes.get(&family).and_then(|modes| modes.active_mode);
        (family, known.unwrap_or(dataplane.config().mode))
    };
    let variant = modes.values().find_map(|modes| modes.variant);
    RulesLocation {
        carriers: Family::ALL.map(active_mode).into(),
        variant: variant.unwrap_or(Variant::NfTables),
    }
}

/// Returns the engine's last view.
fn view(sources: &Sources) -> Result<Arc<View>, Refusal> {
    let view = sources.state.view.borrow().clone();
    view.ok_or_else(nothing_yet)
}

fn desired(view: &View) -> Result<&Dataplane, Refusal> {
    view.desired.as_ref().ok_or_else(nothing_yet)
}

fn print(answer: &(impl Display + Serialize), output: Output) -> Result<String, Refusal> {
    let text = output.print(answer);
    text.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")))
}

fn respond(text: String, output: Output, agreement: Agreement) -> Response {
    let agreement = [(Agreement::HEADER, agreement.as_str())];
    match output {
        Output::Text => (agreement, text).into_response(),
        Output::Json => {
            let kind = [(header::CONTENT_TYPE, "application/json")];
            (agreement, kind, text).into_response()
        }
    }
}

fn no_permit(error: PermitError) -> Refusal {
    let status = match error {
        PermitError::Taken => StatusCode::SERVICE_UNAVAILABLE,
        PermitError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, format!("{}\n", chain(&error)))
}

fn bad_request(error: impl Display) -> Refusal {
    (StatusCode::BAD_REQUEST, format!("{error}\n"))
}

fn unavailable(error: impl Display) -> Refusal {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"))
}

fn nothing_yet() -> Refusal {
    unavailable("there is no desired state yet: not every resource type has been listed")
}

fn not_found(error: Unknown) -> Refusal {
    (StatusCode::NOT_FOUND, format!("{error}\n"))
}
