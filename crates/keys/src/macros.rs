//! The macros that define keys and branch on them.
//!
//! A site is one `jmp` (or `b`) in inline assembly with a label operand, and one entry in the table that `text/linux/table.rs`
//! describes.
//!
//! # What a site accepts
//! The assembly takes the address of what the path names and the engine writes there, so the path must name a key itself,
//! not something that dereferences to one (a `static` reference, a newtype). `value_of` and `offset_of` are generic over
//! a sealed trait, so no coercion applies: what they infer is the type of the static, and only keys and arrays of keys
//! have the trait.
//!
//! # How long an entry lives
//! The entry's section has the flag `o` (link order): it lives and dies with the section of the function that holds the
//! site, so `--gc-sections` drops dead functions together with their entries, and never an entry of a live one. (lld does
//! it so; GNU ld keeps every entry, and what it leads to, unless it is told `-z start-stop-gc`.) The flag asks for a symbol
//! in that section; `\+` counts the uses of an assembler macro, which makes a new one for each site, however often the
//! compiler copies it.

/// Defines keys. Each needs a documentation comment; its name, for listing and for flipping by name, is the path of the
/// static unless `as "..."` gives another.
///
/// ```
/// quotient_keys::static_key! {
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
/// quotient_keys::static_key! { static TRACING = false; }
/// ```
/// Arrays of keys are defined by a value in brackets, and branched on by constant indices. Attributes beside the
/// documentation go to the static; `#[cfg]` leaves the key out.
///
/// ```
/// quotient_keys::static_key! {
///     /// Prints the steps of each phase.
///     pub static PHASES = [false; 3];
///     /// Is for one system only.
///     #[cfg(windows)]
///     static REGISTRY = false;
/// }
/// assert!(PHASES[2].name().ends_with("PHASES[2]"));
/// assert!(!quotient_keys::static_branch_unlikely!(PHASES[2]));
/// ```
#[macro_export]
macro_rules! static_key {
    ($(
        $(#[$($attribute:tt)+])*
        $visibility:vis static $name:ident = $default:tt $(, as $given:literal)? ;
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
        ::core::compile_error!("a static key needs a documentation comment");
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
            concat!($($doc, "\n"),+),
        );

        $crate::__register_keys! { [$($conditions)*] &$name }
    };
    ([$(($doc:expr))+] [$($conditions:tt)*] [$($others:tt)*]
        $visibility:vis static $name:ident = $default:literal, $given:expr;
    ) => {
        $(#[doc = $doc])+
        $($conditions)* $($others)*
        $visibility static $name: $crate::StaticKey<$default> =
            $crate::StaticKey::__new($given, concat!($($doc, "\n"),+));

        $crate::__register_keys! { [$($conditions)*] ::core::slice::from_ref(&$name) }
    };
}

/// Runs the registration of some keys before `main`, or when the library is loaded.
#[doc(hidden)]
#[macro_export]
macro_rules! __register_keys {
    ([$($conditions:tt)*] $keys:expr) => {
        $($conditions)*
        const _: () = {
            extern "C" fn register() {
                for key in $keys {
                    $crate::__private::register(key);
                }
            }
            #[cfg_attr(
                any(target_os = "linux", target_os = "android", target_os = "freebsd"),
                used,
                unsafe(link_section = ".init_array")
            )]
            #[cfg_attr(target_vendor = "apple", used, unsafe(link_section = "__DATA,__mod_init_func"))]
            #[cfg_attr(target_os = "windows", used, unsafe(link_section = ".CRT$XCU"))]
            #[allow(dead_code)]
            static REGISTER: extern "C" fn() = register;
        };
    };
}

/// The name of a key: given or its path.
#[doc(hidden)]
#[macro_export]
macro_rules! __key_name {
    ($name:ident) => {
        concat!(module_path!(), "::", stringify!($name))
    };
    ($name:ident $given:literal) => {
        $given
    };
}

/// Whether a key is on; for a branch that is seldom taken. One instruction that falls through while the key is off.
///
/// The argument is a path to a static of [`static_key!`](crate::static_key). Not usable in `const fn`.
///
/// ```
/// use quotient_keys::{static_branch_unlikely, static_key};
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
/// # Ok::<(), quotient_keys::FlipError>(())
/// ```
///
/// Anything else than a key is refused, and so is what only leads to one:
///
/// ```compile_fail
/// static FLAG: bool = false;
/// if quotient_keys::static_branch_unlikely!(FLAG) {}
/// ```
/// ```compile_fail,E0277
/// quotient_keys::static_key! {
///     /// A key.
///     static KEY = false;
/// }
/// static ALIAS: &quotient_keys::StaticKeyFalse = &KEY;
/// if quotient_keys::static_branch_unlikely!(ALIAS) {}
/// ```
/// ```compile_fail,E0277
/// quotient_keys::static_key! {
///     /// A key.
///     static KEY = false;
/// }
/// struct Wrapper;
/// impl std::ops::Deref for Wrapper {
///     type Target = quotient_keys::Key;
///     fn deref(&self) -> &quotient_keys::Key {
///         &KEY
///     }
/// }
/// static WRAPPER: Wrapper = Wrapper;
/// if quotient_keys::static_branch_unlikely!(WRAPPER) {}
/// ```
/// ```compile_fail,E0277
/// quotient_keys::static_key! {
///     /// Two keys.
///     static KEYS = [false; 2];
/// }
/// static ALIAS: &[quotient_keys::StaticKeyFalse; 2] = &KEYS;
/// if quotient_keys::static_branch_unlikely!(ALIAS[1]) {}
/// ```
/// ```compile_fail,E0080
/// quotient_keys::static_key! {
///     /// Two keys.
///     static KEYS = [false; 2];
/// }
/// if quotient_keys::static_branch_unlikely!(KEYS[2]) {}
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

/// A site with its bias and the assembly of its jump, which defines the label 2.
///
/// The assembly clobbers the flags (the cheap form is a `test`), reads no memory that Rust knows, and is never removed
/// or merged with another: `asm!` without `pure`.
#[cfg(patching)]
#[doc(hidden)]
#[macro_export]
macro_rules! __site {
    ($key:path, $bias:expr, $jump:tt) => {
        $crate::__site!($key[$crate::__private::WHOLE], $bias, $jump)
    };
    ($key:path [$index:expr], $bias:expr, ["2: jmp {slow}"]) => {
        $crate::__placed_site!($key[$index], $bias, [$crate::__jump!()])
    };
    ($key:path [$index:expr], $bias:expr, $jump:tt) => {
        $crate::__placed_site!($key[$index], $bias, $jump)
    };
}

/// The jump of a site on this processor.
#[cfg(target_arch = "aarch64")]
#[doc(hidden)]
#[macro_export]
macro_rules! __jump {
    () => {
        "2: b {slow}"
    };
}

/// The jump of a site on this processor.
#[cfg(not(target_arch = "aarch64"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __jump {
    () => {
        "2: jmp {slow}"
    };
}

/// [`__site!`] with its jump decided.
#[cfg(patching)]
#[doc(hidden)]
#[macro_export]
macro_rules! __placed_site {
    ($key:path [$index:expr], $bias:expr, [$($jump:expr),+]) => {
        'decided: {
            // SAFETY: the jump goes to the block, which ends in this expression; the instruction that the engine may put
            // in its place falls through and changes the flags only, which are declared as clobbered. The entry in the
            // other section holds distances and executes never. `offset_of` vouches that the path names a key, or an
            // array of keys that has this element.
            unsafe {
                ::core::arch::asm!(
                    $($jump,)+
                    ".ifndef .Lquotient_keys_v1",
                    ".set .Lquotient_keys_v1, 1",
                    ".macro quotient_keys_v1_entry slow, key, offset",
                    ".Lquotient_keys_v1_site_\\+:",
                    ".pushsection quotient_keys_v1, \"ao\", @progbits, .Lquotient_keys_v1_site_\\+",
                    ".balign 8",
                    ".long 2b - .",
                    ".long \\slow - .",
                    ".quad \\key + \\offset - .",
                    ".popsection",
                    ".endm",
                    ".endif",
                    "quotient_keys_v1_entry {slow}, {key}, {offset}",
                    key = sym $key,
                    offset = const $crate::__private::offset_of(&$key, $index) + $bias as usize,
                    slow = label { break 'decided $crate::__private::value_of(&$key, $index) },
                    options(nomem, nostack),
                );
            }
            $bias
        }
    };
}

/// A site where nothing can be patched: a load and a branch.
#[cfg(not(patching))]
#[doc(hidden)]
#[macro_export]
macro_rules! __site {
    ($key:path, $bias:expr, $jump:tt) => {
        $crate::__site!($key[$crate::__private::WHOLE], $bias, $jump)
    };
    ($key:path [$index:expr], $bias:expr, [$($jump:literal),+]) => {{
        const _: usize = $crate::__private::offset_of(&$key, $index);
        $crate::__private::value_of(&$key, $index)
    }};
}
