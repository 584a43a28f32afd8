//! A container image as a value, and the archive it comes to.
//!
//! ```text
//!   files ---> Tree ---> layer ---.
//!                                 +---> manifest ---> archive: one tar
//!   name, user, labels, … --------'
//!             Image::archive: pure, and the same bytes for the same input
//! ```
//!
//! Nothing is run in an image to make it, so neither a container daemon nor root is needed: an image
//! is a tar of files, a configuration in JSON and a manifest that names both by their SHA-256.

mod image;
mod output;
mod plugin;
mod reference;
mod tree;

pub use image::{Architecture, Archive, Image, User, digest};
pub use output::{ArchiveArguments, commit};
pub use plugin::Plugin;
pub use reference::Reference;
pub use tree::{File, InsertError, Tree, TreePath};
