//! A test: its name, its time limit and the function that runs it.

use crate::bench::Bench;
use std::fmt::Display;
use std::time::Duration;

/// The reason for which a test ends early.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Stop {
    #[error("{0}")]
    Failed(String),
    /// The host lacks something that the test needs.
    #[error("{0}")]
    Skipped(String),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

pub type Outcome = Result<(), Stop>;

pub struct Test {
    pub name: String,
    /// The test runs only if a filter or an option asks for it.
    pub on_request: bool,
    limit: Duration,
    body: Box<dyn Fn(&Bench) -> Outcome + Send>,
}

impl Test {
    pub fn group(&self) -> &str {
        self.name.split("::").next().expect("a split text has a first part")
    }

    pub fn run(&self) -> Outcome {
        (self.body)(&Bench::new(self.limit)?)
    }
}

/// The tests of one group.
pub struct Group {
    name: &'static str,
    on_request: bool,
    limit: Duration,
    tests: Vec<Test>,
}

impl Group {
    /// Makes an empty group. Each of its tests is ended after `limit` seconds.
    pub fn new(name: &'static str, limit: u64) -> Self {
        Self { name, on_request: false, limit: Duration::from_secs(limit), tests: Vec::new() }
    }

    /// Makes an empty group whose tests run only if they are asked for.
    pub fn on_request(name: &'static str, limit: u64) -> Self {
        Self { on_request: true, ..Self::new(name, limit) }
    }

    /// Changes the limit of the tests that are added from now on.
    pub fn limit(&mut self, seconds: u64) {
        self.limit = Duration::from_secs(seconds);
    }

    pub fn add(&mut self, name: impl Display, body: impl Fn(&Bench) -> Outcome + Send + 'static) {
        let name = format!("{}::{name}", self.name);
        self.tests.push(Test { name, on_request: self.on_request, limit: self.limit, body: Box::new(body) });
    }

    pub fn tests(self) -> Vec<Test> {
        self.tests
    }
}
