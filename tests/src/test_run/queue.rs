//! Chooses the test program to start next.

use super::{Company, Program, company_of, order};

/// The waiting and the running programs.
#[derive(Debug)]
pub struct Queue {
    at_once: usize,
    company_of: fn(&str) -> Company,
    waiting: Vec<Program>,
    running: Vec<Program>,
}

// === impl Queue ===

impl Queue {
    /// Creates a queue of these programs, of which at most `at_once`, at least one, run
    /// concurrently.
    pub fn new(mut programs: Vec<Program>, at_once: usize) -> Queue {
        programs.sort_by_key(|program| order(&program.name));
        Queue {
            at_once: at_once.max(1),
            company_of,
            waiting: programs,
            running: Vec::new(),
        }
    }

    /// Returns the program to start now, which runs until [`Queue::finish`]. Returns `None` while
    /// the limit is reached, or while no waiting program may run concurrently with the running
    /// ones.
    pub fn start_next(&mut self) -> Option<Program> {
        if self.running.len() >= self.at_once {
            return None;
        }
        let running = self.running.iter();
        let running: Vec<Company> = running
            .map(|other| (self.company_of)(&other.name))
            .collect();
        let runs = |company| running.contains(&company);
        let may_start = |program: &Program| match (self.company_of)(&program.name) {
            Company::Any => !runs(Company::Alone),
            Company::NoOtherCluster => !runs(Company::Alone) && !runs(Company::NoOtherCluster),
            Company::Everybody => !runs(Company::Alone) || running.len() == 1,
            Company::Alone => running.is_empty() || running == [Company::Everybody],
        };
        let next = self.waiting.iter().position(may_start)?;
        let program = self.waiting.remove(next);
        self.running.push(program.clone());
        Some(program)
    }

    /// Records that this program has ended.
    pub fn finish(&mut self, program: &Program) {
        self.running.retain(|running| running != program);
    }

    /// Whether no program waits or runs.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::Queue;
    use crate::test_run::{Company, Program};

    fn program(name: &str) -> Program {
        Program {
            package: "tests".into(),
            target: format!("--test {name}"),
            name: name.into(),
            folder: "/tests".into(),
            executable: format!("/programs/{name}").into(),
        }
    }

    fn start_all(queue: &mut Queue) -> Vec<Program> {
        std::iter::from_fn(|| queue.start_next()).collect()
    }

    fn names(programs: &[Program]) -> Vec<&str> {
        programs.iter().map(|program| &*program.name).collect()
    }

    #[test]
    fn no_two_clusters_run_at_a_time_and_all_run() {
        let names_of_all = ["address", "enclosure", "kubernetes_smoke", "relay"];
        let mut queue = Queue::new(names_of_all.map(program).into(), 3);
        let first = start_all(&mut queue);
        assert_eq!(names(&first), ["kubernetes_smoke", "address", "relay"]);
        queue.finish(&first[1]);
        queue.finish(&first[2]);
        assert_eq!(names(&start_all(&mut queue)), [""; 0]);
        queue.finish(&first[0]);
        let last = start_all(&mut queue);
        assert_eq!(names(&last), ["enclosure"]);
        assert!(!queue.is_empty());
        queue.finish(&last[0]);
        assert!(queue.is_empty());
    }

    #[test]
    fn one_that_is_to_be_alone_waits_for_all_others_and_they_for_it() {
        let mut queue = Queue::new(["a", "alone", "b"].map(program).into(), 2);
        queue.company_of = |name| match name {
            "alone" => Company::Alone,
            _ => Company::Any,
        };
        let first = start_all(&mut queue);
        assert_eq!(names(&first), ["a", "b"]);
        queue.finish(&first[0]);
        assert_eq!(names(&start_all(&mut queue)), [""; 0]);
        queue.finish(&first[1]);
        let mut queue = Queue {
            waiting: ["alone", "a"].map(program).into(),
            ..queue
        };
        let alone = start_all(&mut queue);
        assert_eq!(names(&alone), ["alone"]);
        queue.finish(&alone[0]);
        assert_eq!(names(&start_all(&mut queue)), ["a"]);
    }

    #[test]
    fn one_that_mostly_waits_runs_beside_one_that_is_to_be_alone() {
        let names_of_all = ["alone", "a", "quiet", "quiet"];
        let mut queue = Queue::new(names_of_all.map(program).into(), 3);
        queue.company_of = |name| match name {
            "alone" => Company::Alone,
            "quiet" => Company::Everybody,
            _ => Company::Any,
        };
        let first = start_all(&mut queue);
        assert_eq!(names(&first), ["alone", "quiet"]);
        queue.waiting.push(program("alone"));
        queue.finish(&first[0]);
        assert_eq!(names(&start_all(&mut queue)), ["a", "quiet"]);
        let mut queue = Queue {
            waiting: ["alone", "a"].map(program).into(),
            running: vec![program("quiet")],
            ..queue
        };
        assert_eq!(names(&start_all(&mut queue)), ["alone"]);
    }

    #[test]
    fn as_many_run_as_there_are_places() {
        let mut queue = Queue::new(["a", "b", "c"].map(program).into(), 2);
        let first = start_all(&mut queue);
        assert_eq!(names(&first), ["a", "b"]);
        queue.finish(&first[1]);
        assert_eq!(names(&start_all(&mut queue)), ["c"]);
    }
}
