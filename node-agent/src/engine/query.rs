//! Answers of the engine to queries.

use dataplane::ServiceKey;
use inspect::{QueryResult, Question, ServiceState, asks_for, services_at};

use super::Engine;

impl Engine {
    /// Returns what the source delivered about the Services that `question` is about.
    pub(crate) fn query(&self, question: &Question) -> QueryResult {
        let mut services = services_at(question, &self.dataplane);
        match question {
            Question::Service { service, .. } => drop(services.insert(service.clone())),
            Question::Address { address, .. } => {
                services.extend(self.catalog.services_behind(*address));
                services.extend(self.left_out(question));
            }
            Question::NodePort { .. } => services.extend(self.left_out(question)),
            // The Services of a mark are asked for by name: the rules have them.
            Question::Mark { .. } => {}
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

    /// The Services that ask for an address or node port, and of which nothing is served. The cost is
    /// proportional to the cluster.
    fn left_out(&self, question: &Question) -> impl Iterator<Item = ServiceKey> {
        let services = self.dataplane.services().iter();
        let refused = services.filter(|(_, rules)| rules.is_refused());
        let asking = refused.filter(move |(key, _)| {
            let definition = self.catalog.definition(key);
            definition.is_some_and(|service| asks_for(question, service, &self.dataplane))
        });
        asking.map(|(key, _)| key.clone())
    }
}
