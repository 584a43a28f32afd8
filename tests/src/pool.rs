//! Slow-to-start resources that the tests of a target with its own `main` use one after another.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use libtest_mimic::Trial;

use crate::trial::trial;

/// Resources of one kind, as many as tests run at a time. Each test has one to itself.
#[derive(Debug)]
pub struct Pool<R> {
    start: fn() -> Result<R>,
    restore: fn(&mut R) -> Result<Restored>,
    idle: Mutex<Vec<R>>,
}

/// How far a used resource is like one that has just been started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restored {
    /// In everything that a test can see.
    Completely,
    /// Not, because the test has changed this. No other test may use it.
    NotAfter(String),
}

// === impl Pool ===

impl<R> Pool<R> {
    /// Creates an empty pool. `start` is called if no resource is idle, and `restore` after each
    /// test that passed. An error of `restore` fails that test.
    pub fn new(start: fn() -> Result<R>, restore: fn(&mut R) -> Result<Restored>) -> Pool<R> {
        Pool {
            start,
            restore,
            idle: Mutex::default(),
        }
    }

    /// Creates tests that use a resource as it is after its start. A resource whose test fails or
    /// panics is dropped; all are dropped when the last of these tests has ended.
    pub fn trials<'n, T>(self, tests: impl IntoIterator<Item = (&'n str, T)>) -> Vec<Trial>
    where
        R: Send + 'static,
        T: FnOnce(&mut R) -> Result<()> + Send + 'static,
    {
        let pool = Arc::new(self);
        let tests = tests.into_iter().map(|(name, test)| {
            let pool = Arc::clone(&pool);
            trial(name, move || pool.run(test))
        });
        tests.collect()
    }

    fn run(&self, test: impl FnOnce(&mut R) -> Result<()>) -> Result<()> {
        let idle = self.lock().pop();
        let mut resource = idle.map_or_else(self.start, Ok)?;
        test(&mut resource)?;
        let restored = (self.restore)(&mut resource);
        match restored.context("failed to undo what the test has done")? {
            Restored::Completely => self.lock().push(resource),
            Restored::NotAfter(change) => println!("    no other test continues after {change}"),
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<R>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use anyhow::{Result, bail, ensure};

    use super::{Pool, Restored};

    /// What tests have written. The word `stain` cannot be removed, and `scar` is not to be.
    type Page = Vec<&'static str>;

    fn restore(page: &mut Page) -> Result<Restored> {
        ensure!(!page.contains(&"stain"), "a stain remains");
        if page.contains(&"scar") {
            return Ok(Restored::NotAfter("a scar".to_owned()));
        }
        page.truncate(1);
        Ok(Restored::Completely)
    }

    fn pool() -> Pool<Page> {
        Pool::new(|| Ok(vec!["new"]), restore)
    }

    /// Fails if a test finds anything but a new page, and returns the capacity that it finds, which
    /// is larger on a page of a former test.
    fn read(pool: &Pool<Page>) -> Result<usize> {
        let mut capacity = 0;
        pool.run(|page| {
            ensure!(*page == ["new"], "{page:?}");
            capacity = page.capacity();
            Ok(())
        })?;
        Ok(capacity)
    }

    fn write(pool: &Pool<Page>, word: &'static str) -> Result<()> {
        pool.run(|page| {
            page.reserve(1000);
            page.push(word);
            match word {
                "error" => bail!("it failed"),
                "panic" => panic!("it panicked"),
                _ => Ok(()),
            }
        })
    }

    #[test]
    fn a_test_that_passed_hands_on_what_it_used_as_it_was() -> Result<()> {
        let pool = pool();
        write(&pool, "word")?;
        ensure!(read(&pool)? >= 1000);
        ensure!(pool.lock().len() == 1);
        Ok(())
    }

    #[test]
    fn a_test_that_failed_or_changed_too_much_hands_nothing_on() -> Result<()> {
        let pool = pool();
        for (word, passes) in [
            ("error", Some(false)),
            ("panic", None),
            ("stain", Some(false)),
            ("scar", Some(true)),
        ] {
            let ended = catch_unwind(AssertUnwindSafe(|| write(&pool, word)));
            ensure!(ended.ok().map(|ended| ended.is_ok()) == passes, "{word}");
            ensure!(pool.lock().is_empty(), "after {word}");
            ensure!(read(&pool)? < 1000, "after {word}");
            pool.lock().clear();
        }
        Ok(())
    }
}
