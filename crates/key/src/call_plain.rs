//! A call behind a key where no stub has been written: a branch and a call.

/// The block of [`static_call_if!`](crate::static_call_if).
#[doc(hidden)]
#[macro_export]
macro_rules! __call_site {
    ($key:path [$index:expr], [$($function:tt)+] [$($argument:ident : $type:ty, $place:tt, $word:ident;)*]) => {{
        /// The call with the types as written, as where there is a stub.
        fn __quotient_key_typed($($word: $type),*) {
            $($function)+($($word),*)
        }
        $(
            let _ = <$type as $crate::__private::Word>::to_word;
        )*
        if $crate::__site!($key[$index], false, ["2: jmp {slow}"]) {
            __quotient_key_typed($($argument),*);
        }
    }};
}
