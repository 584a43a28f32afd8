//! Histories of events: the state of a catalog after them, and the changes that it reports.

mod generated_world;
mod lists;
mod nodes_and_ranges;
mod properties;
mod questions;
mod triggers;
mod undecodable;
mod world;
