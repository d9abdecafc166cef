//! Enums that list their variants, so that a loop over all variants includes new variants.

/// Declares an enum, the list of its variants, and their names.
macro_rules! listed {
    ($(#[$meta:meta])* pub(crate) enum $name:ident { $($(#[$doc:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum $name {
            $($(#[$doc])* $value,)+
        }

        impl $name {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$value),+];

            pub(crate) const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

pub(crate) use listed;
