//! A container image as a value, and its archive.
//!
//! ```text
//!   files ---> Tree ---> layer ---.
//!                                 +---> manifest ---> archive: one tar
//!   name, user, labels, … --------'
//!             Image::archive: pure, and the same bytes for the same input
//! ```
//!
//! Building an image runs nothing inside it and therefore requires neither a container daemon nor
//! root: an image is a tar of files, a JSON configuration and a manifest that refers to both by
//! their SHA-256.

mod image;
mod output;
mod plugin;
mod reference;
mod sbom;
mod tree;

pub use image::{Architecture, Archive, Image, User, digest};
pub use output::{ArchiveArguments, DateArgument, commit};
pub use plugin::Plugin;
pub use reference::Reference;
pub use sbom::{Metadata, Subject, UnknownPackage, sbom};
pub use tree::{File, InsertError, Tree, TreePath};
