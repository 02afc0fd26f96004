//! The macros that define keys and branch on them.
//!
//! A site is one `jmp` in inline assembly with a label operand, and one entry in the table that `text/x86_64/table.rs`
//! describes. The entry's section has the flag `R` (retain): without it `--gc-sections` may drop the table.

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
#[macro_export]
macro_rules! static_key {
    ($(
        $(#[doc = $doc:expr])+
        $visibility:vis static $name:ident = $default:literal $(, as $given:literal)? ;
    )+) => {$(
        $(#[doc = $doc])+
        $visibility static $name: $crate::StaticKey<$default> = $crate::StaticKey::__new(
            $crate::__key_name!($name $($given)?),
            concat!($($doc, "\n"),+),
        );

        const _: () = {
            extern "C" fn register() {
                $crate::__private::register(&$name);
            }
            // Runs `register` before `main`, or when the library is loaded.
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
    )+};
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
/// Anything else than a key is refused:
///
/// ```compile_fail
/// static FLAG: bool = false;
/// if quotient_keys::static_branch_unlikely!(FLAG) {}
/// ```
#[macro_export]
macro_rules! static_branch_unlikely {
    ($key:path) => {
        $crate::__site!($key, false, ["2: jmp {slow}"])
    };
}

/// Whether a key is on; for a branch that is nearly always taken. One instruction that falls through while the key is
/// on.
///
/// See [`static_branch_unlikely!`](crate::static_branch_unlikely).
#[macro_export]
macro_rules! static_branch_likely {
    ($key:path) => {
        $crate::__site!($key, true, ["2: jmp {slow}"])
    };
}

/// Whether a key is on; falls through while the key has the value that it was defined with.
///
/// See [`static_branch_unlikely!`](crate::static_branch_unlikely).
#[macro_export]
macro_rules! static_branch {
    ($key:path) => {
        $crate::__site!(
            $key,
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
    ($key:path, $bias:expr, [$($jump:literal),+]) => {
        'decided: {
            // SAFETY: the jump goes to the block, which ends in this expression; the instruction that the engine may put
            // in its place falls through and changes the flags only, which are declared as clobbered. The entry in the
            // other section holds distances and executes never.
            unsafe {
                ::core::arch::asm!(
                    $($jump,)+
                    ".pushsection quotient_keys_v1, \"aR\", @progbits",
                    ".balign 8",
                    ".long 2b - .",
                    ".long {slow} - .",
                    ".quad {key} + {bias} - .",
                    ".popsection",
                    key = sym $key,
                    bias = const $bias as usize,
                    slow = label { break 'decided $crate::__private::value_of(&$key) },
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
    ($key:path, $bias:expr, [$($jump:literal),+]) => {
        $crate::__private::value_of(&$key)
    };
}
