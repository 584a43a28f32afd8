//! Archives as those who import them see them.

mod layout;
mod opened;
mod program;
mod recipe;
