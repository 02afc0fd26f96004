//! What a branch is compiled to where nothing can be patched: a load and a branch.

/// Whether branches have sites that an engine can patch.
pub const HAS_SITES: bool = false;

/// A site where nothing can be patched: a load and a branch.
#[doc(hidden)]
#[macro_export]
macro_rules! __site {
    ($key:path, $bias:expr, $jump:tt) => {
        $crate::__site!($key[$crate::__private::WHOLE], $bias, $jump)
    };
    ($key:path [$index:expr], $bias:expr, [$($jump:literal),+]) => {{
        const _: usize = $crate::__private::offset_of(&$key, $index);
        $crate::__private::value_of(&$key, const { $index })
    }};
}
