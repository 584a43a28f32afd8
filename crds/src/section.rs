//! A macro that declares a section of a profile twice: as users write it, and with every default
//! filled in.

/// Declares two structs with the same fields.
///
/// The first is what users write: every field is optional and has no default in the API's schema,
/// because the agent must distinguish a field that is set from one left out: an unsupported field
/// is only reported if it is set. The second is complete, with the declared default for every field
/// without a value, and is what a node gets.
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
            /// Returns this section with every default filled in.
            #[must_use]
            pub fn complete(&self) -> $complete {
                $complete { $($field: self.$field.clone().unwrap_or_else(|| $default),)* }
            }

            /// Whether no field of this section is set.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                *self == Self::default()
            }
        }
    };
}

pub(crate) use section;
