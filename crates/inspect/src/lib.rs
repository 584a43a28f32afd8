//! Answers about the desired state and the kernel: what is programmed for a Service or an address,
//! where the kernel differs, and which way a packet takes. Knows no agent: the caller supplies the
//! evidence.

mod agreement;
mod explain;
mod query_result;
mod rendering;
mod trace;

pub use agreement::Agreement;
pub use explain::{
    Evidence, Explanation, Kernel, ParseQuestionError, Question, RulesLocation, Unknown, asks_for,
    explain, services_at, services_of_mark,
};
pub use query_result::{QueryResult, ServiceState};
pub use rendering::{RENDERED_VARIANT, render};
pub use trace::{
    PacketSpec, ParsePacketError, ResolvePacketError, RulesOf, Trace, TraceError, follow, trace,
};
