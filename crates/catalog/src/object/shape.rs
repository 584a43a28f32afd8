//! Objects and lists that may be null, but not of another type.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};

/// Decodes a required object.
pub(crate) fn object<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    ByName::deserialize(deserializer).map(|ByName(object)| object)
}

/// Decodes an object, or `null` as an empty one, which is how Go writes an unset pointer.
pub(crate) fn object_or_null<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<ByName<T>>::deserialize(deserializer)?
        .map_or_else(T::default, |ByName(object)| object))
}

/// Decodes a list of objects, or `null` as an empty one, which is how Go writes an unset list.
pub(crate) fn objects_or_null<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let list = Option::<Vec<ByName<T>>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(list.into_iter().map(|ByName(object)| object).collect())
}

/// Decodes a list of single values, or `null` as an empty one.
pub(crate) fn values_or_null<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<Vec<T>>::deserialize(deserializer)?.unwrap_or_default())
}

/// A struct decoded from named fields only. A derived decoder also accepts a list of values in the
/// order of the fields, so that `ports: [[http, TCP, 80]]` would be valid.
struct ByName<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ByName<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ByName<T>, D::Error> {
        deserializer.deserialize_map(ByNameVisitor(PhantomData))
    }
}

struct ByNameVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ByNameVisitor<T> {
    type Value = ByName<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ByName<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(ByName)
    }
}
