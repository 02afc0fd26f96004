//! What a branch is compiled to where it can be patched.
//!
//! A site is one `jmp` (or `b`) in inline assembly with a label operand, and one entry in the section that [`__layout!`](crate::__layout) names.
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

/// The version of what sites and keys look like in memory, in the name of the section that gathers the sites. Goes up with
/// every change of an entry or of [`Key`](crate::Key); so no engine takes another layout for its own.
///
/// An entry has 16 bytes: the distances from each field to the site (32 bits), to the load of the key (32 bits), and to the key
/// (64 bits, the lowest of them the bias).
#[doc(hidden)]
#[macro_export]
macro_rules! __layout {
    () => {
        "quotient_keys_v2"
    };
}

/// Whether branches have sites that an engine can patch.
pub const HAS_SITES: bool = true;

/// A site with its bias and the assembly of its jump, which defines the label 2.
///
/// The assembly clobbers the flags (the cheap form is a `test`), reads no memory that Rust knows, and is never removed
/// or merged with another: `asm!` without `pure`.
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

/// [`__site!`] with its jump decided. The index is a constant wherever it stands: evaluated by the program it might be another
/// number (the sign of a NaN), and the load that of another key.
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
                $crate::__private::core::arch::asm!(
                    $($jump,)+
                    $crate::__entry_macro!(),
                    $crate::__private::core::concat!($crate::__layout!(), "_entry {slow}, {key}, {offset}"),
                    key = sym $key,
                    offset = const $crate::__private::offset_of(&$key, $index) + $bias as usize,
                    slow = label { break 'decided $crate::__private::value_of(&$key, const { $index }) },
                    options(nomem, nostack),
                );
            }
            $bias
        }
    };
}

/// Defines the assembler macro that writes the entry of the site at the label 2, unless this object has it.
#[doc(hidden)]
#[macro_export]
macro_rules! __entry_macro {
    () => {
        $crate::__private::core::concat!(
            ".ifndef .L",
            $crate::__layout!(),
            "\n",
            ".set .L",
            $crate::__layout!(),
            ", 1\n",
            ".macro ",
            $crate::__layout!(),
            "_entry slow, key, offset\n",
            ".L",
            $crate::__layout!(),
            "_site_\\+:\n",
            ".pushsection ",
            $crate::__layout!(),
            ", \"ao\", @progbits, .L",
            $crate::__layout!(),
            "_site_\\+\n",
            ".balign 8\n",
            ".long 2b - .\n",
            ".long \\slow - .\n",
            ".quad \\key + \\offset - .\n",
            ".popsection\n",
            ".endm\n",
            ".endif\n"
        )
    };
}
