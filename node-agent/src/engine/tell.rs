//! What the engine answers to people.

use dataplane::ServiceKey;

use super::Engine;
use crate::explain::{Question, services_at};
use crate::inquiry::{Standing, Told};

impl Engine {
    /// What the source has told about the Services that `question` is about.
    pub(crate) fn tell(&self, question: &Question) -> Told {
        let mut services = services_at(question, &self.dataplane);
        match question {
            Question::Service { service, .. } => drop(services.insert(service.clone())),
            Question::Address { address, .. } => {
                services.extend(self.catalog.services_behind(*address));
            }
            Question::NodePort { .. } => {}
        }
        let stand = |service: ServiceKey| {
            let standing = match self.catalog.service(&service) {
                Some(view) => Standing::Served {
                    view,
                    slices: self.catalog.slice_names(&service).to_vec(),
                },
                None => match self.catalog.unserved(&service) {
                    Some(reason) => Standing::Unserved(reason),
                    None => Standing::Unknown,
                },
            };
            (service, standing)
        };
        Told {
            services: services.into_iter().map(stand).collect(),
        }
    }
}
