//! The macros that define keys and branch on them; what a branch is compiled to stands in `site.rs` and `load.rs`.

/// Defines keys. Each needs a documentation comment; its name, for listing and for flipping by name, is the path of the
/// static unless `as "..."` gives another (any constant `&'static str`).
///
/// ```
/// quotient_key::static_key! {
///     /// Prints every request.
///     pub static TRACING = false;
///     /// Checks the books after every step.
///     static CHECKS = true, as "ledger.checks";
/// }
/// assert_eq!(CHECKS.name(), "ledger.checks");
/// assert!(!TRACING.is_enabled() && CHECKS.is_enabled());
/// ```
///
/// A key cannot be defined without documentation:
///
/// ```compile_fail
/// quotient_key::static_key! { static TRACING = false; }
/// ```
/// Arrays of keys are defined by a value in brackets, and branched on by constant indices. Attributes beside the
/// documentation go to the static; `#[cfg]` leaves the key out.
///
/// ```
/// quotient_key::static_key! {
///     /// Prints the steps of each phase.
///     pub static PHASES = [false; 3];
///     /// Is for one system only.
///     #[cfg(windows)]
///     static REGISTRY = false;
/// }
/// assert!(PHASES[2].name().ends_with("PHASES[2]"));
/// assert!(!quotient_key::static_branch_unlikely!(PHASES[2]));
/// ```
#[macro_export]
macro_rules! static_key {
    ($(
        $(#[$($attribute:tt)+])*
        $visibility:vis static $name:ident = $default:tt $(, as $given:expr)? ;
    )+) => {$(
        $crate::__one_key! {
            [] [] [] $(#[$($attribute)+])*
            $visibility static $name = $default, $crate::__key_name!($name $($given)?);
        }
    )+};
}

/// One key: sorts its attributes into documentation, conditions and others, then defines it.
#[doc(hidden)]
#[macro_export]
macro_rules! __one_key {
    ([$($doc:tt)*] $conditions:tt $others:tt #[doc = $more:expr] $($rest:tt)*) => {
        $crate::__one_key! { [$($doc)* ($more)] $conditions $others $($rest)* }
    };
    ($doc:tt [$($conditions:tt)*] $others:tt #[cfg($($condition:tt)*)] $($rest:tt)*) => {
        $crate::__one_key! { $doc [$($conditions)* #[cfg($($condition)*)]] $others $($rest)* }
    };
    ($doc:tt $conditions:tt [$($others:tt)*] #[$($other:tt)*] $($rest:tt)*) => {
        $crate::__one_key! { $doc $conditions [$($others)* #[$($other)*]] $($rest)* }
    };
    ([] $($rest:tt)*) => {
        $crate::__private::core::compile_error!("a static key needs a documentation comment");
    };
    ([$(($doc:expr))+] [$($conditions:tt)*] [$($others:tt)*]
        $visibility:vis static $name:ident = [$default:literal; $length:expr], $given:expr;
    ) => {
        $(#[doc = $doc])+
        $($conditions)* $($others)*
        $visibility static $name: [$crate::StaticKey<$default>; $length] = $crate::__private::array(
            const {
                &$crate::__private::ElementNames::<{ $length }, { $crate::__private::room_of($given) }>::new($given)
            },
            $crate::__private::core::concat!($($doc, "\n"),+),
        );

        $crate::__register_keys! { [$($conditions)*] &$name }
    };
    ([$(($doc:expr))+] [$($conditions:tt)*] [$($others:tt)*]
        $visibility:vis static $name:ident = $default:literal, $given:expr;
    ) => {
        $(#[doc = $doc])+
        $($conditions)* $($others)*
        $visibility static $name: $crate::StaticKey<$default> =
            $crate::StaticKey::__new($given, $crate::__private::core::concat!($($doc, "\n"),+));

        $crate::__register_keys! { [$($conditions)*] $crate::__private::core::slice::from_ref(&$name) }
    };
}

/// Runs the registration of some keys before `main`, or when the library is loaded.
#[doc(hidden)]
#[macro_export]
macro_rules! __register_keys {
    ([$($conditions:tt)*] $keys:expr) => {
        $($conditions)*
        const _: () = {
            extern "C" fn __quotient_key_register() {
                for key in $keys {
                    $crate::__private::register(key);
                }
            }
            $crate::__before_main!(__quotient_key_register);
        };
    };
}

/// Runs a function before `main`, or when the library is loaded; on platforms where that is not known, never.
#[doc(hidden)]
#[macro_export]
macro_rules! __before_main {
    ($function:path) => {
        #[cfg_attr(
            any(target_os = "linux", target_os = "android", target_os = "freebsd"),
            used,
            unsafe(link_section = ".init_array")
        )]
        #[cfg_attr(
            target_vendor = "apple",
            used,
            unsafe(link_section = "__DATA,__mod_init_func")
        )]
        #[cfg_attr(target_os = "windows", used, unsafe(link_section = ".CRT$XCU"))]
        #[allow(dead_code)]
        static __QUOTIENT_KEY_BEFORE_MAIN: extern "C" fn() = $function;
    };
}

/// The name of a key: given or its path.
#[doc(hidden)]
#[macro_export]
macro_rules! __key_name {
    ($name:ident) => {
        $crate::__private::core::concat!(
            $crate::__private::core::module_path!(),
            "::",
            $crate::__private::core::stringify!($name)
        )
    };
    ($name:ident $given:expr) => {
        $given
    };
}

/// Whether a key is on; for a branch that is seldom taken. One instruction that falls through while the key is off.
///
/// The argument is a path to a static of [`static_key!`](crate::static_key). Not usable in `const fn`.
///
/// ```
/// use quotient_key::{static_branch_unlikely, static_key};
///
/// static_key! {
///     /// Prints every request.
///     static TRACING = false;
/// }
/// fn handle() -> &'static str {
///     if static_branch_unlikely!(TRACING) { "traced" } else { "quiet" }
/// }
/// assert_eq!(handle(), "quiet");
/// TRACING.enable()?;
/// assert_eq!(handle(), "traced");
/// # Ok::<(), quotient_key::FlipError>(())
/// ```
///
/// Anything else than a key is refused, and so is what only leads to one:
///
/// ```compile_fail
/// static FLAG: bool = false;
/// if quotient_key::static_branch_unlikely!(FLAG) {}
/// ```
/// ```compile_fail,E0277
/// quotient_key::static_key! {
///     /// A key.
///     static KEY = false;
/// }
/// static ALIAS: &quotient_key::StaticKeyFalse = &KEY;
/// if quotient_key::static_branch_unlikely!(ALIAS) {}
/// ```
/// ```compile_fail,E0277
/// quotient_key::static_key! {
///     /// A key.
///     static KEY = false;
/// }
/// struct Wrapper;
/// impl std::ops::Deref for Wrapper {
///     type Target = quotient_key::Key;
///     fn deref(&self) -> &quotient_key::Key {
///         &KEY
///     }
/// }
/// static WRAPPER: Wrapper = Wrapper;
/// if quotient_key::static_branch_unlikely!(WRAPPER) {}
/// ```
/// ```compile_fail,E0277
/// quotient_key::static_key! {
///     /// Two keys.
///     static KEYS = [false; 2];
/// }
/// static ALIAS: &[quotient_key::StaticKeyFalse; 2] = &KEYS;
/// if quotient_key::static_branch_unlikely!(ALIAS[1]) {}
/// ```
/// ```compile_fail,E0080
/// quotient_key::static_key! {
///     /// Two keys.
///     static KEYS = [false; 2];
/// }
/// if quotient_key::static_branch_unlikely!(KEYS[2]) {}
/// ```
#[macro_export]
macro_rules! static_branch_unlikely {
    ($key:path $([$index:expr])?) => {
        $crate::__site!($key $([$index])?, false, ["2: jmp {slow}"])
    };
}

/// Whether a key is on; for a branch that is nearly always taken. One instruction that falls through while the key is
/// on.
///
/// See [`static_branch_unlikely!`](crate::static_branch_unlikely).
#[macro_export]
macro_rules! static_branch_likely {
    ($key:path $([$index:expr])?) => {
        $crate::__site!($key $([$index])?, true, ["2: jmp {slow}"])
    };
}

/// Whether a key is on; falls through while the key has the value that it was defined with.
///
/// See [`static_branch_unlikely!`](crate::static_branch_unlikely).
#[macro_export]
macro_rules! static_branch {
    ($key:path $([$index:expr])?) => {
        $crate::__site!(
            $key $([$index])?,
            const { $crate::__private::default_of(&$key) },
            ["2: jmp {slow}"]
        )
    };
}

/// Calls a function if a key is on, at the cost of one instruction while it is off, in a leaf function too.
///
/// `static_call_if!(KEY, function(a: T, b: U))` does what `if static_branch_unlikely!(KEY) { function(a, b) }` does. Around the
/// latter the compiler saves registers on every path, which in a small function costs more than a load would; here (on
/// x86-64 Linux, if code can be patched) it does not. For calls of functions that report something, in places where speed counts.
///
/// * The arguments, at most four, are variables with their types: integers, `bool`, raw pointers and references. They are in
///   registers whether or not the key is on, so they should be at hand anyway.
/// * A panic in the function aborts the program.
/// * Values in vector registers are saved by the function around it, on every path; in floating-point code a branch may be cheaper.
///
/// ```
/// use quotient_key::{static_call_if, static_key};
///
/// static_key! {
///     /// Reports every product.
///     static PRODUCTS = false;
/// }
///
/// fn report(a: u64, b: &u64) {
///     println!("{a} times {b}");
/// }
///
/// fn multiply(a: u64, b: &u64) -> u64 {
///     static_call_if!(PRODUCTS, report(a: u64, b: &u64));
///     a.wrapping_mul(*b)
/// }
/// assert_eq!(multiply(6, &7), 42);
/// PRODUCTS.enable()?;
/// assert_eq!(multiply(6, &7), 42); // and prints
/// # Ok::<(), quotient_key::FlipError>(())
/// ```
///
/// Types and lifetimes are checked as those of an ordinary call, of a function with just the types that are written: nothing in
/// them is inferred, and lifetimes that are not written are any, each for itself.
///
/// ```compile_fail,E0597
/// # use quotient_key::{static_call_if, static_key};
/// # static_key! {
/// #     /// A key.
/// #     static KEY = false;
/// # }
/// fn keep(_: &'static u64) {}
/// let local = 1_u64;
/// let short = &local;
/// static_call_if!(KEY, keep(short: &'static u64));
/// ```
/// ```compile_fail,E0521
/// # use quotient_key::{static_call_if, static_key};
/// # static_key! {
/// #     /// A key.
/// #     static KEY = false;
/// # }
/// fn keep(_: &'static u64) {}
/// let local = 1_u64;
/// let short = &local;
/// static_call_if!(KEY, keep(short: &u64));
/// ```
/// ```compile_fail,E0121
/// # use quotient_key::{static_call_if, static_key};
/// # static_key! {
/// #     /// A key.
/// #     static KEY = false;
/// # }
/// fn print(_: &String) {}
/// let boxed = &Box::new(String::new()); // not what `print` would be handed
/// static_call_if!(KEY, print(boxed: &_));
/// ```
/// ```compile_fail,E0521
/// # use quotient_key::{static_call_if, static_key};
/// # static_key! {
/// #     /// A key.
/// #     static KEY = false;
/// # }
/// struct Part<'a>(&'a u64);
/// struct Whole<'a>(Part<'a>);
/// impl<'a> std::ops::Deref for Whole<'a> {
///     type Target = Part<'a>;
///     fn deref(&self) -> &Part<'a> {
///         &self.0
///     }
/// }
/// trait Keep {}
/// impl Keep for Whole<'_> {}
/// impl Keep for Part<'static> {} // which is what it would be called with
/// fn keep<T: Keep>(_: &T) {}
/// let local = 1_u64;
/// let whole = &Whole(Part(&local));
/// static_call_if!(KEY, keep(whole: &Part));
/// ```
/// ```compile_fail,E0133
/// # use quotient_key::{static_call_if, static_key};
/// # static_key! {
/// #     /// Keys.
/// #     static KEYS = [false; 2];
/// # }
/// fn nothing() {}
/// static_call_if!(KEYS[1_usize.unchecked_sub(1)], nothing());
/// ```
/// ```compile_fail,E0277
/// # use quotient_key::{static_call_if, static_key};
/// # static_key! {
/// #     /// A key.
/// #     static KEY = false;
/// # }
/// fn print(text: &str) {}
/// let text = "two words";
/// static_call_if!(KEY, print(text: &str));
/// ```
#[macro_export]
macro_rules! static_call_if {
    ($key:path [$index:expr], $($function:ident)::+ ($($argument:ident : $type:ty),* $(,)?)) => {
        $crate::__placed_call!(
            $key[$index], [$($function)::+] [$($argument: $type,)*]
            [("rdi", first) ("rsi", second) ("rdx", third) ("rcx", fourth)] []
        )
    };
    ($key:path, $($call:tt)+) => {
        $crate::static_call_if!($key[$crate::__private::WHOLE], $($call)+)
    };
}

/// Gives each argument of a call its register.
#[doc(hidden)]
#[macro_export]
macro_rules! __placed_call {
    ($key:path [$index:expr], $function:tt [] $free:tt $placed:tt) => {
        $crate::__call_site!($key[$index], $function $placed)
    };
    ($key:path [$index:expr], $function:tt [$argument:ident : $type:ty, $($rest:tt)*]
        [($place:tt, $word:ident) $($free:tt)*] [$($placed:tt)*]) => {
        $crate::__placed_call!(
            $key[$index], $function [$($rest)*] [$($free)*] [$($placed)* $argument: $type, $place, $word;]
        )
    };
}
