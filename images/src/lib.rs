//! A container image as a value, and the archive it comes to.
//!
//! ```text
//!   programs ---> Tree ---> Layer ---.
//!                                    +---> Image ---> Layout ---> archive, on disk
//!   name, user, labels, … -----------'
//!                 render: pure, and the same bytes for the same input           write_archive
//! ```
//!
//! Nothing is run in an image to make it, so neither a container daemon nor root is needed: an image
//! is a tar of files, a configuration in JSON and a manifest that names both by their SHA-256.

mod archive;
mod digest;
mod image;
mod layer;
mod layout;
mod reference;
mod size;
mod source_date;
mod tree;

pub use archive::{WriteError, write_archive};
pub use digest::Digest;
pub use image::{
    Architecture, Image, ParseArchitectureError, ParseUserError, Process, TooLarge, User,
};
pub use layer::Layer;
pub use layout::Layout;
pub use reference::{ParseReferenceError, Reference};
pub use size::{ParseSizeError, Size};
pub use source_date::{ParseSourceDateError, SourceDate};
pub use tree::{File, InsertError, ParseTreePathError, Tree, TreePath};
