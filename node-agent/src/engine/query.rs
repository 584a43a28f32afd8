//! Answers of the engine to queries.

use dataplane::ServiceKey;
use inspect::{QueryResult, Question, ServiceState, services_at};

use super::Engine;

impl Engine {
    /// Returns what the source delivered about the Services that `question` is about.
    pub(crate) fn query(&self, question: &Question) -> QueryResult {
        let mut services = services_at(question, &self.dataplane);
        match question {
            Question::Service { service, .. } => drop(services.insert(service.clone())),
            Question::Address { address, .. } => {
                services.extend(self.catalog.services_behind(*address));
            }
            // The Services of a mark are asked for by name: the rules have them.
            Question::NodePort { .. } | Question::Mark { .. } => {}
        }
        let stand = |service: ServiceKey| {
            let state = match self.catalog.service(&service) {
                Some(view) => ServiceState::Served {
                    view,
                    slices: self.catalog.slice_names(&service).to_vec(),
                },
                None => match self.catalog.unserved(&service) {
                    Some(reason) => ServiceState::Unserved(reason),
                    None => ServiceState::Unknown,
                },
            };
            (service, state)
        };
        QueryResult {
            services: services.into_iter().map(stand).collect(),
        }
    }
}
