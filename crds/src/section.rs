//! One macro: a section of a profile as people write it, and the same section with every default filled in.

/// Declares two structs with the same fields.
///
/// The first is what people write: every field optional and without a default in the API's schema, because the agent
/// has to tell a field someone wrote from one left out: only the former is worth a condition when nothing honours it.
/// The second is complete, with the declared default wherever the first says nothing, and is what a node is given.
macro_rules! section {
    (
        $(#[$written_meta:meta])*
        $written:ident;
        $(#[$complete_meta:meta])*
        $complete:ident {
            $($(#[$field_meta:meta])* $field:ident: $type:ty = $default:expr,)*
        }
    ) => {
        $(#[$written_meta])*
        #[derive(
            Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        #[serde(rename_all = "camelCase", default)]
        pub struct $written {
            $(
                $(#[$field_meta])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $field: Option<$type>,
            )*
        }

        $(#[$complete_meta])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $complete {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl Default for $complete {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $written {
            /// This section with every default filled in.
            #[must_use]
            pub fn complete(&self) -> $complete {
                $complete { $($field: self.$field.clone().unwrap_or_else(|| $default),)* }
            }

            /// Whether nothing is written in this section.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                *self == Self::default()
            }
        }
    };
}

pub(crate) use section;
