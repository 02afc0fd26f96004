//! The macros: a static key, a branch on it, and `tracing`'s own event behind the branch.
//!
//! What a filter must know of a callsite (`callsite.rs`) is the key's documentation, one line each, so that there is one
//! registry, that of the keys, and nothing else runs before `main`.

/// An event of [`tracing`] behind a static key. Takes the level's name, perhaps a literal target, then what
/// [`tracing::event!`] takes.
///
/// ```
/// use quotient_traced::traced;
///
/// let (peer, bytes) = ("::1", 20);
/// traced!(DEBUG, "connected");
/// traced!(TRACE, peer, bytes, "received {} bytes", bytes);
/// traced!(WARN, target: "audit", %peer, "refused");
/// ```
///
/// A level that does not exist is refused:
///
/// ```compile_fail
/// quotient_traced::traced!(LOUD, "connected");
/// ```
#[macro_export]
macro_rules! traced {
    ($level:ident, target: $target:literal, $($event:tt)+) => {
        $crate::__traced!($level, $target, $($event)+)
    };
    ($level:ident, $($event:tt)+) => {
        $crate::__traced!($level, ::core::module_path!(), $($event)+)
    };
}

/// One callsite.
#[doc(hidden)]
#[macro_export]
macro_rules! __traced {
    ($level:ident, $target:expr, $($event:tt)+) => {{
        $crate::__private::static_key! {
            #[doc = ::core::concat!(
                "tracing event\n", ::core::stringify!($level), "\n", $target, "\n", ::core::file!(), ":", ::core::line!()
            )]
            static __QUOTIENT_TRACED = false, as ::core::concat!(::core::module_path!(), ":", ::core::line!());
        }
        if $crate::__private::static_branch_unlikely!(__QUOTIENT_TRACED) {
            $crate::__private::tracing::event!(
                target: $target,
                $crate::__private::tracing::Level::$level,
                $($event)+
            );
        }
    }};
}

/// [`traced!`] at the level `TRACE`.
#[macro_export]
macro_rules! trace {
    ($($event:tt)+) => { $crate::traced!(TRACE, $($event)+) };
}

/// [`traced!`] at the level `DEBUG`.
#[macro_export]
macro_rules! debug {
    ($($event:tt)+) => { $crate::traced!(DEBUG, $($event)+) };
}

/// [`traced!`] at the level `INFO`.
#[macro_export]
macro_rules! info {
    ($($event:tt)+) => { $crate::traced!(INFO, $($event)+) };
}

/// [`traced!`] at the level `WARN`.
#[macro_export]
macro_rules! warn {
    ($($event:tt)+) => { $crate::traced!(WARN, $($event)+) };
}

/// [`traced!`] at the level `ERROR`.
#[macro_export]
macro_rules! error {
    ($($event:tt)+) => { $crate::traced!(ERROR, $($event)+) };
}
