//! The lines of a document at which its fields begin.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::document::options;

/// A value, reduced to the lines of its parts.
#[derive(Debug)]
pub(super) struct Located {
    line: u64,
    shape: Shape,
}

#[derive(Debug)]
enum Shape {
    Object(Vec<(String, Located)>),
    List(Vec<Located>),
    Single,
}

// === impl Located ===

impl Located {
    /// Parses the whole document; returns `None` if it is not YAML.
    pub(super) fn parse(document: &str) -> Option<Located> {
        serde_saphyr::from_str_with_options(document, options(document)).ok()
    }

    /// Returns the line, counted from one, at which the value at `path` (`spec.ports[1].port`)
    /// begins. If it does not exist, returns the line of the innermost existing value around it.
    pub(super) fn line_of(&self, path: &str) -> Option<u64> {
        let mut found = self;
        let mut rest = path;
        while let Some((next, after)) = found.step(rest) {
            found = next;
            rest = after;
        }
        (found.line > 0).then_some(found.line)
    }

    /// Resolves the first step of `path`; returns the value and the rest of the path. Keys may
    /// contain dots (labels), so the longest matching key is used.
    fn step<'a>(&self, path: &'a str) -> Option<(&Located, &'a str)> {
        let path = path.strip_prefix('.').unwrap_or(path);
        match &self.shape {
            Shape::Object(fields) => fields
                .iter()
                .filter_map(|(key, value)| Some((key, value, path.strip_prefix(key.as_str())?)))
                .filter(|(.., rest)| rest.is_empty() || rest.starts_with(['.', '[']))
                .max_by_key(|(key, ..)| key.len())
                .map(|(_, value, rest)| (value, rest)),
            Shape::List(items) => {
                let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
                let item = items.get(index.parse::<usize>().ok()?)?;
                Some((item, rest))
            }
            Shape::Single => None,
        }
    }
}

impl<'de> Deserialize<'de> for Located {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Located, D::Error> {
        let spanned: Spanned<Shape> = Spanned::deserialize(deserializer)?;
        Ok(Located {
            line: spanned.referenced.line(),
            shape: spanned.value,
        })
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Shape, D::Error> {
        deserializer.deserialize_any(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shape, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Shape::Object(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Shape::List(items))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Shape, E> {
        Ok(Shape::Single)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Shape, E> {
        Ok(Shape::Single)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Shape, E> {
        Ok(Shape::Single)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Shape, E> {
        Ok(Shape::Single)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Shape, E> {
        Ok(Shape::Single)
    }

    fn visit_unit<E: Error>(self) -> Result<Shape, E> {
        Ok(Shape::Single)
    }

    fn visit_none<E: Error>(self) -> Result<Shape, E> {
        Ok(Shape::Single)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Shape, D::Error> {
        Shape::deserialize(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_path() {
        let document = "metadata:\n  labels:\n    a.b/c: x\n    a: y\nspec:\n  ports:\n  - port: 1\n  - name: two\n    port: 2\n";
        let located = Located::parse(document).expect("YAML");
        for (path, line) in [
            ("metadata.labels.a.b/c", 3),
            ("metadata.labels.a", 4),
            ("spec.ports[0].port", 7),
            ("spec.ports[1].port", 9),
            ("spec.ports[1].missing", 8),
            ("spec.ports[7]", 7),
            ("nothing", 1),
        ] {
            assert_eq!(located.line_of(path), Some(line), "{path}");
        }
    }
}
