//! Histories of events: what a catalog is after them, and what it says has changed.

mod generated_world;
mod lists;
mod nodes_and_ranges;
mod properties;
mod questions;
mod triggers;
mod undecodable;
mod world;
