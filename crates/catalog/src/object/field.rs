//! Single values that may be missing or wrong without failing the object.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A single value of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Field<T> {
    /// Missing, or null.
    #[default]
    Absent,
    /// Present and of the right type.
    Given(T),
    /// Present, but of another type; the text shows the value (`"eighty"`, `true`, `a list`).
    Odd(String),
}

/// A type of a single value. Implemented for `String`, `i64` and `bool`.
pub trait Scalar: Sized {
    /// The type in words, with its article: `a number`.
    const WORDS: &'static str;

    /// The value, if the type is text.
    fn from_text(text: &str) -> Option<Self>;
    /// The value, if the type is a whole number.
    fn from_number(number: i64) -> Option<Self>;
    /// The value, if the type is a boolean.
    fn from_bool(truth: bool) -> Option<Self>;
}

/// Returns `text` in quotes, truncated if it is too long for a message.
pub(crate) fn quoted(text: &str) -> String {
    const LONGEST: usize = 64;
    if text.chars().count() <= LONGEST {
        return format!("{text:?}");
    }
    let start: String = text.chars().take(LONGEST).collect();
    format!("{start:?}…")
}

// === impl Field ===

impl<T> Field<T> {
    /// The value, if it is present and of the right type.
    pub fn given(&self) -> Option<&T> {
        match self {
            Field::Given(value) => Some(value),
            Field::Absent | Field::Odd(_) => None,
        }
    }
}

impl Field<String> {
    /// The text as written, whatever type the file's format gives it (an unquoted
    /// `true` or `80` in YAML); empty if absent.
    pub(crate) fn into_text(self) -> String {
        match self {
            Field::Absent => String::new(),
            Field::Given(text) | Field::Odd(text) => text,
        }
    }
}

impl<T> From<T> for Field<T> {
    fn from(value: T) -> Field<T> {
        Field::Given(value)
    }
}

impl From<&str> for Field<String> {
    fn from(value: &str) -> Field<String> {
        Field::Given(value.to_owned())
    }
}

impl<'de, T: Scalar> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Field<T>, D::Error> {
        deserializer.deserialize_any(FieldVisitor(std::marker::PhantomData))
    }
}

struct FieldVisitor<T>(std::marker::PhantomData<T>);

fn given_or<T>(value: Option<T>, shown: impl fmt::Display) -> Field<T> {
    value.map_or_else(|| Field::Odd(shown.to_string()), Field::Given)
}

impl<'de, T: Scalar> Visitor<'de> for FieldVisitor<T> {
    type Value = Field<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WORDS)
    }

    fn visit_unit<E>(self) -> Result<Field<T>, E> {
        Ok(Field::Absent)
    }

    fn visit_none<E>(self) -> Result<Field<T>, E> {
        Ok(Field::Absent)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Field<T>, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Field<T>, E> {
        Ok(given_or(T::from_bool(truth), truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Field<T>, E> {
        Ok(given_or(T::from_number(number), number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Field<T>, E> {
        let value = i64::try_from(number).ok().and_then(T::from_number);
        Ok(given_or(value, number))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Field<T>, E> {
        Ok(Field::Odd(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Field<T>, E> {
        Ok(given_or(T::from_text(text), quoted(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Field<T>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Field::Odd("a list".to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Field<T>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Field::Odd("an object".to_owned()))
    }
}

// === impl Scalar ===

impl Scalar for String {
    const WORDS: &'static str = "text";

    fn from_text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn from_number(_: i64) -> Option<String> {
        None
    }

    fn from_bool(_: bool) -> Option<String> {
        None
    }
}

impl Scalar for i64 {
    const WORDS: &'static str = "a whole number";

    fn from_text(_: &str) -> Option<i64> {
        None
    }

    fn from_number(number: i64) -> Option<i64> {
        Some(number)
    }

    fn from_bool(_: bool) -> Option<i64> {
        None
    }
}

impl Scalar for bool {
    const WORDS: &'static str = "true or false";

    fn from_text(_: &str) -> Option<bool> {
        None
    }

    fn from_number(_: i64) -> Option<bool> {
        None
    }

    fn from_bool(truth: bool) -> Option<bool> {
        Some(truth)
    }
}
