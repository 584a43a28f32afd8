//! Archives as their importers read them.

mod layout;
mod opened;
mod program;
mod recipe;
